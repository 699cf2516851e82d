package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// maxOpen is the number of nested directories that are open while a tree is removed.
const maxOpen = 128

// removeTree removes a directory tree that a container has made, perhaps a hundred thousand levels
// deep. It moves directories below maxOpen levels to the top first, to save file descriptors. It
// follows no link out of the tree.
func removeTree(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return root.Remove(name)
	}
	top, err := root.Open(name)
	if err != nil {
		return err
	}
	t := removal{top: int(top.Fd())}
	if err := errors.Join(t.empty(top, maxOpen), top.Close()); err != nil {
		return err
	}
	return root.Remove(name)
}

type removal struct {
	top   int // file descriptor of the top directory
	moved int // number of directories moved to the top
}

// empty removes the content of a directory.
func (t *removal) empty(dir *os.File, room int) error {
	for {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) { // list again until empty, since removals may hide names from the listing
			if _, err := dir.Seek(0, io.SeekStart); err != nil {
				return err
			}
			if names, err = dir.Readdirnames(256); errors.Is(err, io.EOF) {
				return nil
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for _, name := range names {
			if err := t.remove(dir, name, room); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &fs.PathError{Op: "remove", Path: name, Err: err}
			}
		}
	}
}

// remove removes one name in a directory, or moves a directory to the top.
func (t *removal) remove(dir *os.File, name string, room int) error {
	at := int(dir.Fd())
	err := unix.Unlinkat(at, name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // for a directory: EISDIR on Linux, EPERM in POSIX
		return err
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY && err != unix.EEXIST {
		return err
	}
	if room == 0 {
		t.moved++
		return unix.Renameat(at, name, t.top, fmt.Sprintf(".moved-%d-%d", os.Getpid(), t.moved))
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), name)
	if err := errors.Join(t.empty(in, room-1), in.Close()); err != nil {
		return err
	}
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}
