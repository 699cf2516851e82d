// Package owner reads the owners of files. It gives files that a command creates in a data
// directory to the owner of that directory. It sets no permissions: packages store and pki do.
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

// Of returns the uid of a file's owner.
func Of(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// Group returns the gid of a file.
func Group(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Gid)
	}
	return -1
}

// hardLinks returns the number of hard links of a file.
func hardLinks(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Nlink)
	}
	return -1
}

// Give changes the owner of a file or directory in the data directory dir to the owner of dir. Root
// often runs a command, and a hub with its own user cannot read root's files. A file with several
// hard links keeps its owner, because it may be another user's file.
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

// WriteFile writes a file of a data directory that only its owner may read, completely or not at
// all. The file may be a key, so no temporary copy is written elsewhere, for example in $TMPDIR.
// The file gets the directory's owner.
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

// GiveDirectory is Give for a new directory in dir. It does not follow symbolic links, because the
// owner of dir may have replaced the directory by one.
func GiveDirectory(path, dir string) error {
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(Give(d, dir), d.Close())
}
