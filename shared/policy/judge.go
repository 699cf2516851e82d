package policy

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A Refusal is one part of a pod that the document does not allow.
type Refusal struct {
	Field *field.Path
	Why   string
	Allow string // the line of the document that would allow it; empty if no line does
}

// Judge returns the parts of a pod that the document does not allow. p is the path of the spec in
// its object.
func (d Document) Judge(spec *corev1.PodSpec, p *field.Path) []Refusal {
	v := verdict{Document: d, hostNetwork: spec.HostNetwork}
	if spec.HostNetwork && !d.HostNetwork {
		v.no(p.Child("hostNetwork"), "hostNetwork: true", "pods may not use the device's network")
	}
	if spec.HostPID && !d.HostPID {
		v.no(p.Child("hostPID"), "hostPID: true", "pods may not see the device's processes")
	}
	for i, volume := range spec.Volumes {
		if h := volume.HostPath; h != nil && !d.AllowsPath(h.Path) {
			at, resource := p.Child("volumes").Index(i).Child("hostPath", "path"), resourceAt(h.Path)
			if resource != "" && !privileged(spec) {
				v.no(at, "", "%q is a device, which a container cannot open through a hostPath: remove the volume, and set "+
					"resources.limits of the container to {flotilla.dev/%s: 1}",
					h.Path, resource)
			} else {
				v.no(at, fmt.Sprintf("hostPaths: [%s]", h.Path), "%q %s", h.Path, isOutside(d.HostPaths))
			}
		}
		if im := volume.Image; im != nil {
			v.image(im.Reference, p.Child("volumes").Index(i).Child("image", "reference"))
		}
		if volume.PersistentVolumeClaim != nil && !d.LocalVolumes {
			v.no(p.Child("volumes").Index(i).Child("persistentVolumeClaim"), "localVolumes: true",
				"pods may not use persistent volumes on the device")
		}
	}
	if c := spec.SecurityContext; c != nil {
		at := p.Child("securityContext")
		v.profiles(c.SeccompProfile, c.AppArmorProfile, at)
		for i, s := range c.Sysctls {
			// As in Kubernetes, such a sysctl would change the device's own network.
			if name := strings.ReplaceAll(s.Name, "/", "."); spec.HostNetwork && strings.HasPrefix(name, "net.") {
				v.no(at.Child("sysctls").Index(i).Child("name"), "",
					"%s may not be set where hostNetwork is true: it would change the device's network", s.Name)
			} else if !d.AllowsSysctl(s.Name) {
				v.no(at.Child("sysctls").Index(i).Child("name"), fmt.Sprintf("unsafeSysctls: [%s]", s.Name),
					"%s is not one of the safe sysctls", s.Name)
			}
		}
	}
	for i := range spec.InitContainers {
		v.container(&spec.InitContainers[i], p.Child("initContainers").Index(i))
	}
	for i := range spec.Containers {
		v.container(&spec.Containers[i], p.Child("containers").Index(i))
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		v.container(&c, p.Child("ephemeralContainers").Index(i))
	}
	return v.refusals
}

// deviceNodes maps the prefixes of device paths to the resources that pods can request. For a bus,
// its number follows.
var deviceNodes = []struct{ path, resource string }{
	{"ttyUSB", "serial"}, {"ttyACM", "serial"}, {"ttyAMA", "serial"}, {"ttyS", "serial"}, {"serial", "serial"},
	{"gpiochip", "gpiochip"},
	{"i2c-", "i2c-"}, {"spidev", "spi"}, {"video", "video"}, {"v4l/", "video"}, {"dri/", "render"},
}

// resourceAt returns the resource of the device at a path, or "".
func resourceAt(name string) string {
	name, isDev := strings.CutPrefix(path.Clean(name), "/dev/")
	for _, d := range deviceNodes {
		switch rest, found := strings.CutPrefix(name, d.path); {
		case !found || !isDev || rest == "":
		case d.resource == "i2c-" || d.resource == "spi":
			bus, _, _ := strings.Cut(rest, ".")
			return d.resource + bus
		default:
			return d.resource
		}
	}
	return ""
}

// privileged reports whether a container of a pod is privileged, and so can open any device.
func privileged(spec *corev1.PodSpec) bool {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.SecurityContext != nil && is(c.SecurityContext.Privileged) {
			return true
		}
	}
	return false
}

// A verdict collects refusals.
type verdict struct {
	Document
	hostNetwork bool // the pod uses the device's network, so hostPort rules do not restrict it
	refusals    []Refusal
}

func (v *verdict) no(at *field.Path, allow, format string, args ...any) {
	v.refusals = append(v.refusals, Refusal{Field: at, Why: fmt.Sprintf(format, args...), Allow: allow})
}

func (v *verdict) container(c *corev1.Container, p *field.Path) {
	v.image(c.Image, p.Child("image"))
	v.asks(c, p)
	for i, port := range c.Ports {
		if port.HostPort != 0 && !v.hostNetwork && !v.AllowsHostPort(port.HostPort) {
			v.no(p.Child("ports").Index(i).Child("hostPort"), fmt.Sprintf("hostPorts: [%d]", port.HostPort),
				"port %d of the device %s", port.HostPort, isOutside(v.HostPorts))
		}
	}
	s := c.SecurityContext
	if s == nil {
		return
	}
	p = p.Child("securityContext")
	v.profiles(s.SeccompProfile, s.AppArmorProfile, p)
	if is(s.Privileged) && !v.Privileged {
		v.no(p.Child("privileged"), "privileged: true", "privileged containers are not allowed")
	}
	if is(s.AllowPrivilegeEscalation) && !is(s.Privileged) && !v.NewPrivileges {
		v.no(p.Child("allowPrivilegeEscalation"), "allowNewPrivileges: true", "containers may not gain privileges: omit it")
	}
	if s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount {
		v.no(p.Child("procMount"), "", "is not supported: use Default, or omit it")
	}
	if s.Capabilities == nil {
		return
	}
	for i, have := range s.Capabilities.Add {
		if name := Capability(string(have)); !v.AllowsCapability(name) {
			v.no(p.Child("capabilities", "add").Index(i), fmt.Sprintf("capabilities: [%s]", name),
				"capability %s is not allowed", have)
		}
	}
}

// asks checks the hosts that probes and hooks connect to. The agent connects from the device's
// network and the response appears in events. So only the pod itself is allowed, and not, for
// example, the device.
func (v *verdict) asks(c *corev1.Container, p *field.Path) {
	host := func(p *field.Path, h *corev1.HTTPGetAction, t *corev1.TCPSocketAction) {
		if h != nil && h.Host != "" && !v.HostNetwork {
			v.no(p.Child("httpGet", "host"), "hostNetwork: true",
				"the device would connect to %q from its own network: omit it to use the pod", h.Host)
		}
		if t != nil && t.Host != "" && !v.HostNetwork {
			v.no(p.Child("tcpSocket", "host"), "hostNetwork: true",
				"the device would connect to %q from its own network: omit it to use the pod", t.Host)
		}
	}
	probe := func(name string, b *corev1.Probe) {
		if b != nil {
			host(p.Child(name), b.HTTPGet, b.TCPSocket)
		}
	}
	probe("livenessProbe", c.LivenessProbe)
	probe("readinessProbe", c.ReadinessProbe)
	probe("startupProbe", c.StartupProbe)
	hook := func(name string, h *corev1.LifecycleHandler) {
		if h != nil {
			host(p.Child("lifecycle", name), h.HTTPGet, h.TCPSocket)
		}
	}
	if c.Lifecycle != nil {
		hook("postStart", c.Lifecycle.PostStart)
		hook("preStop", c.Lifecycle.PreStop)
	}
}

// profiles allows the engine's default profiles and the profiles of the device's owner, so that a
// pod is at least as confined as the owner has configured.
func (v *verdict) profiles(c *corev1.SeccompProfile, a *corev1.AppArmorProfile, p *field.Path) {
	switch at := p.Child("seccompProfile"); {
	case c == nil || c.Type == corev1.SeccompProfileTypeRuntimeDefault:
	case c.Type != corev1.SeccompProfileTypeLocalhost:
		v.no(at.Child("type"), "", "is not supported: use RuntimeDefault, which is the default, or Localhost")
	case c.LocalhostProfile == nil || !filepath.IsLocal(*c.LocalhostProfile) || *c.LocalhostProfile == ".":
		v.no(at.Child("localhostProfile"), "", "must be a path below the directory of the device's profiles, without ..")
	}
	switch at := p.Child("appArmorProfile"); {
	case a == nil || a.Type == corev1.AppArmorProfileTypeRuntimeDefault:
	case a.Type == corev1.AppArmorProfileTypeUnconfined && !v.Privileged:
		v.no(at.Child("type"), "privileged: true",
			"a container needs an AppArmor profile: use RuntimeDefault or Localhost, or omit it")
	case a.Type == corev1.AppArmorProfileTypeUnconfined:
	case a.Type != corev1.AppArmorProfileTypeLocalhost:
		v.no(at.Child("type"), "", "is not supported: use RuntimeDefault or Localhost, or omit it")
	case a.LocalhostProfile == nil || !filepath.IsLocal(*a.LocalhostProfile) || *a.LocalhostProfile == "." ||
		*a.LocalhostProfile == "unconfined":
		v.no(at.Child("localhostProfile"), "", "must be a name in the directory of the device's profiles, without ..")
	}
}

func is(b *bool) bool { return b != nil && *b }

// isOutside returns the end of a sentence about a value that is not in a list.
func isOutside(allowed []string) string {
	if len(allowed) == 0 {
		return "is not allowed"
	}
	return "is outside " + strings.Join(allowed, ", ")
}
