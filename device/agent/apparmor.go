package agent

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/plan"
)

// unconfined is the engines' word for no profile.
const unconfined = "unconfined"

// enforcesAppArmor tells whether the kernel holds containers to AppArmor's profiles. As the
// kubelet the agent asks once: only another boot changes it.
func enforcesAppArmor(sys string) bool {
	b, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// appArmor is the profile for a container, which it names or its pod; "": the engine's own. Whoever names one says
// neither what is in it nor that it is loaded: both are the device owner's, who lists in a folder which of the kernel's
// profiles pods may have.
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
		return "", fmt.Errorf("cannot use AppArmor profile %q: %w: the device's owner loads it with apparmor_parser", name, err)
	}
	return name, nil
}

// loaded tells whether the kernel has a profile of that name: its list says "name (mode)" in each line.
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
