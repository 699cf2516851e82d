package volume

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// Limits of a copied image, whose content is untrusted.
const (
	maxEntries = 250_000
	maxLevels  = 200  // nested directories
	maxTarget  = 4096 // bytes of a symbolic link, the kernel's limit
)

// An unpacking writes an image's files into a directory only: a name that leads out of it is an
// error. It writes no device nodes, pipes, sockets, file capabilities or set-user-ID bits.
type unpacking struct {
	root    *os.Root
	left    int64 // bytes that may still be written
	entries int
	owned   bool                   // set the owners of the image
	closed  map[string]fs.FileMode // modes of directories without write permission, set at the end
}

func (u *unpacking) put(h *tar.Header, data io.Reader) error {
	if h.Name == "" || strings.ContainsRune(h.Name+h.Linkname, 0) {
		return fmt.Errorf("the image has a file without a name: %.64q", h.Name)
	}
	name, err := inTree(h.Name)
	if err != nil || name == "." {
		return err
	}
	if u.entries++; u.entries > maxEntries {
		return fmt.Errorf("the image has more than %d files", maxEntries)
	}
	if strings.Count(name, "/") >= maxLevels {
		return fmt.Errorf("the image has more than %d nested directories", maxLevels)
	}
	if u.left -= onDisk(h.Size); h.Size < 0 || u.left < 0 {
		return fmt.Errorf("%.256q: %w", name, errNoRoom)
	}
	if err := u.write(name, h, data); err != nil {
		return fmt.Errorf("%.256q: %w", name, err)
	}
	return nil
}

// onDisk returns the disk space of a file with its inode.
func onDisk(size int64) int64 { return (size+4095)&^4095 + 512 }

// inTree converts an archive's name into a path below the root.
func inTree(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%.256q leads out of the image", name)
		}
	}
	return path.Clean(strings.TrimLeft(name, "/")), nil
}

func (u *unpacking) write(name string, h *tar.Header, data io.Reader) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeGNUSparse:
	default:
		return nil
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	old, err := u.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case old.IsDir() && h.Typeflag == tar.TypeDir:
		return u.dir(name, h)
	default: // removing a directory with content is an error
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return err
		}
		return u.dir(name, h)
	case tar.TypeSymlink:
		if len(h.Linkname) > maxTarget {
			return fmt.Errorf("the entry is a symbolic link of %d bytes, more than %d", len(h.Linkname), maxTarget)
		}
		if err := u.root.Symlink(h.Linkname, name); err != nil { // only the container follows the link, never the agent
			return err
		}
		return u.give(name, h)
	case tar.TypeLink:
		target, err := inTree(h.Linkname)
		if err != nil {
			return err
		}
		if info, err := u.root.Lstat(target); err != nil || info.IsDir() {
			return errors.Join(fmt.Errorf("the entry is a hard link to %.256q, which is not a file", h.Linkname), err)
		}
		return u.root.Link(target, name)
	}
	return u.file(name, h, data)
}

func (u *unpacking) file(name string, h *tar.Header, data io.Reader) (err error) {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.CopyN(f, data, h.Size); err != nil {
		return err
	}
	if err := u.give(name, h); err != nil {
		return err
	}
	if err := f.Chmod(h.FileInfo().Mode().Perm()); err != nil {
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

// dir sets a directory's owner and mode, but keeps it writable until end.
func (u *unpacking) dir(name string, h *tar.Header) error {
	mode := h.FileInfo().Mode().Perm()
	if mode&0o700 != 0o700 {
		u.closed[name] = mode
	} else {
		delete(u.closed, name)
	}
	return errors.Join(u.give(name, h), u.root.Chmod(name, mode|0o700))
}

func (u *unpacking) give(name string, h *tar.Header) error {
	if !u.owned {
		return nil
	}
	const most = 1<<32 - 2 // chown takes the largest value as "unchanged"
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > most || int64(h.Gid) > most {
		return fmt.Errorf("the owner %d:%d of the entry is not a valid id", h.Uid, h.Gid)
	}
	return u.root.Lchown(name, h.Uid, h.Gid)
}

// end sets the modes of the closed directories.
func (u *unpacking) end() error {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(u.closed))) { // children before parents
		if err := u.root.Chmod(name, u.closed[name]); err != nil {
			return err
		}
	}
	return nil
}
