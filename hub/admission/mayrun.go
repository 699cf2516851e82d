package admission

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// defaultCapabilities are what an engine gives a container that asks for nothing: a
// pod may name them without leave.
var defaultCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
	"NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// safeSysctls are those that Kubernetes calls safe: they act on the pod's own
// namespaces and can harm nobody else.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}

var sysctlName = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)

// mayRun refuses what reaches out of a container, unless a setting allows it. The
// device's own policy is asked again on the device.
func (l *list) mayRun(spec *corev1.PodSpec, p *field.Path, s Settings) {
	if spec.HostNetwork && !s.AllowHostNetwork {
		l.forbidden(p.Child("hostNetwork"), "pods may not use the device's network unless the hub runs with --allow-host-network")
	}
	if spec.HostPID && !s.AllowHostPID {
		l.forbidden(p.Child("hostPID"), "pods may not see the device's processes unless the hub runs with --allow-host-pid")
	}
	if spec.SchedulerName != corev1.DefaultSchedulerName {
		l.forbidden(p.Child("schedulerName"), "is not supported: the hub is the only scheduler, leave it out")
	}
	for i, v := range spec.Volumes {
		if v.HostPath != nil && !s.AllowsHostPath(v.HostPath.Path) {
			l.forbidden(p.Child("volumes").Index(i).Child("hostPath", "path"), fmt.Sprintf(
				"%q is outside %s: use a path inside, or run the hub with --host-path-prefixes", v.HostPath.Path, strings.Join(s.hostPathPrefixes(), ", ")))
		}
	}
	if c := spec.SecurityContext; c != nil {
		at := p.Child("securityContext")
		l.profiles(c.SeccompProfile, c.AppArmorProfile, at)
		for i, sysctl := range c.Sysctls {
			at := at.Child("sysctls").Index(i).Child("name")
			switch {
			case slices.ContainsFunc(c.Sysctls[:i], func(before corev1.Sysctl) bool { return before.Name == sysctl.Name }):
				l.duplicate(at, sysctl.Name)
			case !sysctlName.MatchString(sysctl.Name):
				l.invalid(at, sysctl.Name, "must be the name of a sysctl, such as net.ipv4.tcp_keepalive_time")
			case !slices.Contains(safeSysctls, strings.ReplaceAll(sysctl.Name, "/", ".")) && !s.AllowPrivileged:
				l.forbidden(at, "is not one of the safe sysctls: allowed only where the hub runs with --allow-privileged")
			}
		}
	}
	for i := range spec.InitContainers {
		l.containerMayRun(spec.InitContainers[i].SecurityContext, p.Child("initContainers").Index(i).Child("securityContext"), s)
	}
	for i := range spec.Containers {
		l.containerMayRun(spec.Containers[i].SecurityContext, p.Child("containers").Index(i).Child("securityContext"), s)
	}
}

func (l *list) containerMayRun(c *corev1.SecurityContext, p *field.Path, s Settings) {
	if c == nil {
		return
	}
	l.profiles(c.SeccompProfile, c.AppArmorProfile, p)
	if is(c.Privileged) && !s.AllowPrivileged {
		l.forbidden(p.Child("privileged"), "disallowed by cluster policy: allowed only where the hub runs with --allow-privileged")
	}
	if is(c.AllowPrivilegeEscalation) && !is(c.Privileged) && !s.AllowPrivileged {
		l.forbidden(p.Child("allowPrivilegeEscalation"), "containers never gain rights unless the hub runs with --allow-privileged: leave it out")
	}
	if c.ProcMount != nil && *c.ProcMount != corev1.DefaultProcMount {
		l.forbidden(p.Child("procMount"), "is not supported: use Default, or leave it out")
	}
	if c.Capabilities == nil {
		return
	}
	for i, have := range c.Capabilities.Add {
		if !s.AllowsCapability(string(have)) {
			l.forbidden(p.Child("capabilities", "add").Index(i), fmt.Sprintf("capability %s is not allowed unless the hub runs with --allowed-capabilities=%s",
				have, capability(string(have))))
		}
	}
}

// profiles knows the engine's own profiles only: the ones that are in force anyway.
func (l *list) profiles(c *corev1.SeccompProfile, a *corev1.AppArmorProfile, p *field.Path) {
	if c != nil && c.Type != corev1.SeccompProfileTypeRuntimeDefault {
		l.forbidden(p.Child("seccompProfile", "type"), "is not supported: use RuntimeDefault, which is in force without it too")
	}
	if a != nil && a.Type != corev1.AppArmorProfileTypeRuntimeDefault {
		l.forbidden(p.Child("appArmorProfile", "type"), "is not supported: use RuntimeDefault, which is in force without it too")
	}
}

// AllowsHostPath tells whether pods may mount a path of their device. It must be
// absolute and clean, and lie below one of the prefixes.
func (s Settings) AllowsHostPath(name string) bool {
	if !path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return false
	}
	if s.AllowPrivileged {
		return true
	}
	name = path.Clean(name)
	return slices.ContainsFunc(s.hostPathPrefixes(), func(prefix string) bool {
		prefix = path.Clean(prefix)
		return path.IsAbs(prefix) && (prefix == "/" || name == prefix || strings.HasPrefix(name, prefix+"/"))
	})
}

func (s Settings) hostPathPrefixes() []string {
	if s.HostPathPrefixes == nil {
		return []string{VolumesRoot}
	}
	return s.HostPathPrefixes
}

// AllowsCapability tells whether a container may add a capability.
func (s Settings) AllowsCapability(name string) bool {
	name = capability(name)
	if s.AllowPrivileged || slices.Contains(defaultCapabilities, name) {
		return true
	}
	return slices.ContainsFunc(s.AllowedCapabilities, func(allowed string) bool {
		return capability(allowed) == name || capability(allowed) == "ALL"
	})
}

func capability(name string) string { return strings.TrimPrefix(strings.ToUpper(name), "CAP_") }
