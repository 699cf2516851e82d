package volume

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/podspec"
)

const dataLink = "..data"

// writeFiles makes a directory contain exactly the given files, atomically like the kubelet: it
// writes them beside the old ones, and one rename of the link ..data shows the new ones. It does
// not write unchanged files, and never writes outside of the directory.
func writeFiles(dir *os.Root, files map[string]podspec.File, group int) error {
	shown, _ := dir.Readlink(dataLink) // empty: the link does not exist yet
	if shown == "" || !same(dir, shown, files) {
		var err error
		if shown, err = showFiles(dir, files, group); err != nil {
			return err
		}
	}
	return nameFiles(dir, files, shown) // also completes an interrupted update
}

// showFiles writes files beside the old ones, makes ..data point to them, and returns their
// directory.
func showFiles(dir *os.Root, files map[string]podspec.File, group int) (fresh string, err error) {
	fresh = "..files-" + strconv.FormatUint(rand.Uint64(), 36)
	if err := dir.Mkdir(fresh, 0o700); err != nil {
		return "", err
	}
	if err := fill(dir, fresh, files, group); err != nil {
		return "", errors.Join(err, dir.RemoveAll(fresh))
	}
	const tmp = dataLink + "_tmp"
	_ = dir.RemoveAll(tmp) // left over from a crash
	if err := dir.Symlink(fresh, tmp); err != nil {
		return "", err
	}
	return fresh, dir.Rename(tmp, dataLink)
}

// nameFiles links the shown files into the directory and removes all other names.
func nameFiles(dir *os.Root, files map[string]podspec.File, shown string) error {
	tops := map[string]bool{}
	for path := range files {
		top, _, _ := strings.Cut(path, "/")
		tops[top] = true
	}
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		keep := e.Name() == dataLink || e.Name() == shown || tops[e.Name()]
		if !keep {
			if err := dir.RemoveAll(e.Name()); err != nil {
				return err
			}
		}
	}
	for top := range tops {
		if err := dir.Symlink(filepath.Join(dataLink, top), top); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// fill writes files. It sets their modes regardless of the umask, so that containers without root
// can read them.
func fill(dir *os.Root, in string, files map[string]podspec.File, group int) error {
	for path, f := range files {
		full := filepath.Join(in, path)
		for up := filepath.Dir(full); up != in; up = filepath.Dir(up) {
			if err := dir.MkdirAll(up, 0o755); err != nil {
				return err
			}
			if err := dir.Chmod(up, 0o755); err != nil {
				return err
			}
		}
		if err := dir.WriteFile(full, f.Data, 0o600); err != nil {
			return err
		}
		mode := f.Mode
		if group >= 0 {
			mode |= mode & 0o400 >> 3 // the group may read what the owner may read
			if err := dir.Lchown(full, -1, group); err != nil {
				return err
			}
		}
		if err := dir.Chmod(full, mode); err != nil {
			return err
		}
	}
	return dir.Chmod(in, 0o755)
}

// same reports whether a directory contains exactly these files.
func same(dir *os.Root, in string, files map[string]podspec.File) bool {
	n := 0
	err := fs.WalkDir(dir.FS(), in, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		rel, err := filepath.Rel(in, path)
		if err != nil {
			return err
		}
		f, has := files[rel]
		if !has {
			return fs.ErrInvalid
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || info.Size() != int64(len(f.Data)) || info.Mode().Perm()&^0o040 != f.Mode&^0o040 {
			return fs.ErrInvalid
		}
		data, err := dir.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, f.Data) {
			return fs.ErrInvalid
		}
		return nil
	})
	return err == nil && n == len(files)
}

// writeVolume writes the files of a volume.
func writeVolume(root *os.Root, src podspec.Sources, v *corev1.Volume) error {
	files, err := src.Files(v)
	if err != nil {
		return err
	}
	name := volumePath(src.Pod.UID, v.Name)
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := root.Chmod(name, 0o755); err != nil { // Mkdir has applied the umask
		return err
	}
	dir, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	return errors.Join(writeFiles(dir, files, groupOf(src.Pod)), dir.Close())
}
