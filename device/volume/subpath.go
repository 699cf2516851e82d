package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Pods write into volumes while other containers mount paths inside them. A checked path that is
// opened again may lead elsewhere. So a path is walked once: each name is opened from the previous
// directory's descriptor, without following links, and the last descriptor is mounted, as in the
// kubelet (pkg/volume/util/subpath). That equals openat2 with RESOLVE_BENEATH|RESOLVE_NO_SYMLINKS,
// but works with every kernel and seccomp filter.

// errMoving means that a path has changed between its resolution and its walk.
var errMoving = errors.New("the path is changing while it is mounted")

// openPath opens a path that only the device's owner and the agent can change, with O_PATH.
func openPath(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// pathOf returns the current path of an open file.
func pathOf(f *os.File) (string, error) { return os.Readlink(viaProc(f)) }

// viaProc returns a path of an open file that cannot be redirected.
func viaProc(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// A creation says how to create a missing path; nil: do not create it.
type creation struct {
	mode fs.FileMode // mode of new directories
	file bool        // the last name is a file
}

// walk opens a path below a directory, and creates missing parts if make is not nil. A symbolic
// link is an error; the caller resolves links first.
func walk(root *os.File, rel string, make *creation) (*os.File, error) {
	at, err := unix.Openat(int(root.Fd()), ".", unix.O_PATH|unix.O_CLOEXEC, 0)
	if rel == "." {
		at, err = unix.Dup(int(root.Fd())) // root may be a file
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root.Name(), Err: err}
	}
	cur := os.NewFile(uintptr(at), root.Name())
	if rel == "." {
		return cur, nil
	}
	if !filepath.IsLocal(rel) {
		return nil, errors.Join(fmt.Errorf("%q must be a relative path that stays in the volume", rel), cur.Close())
	}
	names := strings.Split(filepath.Clean(rel), "/")
	for i, name := range names {
		next, err := openName(cur, name, make, i == len(names)-1)
		if err := errors.Join(err, cur.Close()); err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

// openName opens one name of a walk.
func openName(dir *os.File, name string, make *creation, last bool) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	wrong := func(op string, err error) (*os.File, error) { return nil, &fs.PathError{Op: op, Path: path, Err: err} }
	open := func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	fd, err := open()
	made := false
	if errors.Is(err, fs.ErrNotExist) && make != nil {
		if made = true; last && make.file {
			var f int
			if f, err = unix.Openat(int(dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC,
				0o600); err == nil {
				err = unix.Close(f)
			}
		} else {
			err = unix.Mkdirat(int(dir.Fd()), name, 0o700)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return wrong("make", err)
		}
		made = err == nil
		fd, err = open()
	}
	if err != nil {
		return wrong("open", err)
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		err = fmt.Errorf("%s has just become a symbolic link: %w", path, errMoving)
	case !last && !info.IsDir():
		err = &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	case made && info.IsDir():
		err = os.Chmod(viaProc(f), make.mode) // Mkdir or open has applied the umask
	case made && info.Mode().IsRegular():
		err = os.Chmod(viaProc(f), 0o644)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// resolveLinks resolves the symbolic links of a path; walk does not rely on the result. A missing
// last part stays.
func resolveLinks(path string) (string, error) {
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || path == "/" {
			return "", err
		}
		if _, e := os.Lstat(path); e == nil {
			return "", fmt.Errorf("%s is a broken symbolic link", path)
		}
		path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest)
	}
}

// relativeTo returns the relative path from dir to path; if ok is false, path is not below dir.
func relativeTo(dir, path string) (rel string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && (rel == "." || filepath.IsLocal(rel))
}

// openInside opens a path inside a volume, and creates missing directories with the volume's mode,
// like the kubelet. Links may lead only inside the volume.
func openInside(volume *os.File, sub string, readOnly bool) (*os.File, error) {
	if !filepath.IsLocal(sub) {
		return nil, fmt.Errorf("%q must be a relative path that stays in the volume", sub)
	}
	root, err := pathOf(volume)
	if err != nil {
		return nil, err
	}
	real, err := resolveLinks(filepath.Join(root, sub))
	if err != nil {
		return nil, err
	}
	rel, ok := relativeTo(root, real)
	if !ok {
		return nil, fmt.Errorf("%q leads out of the volume", sub)
	}
	if readOnly {
		return walk(volume, rel, nil)
	}
	info, err := volume.Stat()
	if err != nil {
		return nil, err
	}
	return walk(volume, rel, &creation{mode: info.Mode() & (fs.ModePerm | fs.ModeSetgid)})
}
