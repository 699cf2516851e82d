package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A file is one file of a config map, secret, downward API or projected volume.
type file struct {
	data []byte
	mode fs.FileMode
}

const defaultFileMode = 0o644

func modeOr(m *int32, def fs.FileMode) fs.FileMode {
	if m == nil {
		return def
	}
	return fs.FileMode(*m) & fs.ModePerm
}

// files computes what a volume should contain.
func (s sources) files(v *corev1.Volume) (map[string]file, error) {
	out := map[string]file{}
	var err error
	switch {
	case v.ConfigMap != nil:
		err = s.addConfigMap(out, v.ConfigMap.Name, v.ConfigMap.Items, isTrue(v.ConfigMap.Optional), modeOr(v.ConfigMap.DefaultMode, defaultFileMode))
	case v.Secret != nil:
		err = s.addSecret(out, v.Secret.SecretName, v.Secret.Items, isTrue(v.Secret.Optional), modeOr(v.Secret.DefaultMode, defaultFileMode))
	case v.DownwardAPI != nil:
		err = s.addDownward(out, v.DownwardAPI.Items, modeOr(v.DownwardAPI.DefaultMode, defaultFileMode))
	case v.Projected != nil:
		mode := modeOr(v.Projected.DefaultMode, defaultFileMode)
		for _, p := range v.Projected.Sources {
			switch {
			case p.ConfigMap != nil:
				err = s.addConfigMap(out, p.ConfigMap.Name, p.ConfigMap.Items, isTrue(p.ConfigMap.Optional), mode)
			case p.Secret != nil:
				err = s.addSecret(out, p.Secret.Name, p.Secret.Items, isTrue(p.Secret.Optional), mode)
			case p.DownwardAPI != nil:
				err = s.addDownward(out, p.DownwardAPI.Items, mode)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return out, err
}

func (s sources) addConfigMap(out map[string]file, name string, items []corev1.KeyToPath, optional bool, mode fs.FileMode) error {
	m, err := s.configMap(name)
	if err != nil {
		return err
	}
	if m == nil {
		return missing(optional, "configmap %q not found", name)
	}
	return addItems(out, "configmap "+name, configData(m), items, optional, mode)
}

func (s sources) addSecret(out map[string]file, name string, items []corev1.KeyToPath, optional bool, mode fs.FileMode) error {
	m, err := s.secret(name)
	if err != nil {
		return err
	}
	if m == nil {
		return missing(optional, "secret %q not found", name)
	}
	return addItems(out, "secret "+name, secretData(m), items, optional, mode)
}

func addItems(out map[string]file, what string, data map[string][]byte, items []corev1.KeyToPath, optional bool, mode fs.FileMode) error {
	if len(items) == 0 {
		for k, v := range data {
			if err := addFile(out, k, v, mode); err != nil {
				return err
			}
		}
		return nil
	}
	for _, it := range items {
		v, has := data[it.Key]
		if !has {
			if optional {
				continue
			}
			return fmt.Errorf("%s references non-existent key: %s", what, it.Key)
		}
		if err := addFile(out, it.Path, v, modeOr(it.Mode, mode)); err != nil {
			return err
		}
	}
	return nil
}

func (s sources) addDownward(out map[string]file, items []corev1.DownwardAPIVolumeFile, mode fs.FileMode) error {
	for _, it := range items {
		var v string
		var err error
		switch {
		case it.FieldRef != nil:
			v, err = s.field(it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			c := specOf(s.pod, it.ResourceFieldRef.ContainerName)
			if c == nil {
				return fmt.Errorf("downward API file %s: the pod has no container %q", it.Path, it.ResourceFieldRef.ContainerName)
			}
			v, err = s.resource(c, it.ResourceFieldRef)
		}
		if err != nil {
			return fmt.Errorf("downward API file %s: %w", it.Path, err)
		}
		if err := addFile(out, it.Path, []byte(v), modeOr(it.Mode, mode)); err != nil {
			return err
		}
	}
	return nil
}

// addFile refuses paths that would lead out of the volume or into its own workings.
func addFile(out map[string]file, path string, data []byte, mode fs.FileMode) error {
	if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") || slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("file path %q must be relative, must not begin with two dots and must not lead out of the volume", path)
	}
	out[filepath.Clean(path)] = file{data, mode}
	return nil
}

const dataLink = "..data"

// writeFiles makes a directory hold exactly the files, all at once, as the kubelet
// does: they are written beside the old ones, and then one rename of the link
// ..data shows them all. A program sees either the old set or the new one. Nothing is
// written where nothing has changed, and nothing outside of the directory, whatever
// somebody has put into it.
func writeFiles(dir *os.Root, files map[string]file, group int) error {
	shown, _ := dir.Readlink(dataLink) // "" where there is none yet
	if shown == "" || !same(dir, shown, files) {
		var err error
		if shown, err = showFiles(dir, files, group); err != nil {
			return err
		}
	}
	return nameFiles(dir, files, shown) // also where an agent was ended before it had done that
}

// showFiles writes files beside the old ones, shows them, and returns where they are.
func showFiles(dir *os.Root, files map[string]file, group int) (fresh string, err error) {
	fresh = "..files-" + strconv.FormatUint(rand.Uint64(), 36)
	if err := dir.Mkdir(fresh, 0o700); err != nil {
		return "", err
	}
	if err := fill(dir, fresh, files, group); err != nil {
		return "", errors.Join(err, dir.RemoveAll(fresh))
	}
	const tmp = dataLink + "_tmp"
	_ = dir.RemoveAll(tmp) // left over of a crash
	if err := dir.Symlink(fresh, tmp); err != nil {
		return "", err
	}
	return fresh, dir.Rename(tmp, dataLink)
}

// nameFiles gives the files that are shown their names in the directory, and takes all others away.
func nameFiles(dir *os.Root, files map[string]file, shown string) error {
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

// fill writes files. Modes are set whatever the umask is: a container that does not
// run as root reads what its pod lets everybody read.
func fill(dir *os.Root, in string, files map[string]file, group int) error {
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
		if err := dir.WriteFile(full, f.data, 0o600); err != nil {
			return err
		}
		mode := f.mode
		if group >= 0 {
			mode |= mode & 0o400 >> 3 // the group reads what the owner reads
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

// same tells whether a directory holds exactly these files.
func same(dir *os.Root, in string, files map[string]file) bool {
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
		if !info.Mode().IsRegular() || info.Size() != int64(len(f.data)) || info.Mode().Perm()&^0o040 != f.mode&^0o040 {
			return fs.ErrInvalid
		}
		data, err := dir.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, f.data) {
			return fs.ErrInvalid
		}
		return nil
	})
	return err == nil && n == len(files)
}
