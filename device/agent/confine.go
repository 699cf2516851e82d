package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/fleet"
)

// maxSeccomp limits the size of a profile. Docker's default profile has 15 kB.
const maxSeccomp = 256 << 10

// seccomp reads the profile of a container or of its pod from the device owner's directory. It
// returns nil if neither has a profile.
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
		return nil, fmt.Errorf("cannot load seccomp profile %q: %w; to allow the profile, put it into %s on the device", name,
			err, folder)
	}
	return &engine.Seccomp{File: filepath.Join(folder, name), Text: text}, nil
}

// readBelow reads a profile inside a directory. A symbolic link cannot lead outside.
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
		return "", errors.Join(errors.New("it is not a regular file"), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSeccomp+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > maxSeccomp:
		return "", fmt.Errorf("it has more than %d bytes", maxSeccomp)
	case !json.Valid(b):
		return "", errors.New("it is not JSON")
	}
	return string(b), nil
}

// unconfined is the engines' name for running without a profile.
const unconfined = "unconfined"

// enforcesAppArmor reports whether the kernel enforces AppArmor. The agent checks it once, as the
// kubelet does, because only a reboot changes it.
func enforcesAppArmor(sys string) bool {
	b, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// appArmor returns the profile of a container or of its pod, or "" for the engine's default. The
// device's owner loads a profile into the kernel, and allows it by a file of that name in the
// directory Config.AppArmor.
func (a *Agent) appArmor(node plan.Facts, pod *corev1.Pod, c *corev1.Container) (string, error) {
	var p *corev1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		p = sc.AppArmorProfile
	}
	if sc := c.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		p = sc.AppArmorProfile
	}
	switch {
	case p == nil || p.Type == corev1.AppArmorProfileTypeRuntimeDefault:
		return "", nil
	case p.Type == corev1.AppArmorProfileTypeUnconfined && !node.AppArmor: // a kernel without AppArmor confines no process
		return "", nil
	case p.Type == corev1.AppArmorProfileTypeUnconfined:
		return unconfined, nil
	case p.LocalhostProfile == nil:
		return "", errors.New("its AppArmor profile has no name")
	}
	name, folder := *p.LocalhostProfile, a.c.AppArmor
	root, err := os.OpenRoot(folder)
	if err == nil {
		info, e := root.Stat(name)
		if err = errors.Join(e, root.Close()); err == nil && !info.Mode().IsRegular() {
			err = errors.New("it is not a regular file")
		}
	}
	if err != nil {
		return "", fmt.Errorf("cannot use AppArmor profile %q: %w; to allow the profile, create a file of that name "+
			"on the device in %s", name, err, folder)
	}
	if err := loaded(a.c.SysDir, name); err != nil {
		return "", fmt.Errorf("cannot use AppArmor profile %q: %w; to load the profile, use apparmor_parser on the "+
			"device", name, err)
	}
	return name, nil
}

// loaded returns an error if the kernel has not loaded the profile. Each line of the kernel's list
// is "name (mode)".
func loaded(sys, name string) error {
	f, err := os.Open(filepath.Join(sys, "kernel/security/apparmor/profiles"))
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if i := strings.LastIndex(line, " ("); i > 0 && line[:i] == name {
			return nil
		}
	}
	return errors.Join(lines.Err(), errors.New("it is not loaded into the kernel"))
}

// runtimeOf returns the engine's runtime for a pod's RuntimeClass, or "" for the engine's default.
// A runtime may bypass the device's policy (package policy), for example for a GPU, so the device's
// owner must allow every runtime except the default.
func runtimeOf(allowed []string, info engine.Info, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	class, handler := *pod.Spec.RuntimeClassName, pod.Annotations[fleet.RuntimeHandlerAnnotation]
	switch {
	case handler == "":
		return "", fmt.Errorf("the hub did not send the runtime of RuntimeClass %q", class)
	case handler == info.DefaultRuntime:
		return "", nil
	case !slices.Contains(allowed, handler):
		return "", fmt.Errorf("RuntimeClass %q: the device's owner does not allow runtime %q; to allow it, name it "+
			"in flotilla-device run --runtimes", class, handler)
	case info.Name == "podman":
		return "", fmt.Errorf(
			"RuntimeClass %q: Podman's API runs every container with the engine's default runtime, %s here, not with %q", class,
			info.DefaultRuntime, handler)
	case !slices.Contains(info.Runtimes, handler):
		return "", fmt.Errorf("RuntimeClass %q: the container engine has no runtime %q, it has %s", class, handler,
			strings.Join(info.Runtimes, ", "))
	}
	return handler, nil
}

// runtimeHandlers are the node's runtimes, the default first. The result is nil if the node has
// only the default.
func runtimeHandlers(allowed []string, info engine.Info) []corev1.NodeRuntimeHandler {
	var all []corev1.NodeRuntimeHandler
	for _, name := range info.Runtimes {
		if name != info.DefaultRuntime && info.Name != "podman" && slices.Contains(allowed, name) {
			all = append(all, corev1.NodeRuntimeHandler{Name: name})
		}
	}
	if all == nil {
		return nil
	}
	return append([]corev1.NodeRuntimeHandler{{}, {Name: info.DefaultRuntime}}, all...)
}
