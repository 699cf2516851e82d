package podspec

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A File is one file of a config map, secret, downward API or projected volume.
type File struct {
	Data []byte
	Mode fs.FileMode
}

const defaultFileMode = 0o644

func modeOr(m *int32, def fs.FileMode) fs.FileMode {
	if m == nil {
		return def
	}
	return fs.FileMode(*m) & fs.ModePerm
}

// Files returns the files of a volume.
func (s Sources) Files(v *corev1.Volume) (map[string]File, error) {
	out := map[string]File{}
	var err error
	switch {
	case v.ConfigMap != nil:
		err = s.addConfigMap(out, v.ConfigMap.Name, v.ConfigMap.Items, IsTrue(v.ConfigMap.Optional),
			modeOr(v.ConfigMap.DefaultMode, defaultFileMode))
	case v.Secret != nil:
		err = s.addSecret(out, v.Secret.SecretName, v.Secret.Items, IsTrue(v.Secret.Optional),
			modeOr(v.Secret.DefaultMode, defaultFileMode))
	case v.DownwardAPI != nil:
		err = s.addDownward(out, v.DownwardAPI.Items, modeOr(v.DownwardAPI.DefaultMode, defaultFileMode))
	case v.Projected != nil:
		mode := modeOr(v.Projected.DefaultMode, defaultFileMode)
		for _, p := range v.Projected.Sources {
			switch {
			case p.ConfigMap != nil:
				err = s.addConfigMap(out, p.ConfigMap.Name, p.ConfigMap.Items, IsTrue(p.ConfigMap.Optional), mode)
			case p.Secret != nil:
				err = s.addSecret(out, p.Secret.Name, p.Secret.Items, IsTrue(p.Secret.Optional), mode)
			case p.DownwardAPI != nil:
				err = s.addDownward(out, p.DownwardAPI.Items, mode)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if err != nil {
		return nil, err
	}
	size := 0
	for _, f := range out {
		size += len(f.Data)
	}
	if size > maxVolumeSize {
		return nil, fmt.Errorf("the volume's files have %d bytes, more than the limit of %d", size, maxVolumeSize)
	}
	return out, nil
}

func (s Sources) addConfigMap(out map[string]File, name string, items []corev1.KeyToPath, optional bool,
	mode fs.FileMode) error {
	m, err := s.configMap(name)
	if err != nil {
		return err
	}
	if m == nil {
		return missing(optional, "configmap %q not found", name)
	}
	return addItems(out, "configmap "+name, configData(m), items, optional, mode)
}

func (s Sources) addSecret(out map[string]File, name string, items []corev1.KeyToPath, optional bool,
	mode fs.FileMode) error {
	m, err := s.Secret(name)
	if err != nil {
		return err
	}
	if m == nil {
		return missing(optional, "secret %q not found", name)
	}
	return addItems(out, "secret "+name, SecretData(m), items, optional, mode)
}

func addItems(out map[string]File, what string, data map[string][]byte, items []corev1.KeyToPath, optional bool,
	mode fs.FileMode) error {
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

func (s Sources) addDownward(out map[string]File, items []corev1.DownwardAPIVolumeFile, mode fs.FileMode) error {
	for _, it := range items {
		var v string
		var err error
		switch {
		case it.FieldRef != nil:
			v, err = s.field(it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			c := Find(s.Pod, it.ResourceFieldRef.ContainerName)
			if c == nil {
				return fmt.Errorf("downward API file %s: container %q not found in the pod", it.Path,
					it.ResourceFieldRef.ContainerName)
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

// addFile adds a file. It refuses paths that lead out of the volume or to its internal names.
func addFile(out map[string]File, path string, data []byte, mode fs.FileMode) error {
	if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") || slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("file path %q must be relative, must not begin with two dots and must not lead out of the volume",
			path)
	}
	out[filepath.Clean(path)] = File{data, mode}
	return nil
}
