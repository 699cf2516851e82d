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

// Pods write into volumes while others mount what is in them. A path that was
// checked and is opened again afterwards may lead elsewhere by then: so a path below a
// volume is walked once, name by name, each from the descriptor of the one before it
// and none through a symbolic link, and what is mounted is the descriptor at its end.
// This is the kubelet's way (pkg/volume/util/subpath). It is what openat2's
// RESOLVE_BENEATH|RESOLVE_NO_SYMLINKS do, on every kernel and below every filter.

// errMoving says that a path has changed between two looks at it.
var errMoving = errors.New("somebody changes it while it is being mounted")

// hold opens a path that only the device's owner and the agent can change, as a
// descriptor that can be walked from, mounted and looked at, and not read.
func hold(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// pathOf is where what a descriptor holds is now; for people, and to begin with.
func pathOf(f *os.File) (string, error) { return os.Readlink(viaProc(f)) }

// viaProc is a name of what a descriptor holds that nobody can turn elsewhere.
func viaProc(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// A making says what to make of a path that is not there; nil: nothing.
type making struct {
	mode fs.FileMode // of the directories
	file bool        // the last name is a file
}

// walk opens what a path below a directory names, making what is missing. A
// symbolic link on it, or in its place, is an error: see follow.
func walk(root *os.File, rel string, make *making) (*os.File, error) {
	at, err := unix.Openat(int(root.Fd()), ".", unix.O_PATH|unix.O_CLOEXEC, 0)
	if rel == "." {
		at, err = unix.Dup(int(root.Fd())) // it may be a file
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
		next, err := enter(cur, name, make, i == len(names)-1)
		if err := errors.Join(err, cur.Close()); err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

// enter takes one step of a walk.
func enter(dir *os.File, name string, make *making, last bool) (*os.File, error) {
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
		err = fmt.Errorf("%s is a symbolic link that was none a moment ago: %w", path, errMoving)
	case !last && !info.IsDir():
		err = &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	case made && info.IsDir():
		err = os.Chmod(viaProc(f), make.mode) // whatever the umask is
	case made && info.Mode().IsRegular():
		err = os.Chmod(viaProc(f), 0o644)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// follow says where a path leads by the symbolic links on it, as it is now: a hint,
// which walk does not have to believe. What is missing at its end is left as it is.
func follow(path string) (string, error) {
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
			return "", fmt.Errorf("%s is a symbolic link that leads nowhere", path)
		}
		path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest)
	}
}

// below is the way from one clean path to another at it or beneath it.
func below(dir, path string) (rel string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && (rel == "." || filepath.IsLocal(rel))
}

// within opens a path inside a volume, making directories with the volume's own mode
// where there is nothing, as the kubelet does. Links lead where they lead inside the
// volume, and out of it they do not lead.
func within(volume *os.File, sub string, readOnly bool) (*os.File, error) {
	if !filepath.IsLocal(sub) {
		return nil, fmt.Errorf("%q must be a relative path that stays in the volume", sub)
	}
	root, err := pathOf(volume)
	if err != nil {
		return nil, err
	}
	real, err := follow(filepath.Join(root, sub))
	if err != nil {
		return nil, err
	}
	rel, ok := below(root, real)
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
	return walk(volume, rel, &making{mode: info.Mode() & (fs.ModePerm | fs.ModeSetgid)})
}
