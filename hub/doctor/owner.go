package doctor

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user whom a file belongs to.
func ownerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}
