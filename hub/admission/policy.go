package admission

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/shared/policy"
)

// mayRun refuses pods that the hub's policy does not allow, and malformed requests. A device checks
// its own policy again.
func (l *list) mayRun(spec *corev1.PodSpec, p *field.Path, s Settings) {
	if spec.SchedulerName != corev1.DefaultSchedulerName {
		l.forbidden(p.Child("schedulerName"), "is not supported: the hub is the only scheduler; omit it")
	}
	if c := spec.SecurityContext; c != nil {
		l.sysctls(c.Sysctls, p.Child("securityContext", "sysctls"))
	}
	for _, r := range s.Policy.Judge(spec, p) {
		l.forbidden(r.Field, refusal(r))
	}
}

var sysctlName = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)

func (l *list) sysctls(sysctls []corev1.Sysctl, p *field.Path) {
	for i, sysctl := range sysctls {
		at := p.Index(i).Child("name")
		switch {
		case slices.ContainsFunc(sysctls[:i], func(before corev1.Sysctl) bool { return before.Name == sysctl.Name }):
			l.duplicate(at, sysctl.Name)
		case !sysctlName.MatchString(sysctl.Name):
			l.invalid(at, sysctl.Name, "must be the name of a sysctl, such as net.ipv4.tcp_keepalive_time")
		}
	}
}

// flags are the hub's flags that set keys of the policy.
var flags = map[string]string{
	"privileged": "--allow-privileged", "allowNewPrivileges": "--allow-privileged", "unsafeSysctls": "--allow-privileged",
	"hostNetwork": "--allow-host-network", "hostPID": "--allow-host-pid",
	"capabilities": "--allowed-capabilities", "hostPaths": "--host-path-prefixes",
}

// refusal says why the policy refuses a field, and which setting would allow it.
func refusal(r policy.Refusal) string {
	if r.Allow == "" {
		return r.Why
	}
	key, _, _ := strings.Cut(r.Allow, ":")
	by := "a --policy with `" + r.Allow + "`"
	if flag := flags[key]; flag != "" {
		by = flag + ", or " + by
	}
	return r.Why + ": allowed only where the hub runs with " + by
}
