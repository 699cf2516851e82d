package doctor

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the user ID of a file's owner.
func ownerOf(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}
