package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
)

// hasLiveVolumes tells whether a pod has files that follow what they are made of.
func hasLiveVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	})
}

// disk is where the volumes of pods are.
type disk struct {
	root   string // survives a reboot: emptyDir
	memory string // does not: emptyDir of medium Memory, secrets, config maps
}

func (d disk) dir(v *corev1.Volume, pod types.UID) string {
	root := d.memory
	if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
		root = d.root
	}
	return filepath.Join(root, "pods", string(pod), v.Name)
}

// clean removes everything of a pod.
func (d disk) clean(pod types.UID) error {
	if pod == "" || strings.ContainsAny(string(pod), "/\\") || pod == ".." || pod == "." {
		return fmt.Errorf("remove the volumes of pod %q: that is no uid", pod)
	}
	return errors.Join(os.RemoveAll(filepath.Join(d.root, "pods", string(pod))), os.RemoveAll(filepath.Join(d.memory, "pods", string(pod))))
}

// pods lists the pods that have volumes on the disk.
func (d disk) pods() []types.UID {
	var out []types.UID
	for _, root := range []string{d.root, d.memory} {
		entries, err := os.ReadDir(filepath.Join(root, "pods"))
		if err != nil {
			continue // there are none
		}
		for _, e := range entries {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out
}

// mounts prepares the volumes that a container mounts and says where they are.
func (d disk) mounts(src sources, c *corev1.Container, policy Policy) ([]engine.Mount, error) {
	var out []engine.Mount
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(src.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			return nil, fmt.Errorf("container %s mounts volume %q, which the pod does not have", c.Name, m.Name)
		}
		v := &src.pod.Spec.Volumes[i]
		source, readOnly, err := d.volume(src, v, policy)
		if err != nil {
			return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			_, values, err := src.environment(c)
			if err != nil {
				return nil, err
			}
			sub = expand(m.SubPathExpr, values)
		}
		if sub != "" {
			if source, err = within(source, sub, readOnly); err != nil {
				return nil, fmt.Errorf("subPath of volume %q: %w", v.Name, err)
			}
		}
		out = append(out, engine.Mount{Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly || readOnly})
	}
	return out, nil
}

// volume prepares one volume and returns its path on the device.
func (d disk) volume(src sources, v *corev1.Volume, policy Policy) (path string, readOnly bool, err error) {
	group := -1
	if s := src.pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		group = int(*s.FSGroup)
	}
	switch {
	case v.HostPath != nil:
		path, err = hostPath(v.HostPath, policy)
		return path, false, err
	case v.EmptyDir != nil:
		path = d.dir(v, src.pod.UID)
		if _, err := os.Stat(path); err == nil {
			return path, false, nil
		}
		if err := os.MkdirAll(path, 0o777); err != nil {
			return "", false, err
		}
		mode := fs.FileMode(0o777)
		if group >= 0 {
			mode |= fs.ModeSetgid
			if err := os.Chown(path, -1, group); err != nil {
				return "", false, err
			}
		}
		return path, false, os.Chmod(path, mode) // whatever the umask is
	}
	files, err := src.files(v)
	if err != nil {
		return "", false, err
	}
	path = d.dir(v, src.pod.UID)
	return path, true, writeFiles(path, files, group)
}

// refresh brings the files of a pod's volumes up to date.
func (d disk) refresh(src sources) error {
	var errs []error
	for i := range src.pod.Spec.Volumes {
		v := &src.pod.Spec.Volumes[i]
		if v.HostPath != nil || v.EmptyDir != nil {
			continue
		}
		if _, err := os.Stat(d.dir(v, src.pod.UID)); err != nil {
			continue // nothing mounts it yet
		}
		if _, _, err := d.volume(src, v, Policy{}); err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// within resolves a path inside a volume, making a directory where there is
// nothing. It may not lead out of the volume, by no symbolic link.
func within(root, sub string, readOnly bool) (string, error) {
	if filepath.IsAbs(sub) || slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("%q must be a relative path that stays in the volume", sub)
	}
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", err
	}
	full := filepath.Join(root, sub)
	if !readOnly {
		// os.Root refuses what leads outside, also while somebody changes links below us.
		r, err := os.OpenRoot(root)
		if err != nil {
			return "", err
		}
		_, statErr := r.Stat(sub)
		if errors.Is(statErr, fs.ErrNotExist) {
			statErr = r.MkdirAll(sub, 0o755)
		}
		_ = r.Close()
		if statErr != nil {
			return "", statErr
		}
	}
	real, err := filepath.EvalSymlinks(full)
	if err != nil {
		return "", err
	}
	if real != root && !strings.HasPrefix(real, root+string(filepath.Separator)) {
		return "", fmt.Errorf("%q leads out of the volume", sub)
	}
	return real, nil
}

// hostPath checks a path of the device and makes it where its type says so. What the
// policy allows is asked of where the path really leads.
func hostPath(h *corev1.HostPathVolumeSource, policy Policy) (string, error) {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	info, err := os.Stat(h.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if parent, e := filepath.EvalSymlinks(nearest(h.Path)); e != nil || !policy.reaches(parent) {
			return "", fmt.Errorf("hostPath %s does not exist, and making it is not allowed by this device's policy", h.Path)
		}
		switch kind {
		case corev1.HostPathDirectoryOrCreate, corev1.HostPathUnset: // engines differ in what they do with a missing one
			if err := os.MkdirAll(h.Path, 0o755); err != nil {
				return "", err
			}
		case corev1.HostPathFileOrCreate:
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return "", err
			}
			if err := f.Close(); err != nil {
				return "", err
			}
		}
		info, err = os.Stat(h.Path)
	}
	if err != nil {
		return "", fmt.Errorf("hostPath %s: %w", h.Path, err)
	}
	mode := info.Mode()
	ok := true
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		ok = mode.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		ok = mode.IsRegular()
	case corev1.HostPathSocket:
		ok = mode&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		ok = mode&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		ok = mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0
	}
	if !ok {
		return "", fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, kind)
	}
	real, err := filepath.EvalSymlinks(h.Path)
	if err != nil {
		return "", err
	}
	if !policy.AllowsPath(real) && !policy.reaches(real) {
		return "", fmt.Errorf("hostPath %s leads to %s, which this device's policy does not allow", h.Path, real)
	}
	return real, nil
}

// reaches tells whether an existing path lies below where an allowed prefix really
// is, or, for what is still to be made, above it.
func (p Policy) reaches(real string) bool {
	if p.AllowsPath(real) {
		return true
	}
	for _, prefix := range p.HostPaths {
		if r, err := filepath.EvalSymlinks(prefix); err == nil {
			if real == r || strings.HasPrefix(real, r+"/") {
				return true
			}
		} else if errors.Is(err, fs.ErrNotExist) && (prefix == real || strings.HasPrefix(prefix, strings.TrimSuffix(real, "/")+"/")) {
			return true // the prefix itself is still to be made
		}
	}
	return false
}

// nearest is the closest existing parent of a path.
func nearest(path string) string {
	for path != "/" && path != "." {
		path = filepath.Dir(path)
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return path
}
