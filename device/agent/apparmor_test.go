package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/plan"
)

// aKernel is the /sys of a kernel with AppArmor on or off and with the given profiles loaded.
func aKernel(t *testing.T, enabled string, loaded ...string) string {
	t.Helper()
	sys := t.TempDir()
	for name, text := range map[string]string{
		"module/apparmor/parameters/enabled": enabled + "\n",
		"kernel/security/apparmor/profiles":  strings.Join(loaded, "\n") + "\n",
	} {
		path := filepath.Join(sys, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return sys
}

func localhost(name string) *corev1.AppArmorProfile {
	return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}

// A pod may use an AppArmor profile only if the device's owner allows it and the kernel has loaded
// it.
func TestAnAppArmorProfileOfTheDevicesOwner(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"web-strict", "not-loaded", "named with (words)", "a.b"} {
		must(t, os.WriteFile(filepath.Join(folder, name), nil, 0o644))
	}
	must(t, os.Mkdir(filepath.Join(folder, "dir"), 0o755))
	outside := filepath.Join(t.TempDir(), "docker-default")
	must(t, os.WriteFile(outside, nil, 0o644))
	must(t, os.Symlink(outside, filepath.Join(folder, "docker-default")))
	sys := aKernel(t, "Y", "docker-default (enforce)", "web-strict (enforce)", "dir (enforce)", "lxc (unconfined)",
		"named with (words) (complain)", "web-strict//child (enforce)")
	plain, free := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
		&corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	for name, c := range map[string]struct {
		pod, container *corev1.AppArmorProfile
		off            bool
		want, err      string
	}{
		"no profile requested":                           {},
		"RuntimeDefault":                                 {pod: plain},
		"a profile of the pod":                           {pod: localhost("web-strict"), want: "web-strict"},
		"a profile of the container":                     {container: localhost("web-strict"), want: "web-strict"},
		"the container's profile overrides the pod's":    {pod: localhost("web-strict"), container: plain},
		"Unconfined":                                     {container: free, want: "unconfined"},
		"Unconfined without AppArmor":                    {container: free, off: true},
		"a name with spaces":                             {pod: localhost("named with (words)"), want: "named with (words)"},
		"an allowed profile that is not loaded":          {pod: localhost("not-loaded"), err: `cannot use AppArmor profile "not-loaded": it is not loaded into the kernel; to load the profile, use apparmor_parser on the device`},
		"a loaded profile that the owner does not allow": {pod: localhost("lxc"), err: "no such file or directory; to allow the profile, create a file of that name on the device in " + folder},
		"a prefix of an allowed name":                    {pod: localhost("web-stric"), err: "no such file or directory"},
		"a directory in place of the file":               {pod: localhost("dir"), err: "it is not a regular file"},
		"an allowing file that is a link":                {pod: localhost("docker-default"), err: "path escapes from parent"},
		"a dot is not a wildcard":                        {pod: localhost("a.b"), err: "it is not loaded"},
		"a profile without a name":                       {pod: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost}, err: "has no name"},
	} {
		t.Run(name, func(t *testing.T) {
			p := makePod("web", "wait")
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: c.pod}
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: c.container}
			a := &Agent{c: Config{AppArmor: folder, SysDir: sys}}
			got, err := a.appArmor(plan.Facts{AppArmor: !c.off}, &p, &p.Spec.Containers[0])
			if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("the profile is %q, error %v; want %q, error %q", got, err, c.want, c.err)
			}
		})
	}
	if !enforcesAppArmor(sys) || enforcesAppArmor(aKernel(t, "N")) || enforcesAppArmor(t.TempDir()) {
		t.Error("enforcesAppArmor ignores the kernel's setting")
	}
}

// As with the kubelet, a pod with any AppArmor profile is rejected if the kernel does not enforce
// AppArmor.
func TestAPodThatRequiresAppArmorIsRejectedWithoutIt(t *testing.T) {
	for name, c := range map[string]struct {
		enabled string
		p       *corev1.AppArmorProfile
		phase   corev1.PodPhase
		reason  string
	}{
		"a profile, kernel without AppArmor":      {"N", localhost("web-strict"), corev1.PodFailed, "AppArmor"},
		"RuntimeDefault, kernel without AppArmor": {"N", &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}, corev1.PodFailed, "AppArmor"},
		"Unconfined, kernel without AppArmor":     {"N", &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}, corev1.PodRunning, ""},
		"no profile, kernel without AppArmor":     {"N", nil, corev1.PodRunning, ""},
		"RuntimeDefault, kernel with AppArmor":    {"Y", &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}, corev1.PodRunning, ""},
		"a loaded profile":                        {"Y", localhost("web-strict"), corev1.PodRunning, ""},
		"a profile that is not loaded":            {"Y", localhost("other"), corev1.PodPending, ""},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			must(t, os.WriteFile(filepath.Join(folder, "web-strict"), nil, 0o644))
			sys := aKernel(t, c.enabled, "web-strict (enforce)")
			bubble(t, func(t *testing.T, d *device) {
				d.end()
				d.config.AppArmor, d.config.SysDir = folder, sys
				d.config.Policy.Privileged = true
				d.start()
				p := makePod("web", "wait")
				p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: c.p}
				d.desire(1, p)
				time.Sleep(2 * time.Second)
				st := d.wantPhase("web", c.phase, c.reason)
				if c.reason != "" && st.Message != "Cannot enforce AppArmor: AppArmor is not enabled on the host" {
					t.Errorf("the pod's message is %q, want that AppArmor is not enabled", st.Message)
				}
				if c.phase == corev1.PodPending {
					if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerError" ||
						!strings.Contains(w.Message, `cannot use AppArmor profile "other"`) {
						t.Errorf("the container's state is %v, want that the profile cannot be used", w)
					}
				}
			})
		})
	}
}
