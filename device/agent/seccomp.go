package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

// maxSeccomp bounds a profile: Docker's own has 15 kB.
const maxSeccomp = 256 << 10

// seccomp is the profile of the device owner's folder that a container, or its pod, names; nil: none.
func seccomp(folder string, pod *corev1.Pod, c *corev1.Container) (*engine.Seccomp, error) {
	var p *corev1.SeccompProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		p = sc.SeccompProfile
	}
	if sc := c.SecurityContext; sc != nil && sc.SeccompProfile != nil {
		p = sc.SeccompProfile
	}
	if p == nil || p.Type != corev1.SeccompProfileTypeLocalhost || p.LocalhostProfile == nil {
		return nil, nil
	}
	name := *p.LocalhostProfile
	text, err := readBelow(folder, name)
	if err != nil {
		return nil, fmt.Errorf("cannot load seccomp profile %q: %w: the device's owner puts it into %s", name, err, folder)
	}
	return &engine.Seccomp{File: filepath.Join(folder, name), Text: text}, nil
}

// readBelow reads a profile that lies below a folder, wherever symbolic links lead.
func readBelow(folder, name string) (string, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(errors.New("it is no file"), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSeccomp+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > maxSeccomp:
		return "", fmt.Errorf("it has more than %d bytes", maxSeccomp)
	case !json.Valid(b):
		return "", errors.New("it is no JSON")
	}
	return string(b), nil
}
