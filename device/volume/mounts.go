package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/policy"
)

// A Mounts holds the mounts of a container while it starts.
type Mounts struct {
	List    []engine.Mount
	closing []func() error
}

// Close unmounts the binds that only the start needs.
func (m *Mounts) Close() error {
	var errs []error
	for _, f := range m.closing {
		errs = append(errs, f())
	}
	m.closing = nil
	return errors.Join(errs...)
}

// ErrSubPath means that the container's subPath is impossible in any state of the volume.
var ErrSubPath = errors.New("subPath")

// mountedBy returns the volume of a mount.
func mountedBy(src podspec.Sources, c *corev1.Container, m corev1.VolumeMount) (*corev1.Volume, error) {
	i := slices.IndexFunc(src.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	if i < 0 {
		return nil, fmt.Errorf("container %s mounts volume %q, which is not in the pod", c.Name, m.Name)
	}
	return &src.Pod.Spec.Volumes[i], nil
}

// notWritten means that a volume's files are not up to date.
type notWritten struct{ error }

// Unwrap implements errors.Unwrap.
func (e notWritten) Unwrap() error { return e.error }

// mount prepares one volume for a container. As with the kubelet, old files stay in use when new
// ones cannot be written, so a deleted secret does not end a running pod. Refresh reports the
// error.
func (d *Disk) mount(src podspec.Sources, v *corev1.Volume, owner policy.Document) (volumePlace, error) {
	p, err := d.volume(src, v, owner)
	if errors.As(err, &notWritten{}) {
		dir := d.Dir(v, src.Pod.UID)
		if _, e := os.Stat(filepath.Join(dir, dataLink)); e == nil {
			p.file, err = openPath(dir)
		}
	}
	if err != nil {
		return p, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
	}
	return p, nil
}

// SetUp prepares a container's volumes except images, which are pulled first.
func (d *Disk) SetUp(src podspec.Sources, c *corev1.Container, owner policy.Document) error {
	for _, m := range c.VolumeMounts {
		v, err := mountedBy(src, c, m)
		if err != nil {
			return err
		}
		if v.Image != nil {
			continue
		}
		p, err := d.mount(src, v, owner)
		if err == nil {
			err = p.file.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// PrepareMounts prepares a container's volumes and returns its mounts. The caller must close them,
// also after an error.
func (d *Disk) PrepareMounts(src podspec.Sources, c *corev1.Container, owner policy.Document) (*Mounts, error) {
	out := &Mounts{}
	for _, m := range c.VolumeMounts {
		v, err := mountedBy(src, c, m)
		if err != nil {
			return out, err
		}
		p, err := d.mount(src, v, owner)
		if err != nil {
			return out, err
		}
		out.closing = append(out.closing, p.file.Close)
		sub := m.SubPath
		if m.SubPathExpr != "" {
			_, values, err := src.Environment(c)
			if err != nil {
				return out, err
			}
			if sub, err = podspec.ExpandSubPath(m.SubPathExpr, values); err != nil {
				return out, fmt.Errorf("%w of volume %q: %w", ErrSubPath, v.Name, err)
			}
		}
		if sub != "" {
			p.file, err = openInside(p.file, sub, p.readOnly)
			if of := objectsOf(v); of != "" && errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s has no key for the path %q: add it there, or correct the subPath", of, sub)
			}
			if err != nil {
				return out, fmt.Errorf("%w of volume %q: %w", ErrSubPath, v.Name, err)
			}
			out.closing = append(out.closing, p.file.Close)
			p.fixed = p.fixed && p.readOnly
		}
		source, err := d.source(p, out)
		if err != nil {
			return out, fmt.Errorf("volume %q: %w", v.Name, err)
		}
		out.List = append(out.List, engine.Mount{Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly || p.readOnly})
	}
	return out, nil
}

// objectsOf names the objects from which a volume's files come; empty: the volume has no such
// files.
func objectsOf(v *corev1.Volume) string {
	var names []string
	secret := func(name string) { names = append(names, fmt.Sprintf("secret %q", name)) }
	configMap := func(name string) { names = append(names, fmt.Sprintf("configmap %q", name)) }
	switch {
	case v.Secret != nil:
		secret(v.Secret.SecretName)
	case v.ConfigMap != nil:
		configMap(v.ConfigMap.Name)
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.Secret != nil {
				secret(p.Secret.Name)
			} else if p.ConfigMap != nil {
				configMap(p.ConfigMap.Name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// source returns a path by which an engine reaches the found volume and nothing else.
func (d *Disk) source(p volumePlace, out *Mounts) (string, error) {
	if p.fixed {
		return pathOf(p.file)
	}
	if d.mounts.why != "" {
		return "", fmt.Errorf(
			"a subpath that containers can write is not mounted, since they could redirect it: %s",
			d.mounts.why)
	}
	path, release, err := d.mounts.bind(p.file)
	if err != nil {
		return "", err
	}
	out.closing = append(out.closing, release)
	return path, nil
}
