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

// maxSeccomp bounds a profile: Docker's own has 15 kB.
const maxSeccomp = 256 << 10

// seccomp is the profile of the device owner's folder that a container, or its pod, names; nil:
// none.
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

// unconfined is the engines' word for no profile.
const unconfined = "unconfined"

// enforcesAppArmor tells whether the kernel holds containers to AppArmor's profiles. As the
// kubelet the agent asks once: only another boot changes it.
func enforcesAppArmor(sys string) bool {
	b, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// appArmor is the profile for a container, which it names or its pod; "": the engine's own. Whoever
// names one says neither what is in it nor that it is loaded: both are the device owner's, who
// lists in a folder which of the kernel's profiles pods may have.
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
	case p.Type == corev1.AppArmorProfileTypeUnconfined && !node.AppArmor: // there is nothing to be free of
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
			err = errors.New("it is no file")
		}
	}
	if err != nil {
		return "", fmt.Errorf("cannot use AppArmor profile %q: %w: the device's owner allows it by a file of that name in %s", name, err, folder)
	}
	if err := loaded(a.c.SysDir, name); err != nil {
		return "", fmt.Errorf("cannot use AppArmor profile %q: %w: the device's owner loads it with apparmor_parser", name,
			err)
	}
	return name, nil
}

// loaded tells whether the kernel has a profile of that name: its list says "name (mode)" in each
// line.
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

// runtimeOf is the engine's runtime for the containers of a pod that names a RuntimeClass; "": the
// engine's default. A runtime can give a container what the policy does not, such as a processor
// for graphics: beside the default a pod has only those that the device's owner allows.
func runtimeOf(allowed []string, info engine.Info, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	class, handler := *pod.Spec.RuntimeClassName, pod.Annotations[fleet.RuntimeHandlerAnnotation]
	switch {
	case handler == "":
		return "", fmt.Errorf("the hub did not say which runtime RuntimeClass %q names", class)
	case handler == info.DefaultRuntime:
		return "", nil
	case !slices.Contains(allowed, handler):
		return "", fmt.Errorf("RuntimeClass %q: the device's owner does not allow runtime %q: flotilla-device run "+
			"--runtimes names those that pods may have", class, handler)
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

// runtimeHandlers is what a node says of its runtimes, the default first; nil where there is no
// choice.
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
