// Package owner says whose files are, and gives what a command makes in a data directory to
// whose that directory is. It decides nothing about who may read what: packages store and pki do.
package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Of is the user whom a file belongs to.
func Of(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// Group is the group that a file belongs to.
func Group(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Gid)
	}
	return -1
}

// hardLinks is how many names a file has.
func hardLinks(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Nlink)
	}
	return -1
}

// Give gives a file of a data directory, or a directory in it, to whom the directory dir belongs. A
// command is often run by root, and a hub that is a user of its own could not read what root keeps
// there. A file that has other names is not given away: it may be somebody else's.
func Give(f *os.File, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	in, err := os.Stat(dir)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil || Of(info) == Of(in) || !info.IsDir() && hardLinks(info) > 1 {
		return err
	}
	return f.Chown(Of(in), Group(in))
}

// WriteFile writes a file of a data directory that nobody else may read, whole or not at all, and
// nothing of it elsewhere meanwhile, as below $TMPDIR: it may be a key. It is the hub's, whoever
// writes it.
func WriteFile(path string, text []byte) error {
	dir := filepath.Dir(path)
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o600), renameio.IgnoreUmask(),
		renameio.WithTempDir(dir))
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }()
	if err := Give(f.File, dir); err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// GiveDirectory is Give for a directory that was just made in dir. Whoever dir belongs to may have
// put something else in its place since: what leads elsewhere is not followed.
func GiveDirectory(path, dir string) error {
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(Give(d, dir), d.Close())
}
