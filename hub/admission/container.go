package admission

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/shared/policy"
)

// containers checks all containers of a pod spec. volumes are the volume names that they may mount.
func (l *list) containers(s *corev1.PodSpec, volumes map[string]bool, p *field.Path, of specOwner) {
	if len(s.Containers) == 0 {
		l.required(p.Child("containers"), "")
	}
	names := map[string]bool{}
	unique := func(p *field.Path, name string) {
		if name != "" && names[name] {
			l.duplicate(p.Child("name"), name)
		}
		names[name] = true
	}
	taken := map[string]bool{} // host ports; those of init containers do not conflict, as they run one at a time
	for i := range s.Containers {
		c, at := &s.Containers[i], p.Child("containers").Index(i)
		l.container(c, volumes, at, of)
		unique(at, c.Name)
		l.hostPorts(c, s.HostNetwork, taken, at, of)
		l.restartPolicy(c, at)
		l.probes(c, at)
		l.lifecycle(c.Lifecycle, s.TerminationGracePeriodSeconds, at.Child("lifecycle"))
		l.resizePolicy(c, s.RestartPolicy, false, at.Child("resizePolicy"))
	}
	for i := range s.InitContainers {
		c, at := &s.InitContainers[i], p.Child("initContainers").Index(i)
		l.container(c, volumes, at, of)
		unique(at, c.Name)
		l.hostPorts(c, s.HostNetwork, map[string]bool{}, at, of)
		l.restartPolicy(c, at)
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		l.resizePolicy(c, s.RestartPolicy, !sidecar, at.Child("resizePolicy"))
		if sidecar {
			l.probes(c, at)
			l.lifecycle(c.Lifecycle, s.TerminationGracePeriodSeconds, at.Child("lifecycle"))
			continue
		}
		if c.Lifecycle != nil {
			l.forbidden(at.Child("lifecycle"), "may not be set for init containers without restartPolicy=Always")
		}
		l.noProbe(c.LivenessProbe, at.Child("livenessProbe"))
		l.noProbe(c.ReadinessProbe, at.Child("readinessProbe"))
		l.noProbe(c.StartupProbe, at.Child("startupProbe"))
	}
	for i := range s.EphemeralContainers {
		c, at := &s.EphemeralContainers[i], p.Child("ephemeralContainers").Index(i)
		l.container(asContainer(c), volumes, at, of)
		unique(at, c.Name)
		l.ephemeral(c, s, at)
	}
}

func (l *list) noProbe(b *corev1.Probe, p *field.Path) {
	if b != nil {
		l.forbidden(p, "may not be set for init containers without restartPolicy=Always")
	}
}

func (l *list) container(c *corev1.Container, volumes map[string]bool, p *field.Path, of specOwner) {
	if c.Name == "" {
		l.required(p.Child("name"), "")
	} else {
		label(l, p.Child("name"), c.Name)
	}
	switch {
	case c.Image == "":
		l.required(p.Child("image"), "")
	case of == ofPod && strings.TrimSpace(c.Image) != c.Image:
		l.invalid(p.Child("image"), c.Image, "must not have leading or trailing whitespace")
	}
	oneOf(l, p.Child("imagePullPolicy"), c.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	oneOf(l, p.Child("terminationMessagePolicy"), c.TerminationMessagePolicy, corev1.TerminationMessageReadFile,
		corev1.TerminationMessageFallbackToLogsOnError)
	if why := policy.MountPath(c.TerminationMessagePath); c.TerminationMessagePath != "" && why != "" {
		l.invalid(p.Child("terminationMessagePath"), c.TerminationMessagePath, why)
	}
	if why := policy.WorkingDir(c.WorkingDir); why != "" {
		l.invalid(p.Child("workingDir"), c.WorkingDir, why)
	}
	l.ports(c.Ports, p.Child("ports"))
	l.env(c.Env, p.Child("env"))
	l.envFrom(c.EnvFrom, p.Child("envFrom"))
	l.mounts(c.VolumeMounts, volumes, p.Child("volumeMounts"))
	l.resources(c.Resources, p.Child("resources"))
	if sc := c.SecurityContext; sc != nil {
		at := p.Child("securityContext")
		l.ids(sc.RunAsUser, sc.RunAsGroup, at)
		l.appArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))
		if is(sc.Privileged) && sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
			l.invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
	}
}

func is(b *bool) bool { return b != nil && *b }

func (l *list) ports(ports []corev1.ContainerPort, p *field.Path) {
	names := map[string]bool{}
	for i, port := range ports {
		at := p.Index(i)
		if port.Name != "" {
			l.each(at.Child("name"), port.Name, validation.IsValidPortName(port.Name))
			if names[port.Name] {
				l.duplicate(at.Child("name"), port.Name)
			}
			names[port.Name] = true
		}
		if port.ContainerPort == 0 {
			l.required(at.Child("containerPort"), "")
		} else {
			l.each(at.Child("containerPort"), port.ContainerPort, validation.IsValidPortNum(int(port.ContainerPort)))
		}
		if port.HostPort != 0 {
			l.each(at.Child("hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))
		}
		if port.HostIP != "" {
			l.all(validation.IsValidIPForLegacyField(at.Child("hostIP"), port.HostIP, false, nil))
		}
		oneOf(l, at.Child("protocol"), port.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

func (l *list) hostPorts(c *corev1.Container, hostNetwork bool, taken map[string]bool, p *field.Path, of specOwner) {
	for i, port := range c.Ports {
		at := p.Child("ports").Index(i).Child("hostPort")
		if hostNetwork && port.HostPort != port.ContainerPort && (of == ofPod || port.HostPort != 0) {
			l.invalid(at, port.HostPort, "must match `containerPort` when `hostNetwork` is true")
		}
		if port.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
		if taken[key] {
			l.duplicate(at, key)
		}
		taken[key] = true
	}
}

func (l *list) mounts(mounts []corev1.VolumeMount, volumes map[string]bool, p *field.Path) {
	paths := map[string]bool{}
	for i, m := range mounts {
		at := p.Index(i)
		if m.Name == "" {
			l.required(at.Child("name"), "")
		} else if !volumes[m.Name] {
			l.errs = append(l.errs, field.NotFound(at.Child("name"), m.Name))
		}
		switch {
		case m.MountPath == "":
			l.required(at.Child("mountPath"), "")
		case paths[m.MountPath]:
			l.invalid(at.Child("mountPath"), m.MountPath, "must be unique")
		case policy.MountPath(m.MountPath) != "":
			l.invalid(at.Child("mountPath"), m.MountPath, policy.MountPath(m.MountPath))
		}
		paths[m.MountPath] = true
		if m.SubPath != "" {
			relative(l, at.Child("subPath"), m.SubPath)
		}
	}
}

// restartPolicy checks the restart policy and restart rules of a container (KEP-5307).
func (l *list) restartPolicy(c *corev1.Container, p *field.Path) {
	rules := p.Child("restartPolicyRules")
	if c.RestartPolicy != nil {
		oneOf(l, p.Child("restartPolicy"), *c.RestartPolicy, corev1.ContainerRestartPolicyAlways,
			corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	} else if len(c.RestartPolicyRules) > 0 {
		l.required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")
	}
	if most := 20; len(c.RestartPolicyRules) > most {
		l.errs = append(l.errs, field.TooMany(rules, len(c.RestartPolicyRules), most))
	}
	for i, r := range c.RestartPolicyRules {
		at := rules.Index(i)
		oneOf(l, at.Child("action"), r.Action, corev1.ContainerRestartRuleActionRestart)
		if r.ExitCodes == nil {
			l.required(at.Child("exitCodes"), "must be specified")
			continue
		}
		oneOf(l, at.Child("exitCodes", "operator"), r.ExitCodes.Operator, corev1.ContainerRestartRuleOnExitCodesOpIn,
			corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if most := 255; len(r.ExitCodes.Values) > most {
			l.errs = append(l.errs, field.TooMany(at.Child("exitCodes", "values"), len(r.ExitCodes.Values), most))
		}
	}
}

// resources checks names and quantities, and that no request is above its limit.
func (l *list) resources(r corev1.ResourceRequirements, p *field.Path) {
	for _, name := range sortedKeys(r.Limits) {
		l.resource(name, r.Limits, p.Child("limits").Key(string(name)))
	}
	for _, name := range sortedKeys(r.Requests) {
		l.resource(name, r.Requests, p.Child("requests").Key(string(name)))
		request := r.Requests[name]
		limit, limited := r.Limits[name]
		switch native := isNative(name); {
		case !limited && !native:
			l.required(p.Child("limits"), "Limit must be set for non overcommitable resources")
		case limited && !native && request.Cmp(limit) != 0:
			l.invalid(p.Child("requests"), request.String(),
				fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case limited && request.Cmp(limit) > 0:
			l.invalid(p.Child("requests"), request.String(),
				fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		}
	}
}

func (l *list) resource(name corev1.ResourceName, in corev1.ResourceList, p *field.Path) {
	switch {
	case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		l.forbidden(p, "is not supported: devices have no huge pages")
	case !strings.Contains(string(name), "/"):
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
			l.invalid(p, name, "must be a standard resource for containers")
		}
	case isNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix):
		l.invalid(p, name, "doesn't follow extended resource name standard")
	default:
		l.all(metavalidation.ValidateLabelName(string(name), p))
	}
	l.quantity(p, in[name], !isNative(name))
}

// isNative reports whether a resource is one of Kubernetes' own, which can be divided and
// overcommitted.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func (l *list) probes(c *corev1.Container, p *field.Path) {
	l.probe(c.LivenessProbe, p.Child("livenessProbe"), true)
	l.probe(c.StartupProbe, p.Child("startupProbe"), true)
	l.probe(c.ReadinessProbe, p.Child("readinessProbe"), false)
	if r := c.ReadinessProbe; r != nil && r.TerminationGracePeriodSeconds != nil {
		l.invalid(p.Child("readinessProbe", "terminationGracePeriodSeconds"), *r.TerminationGracePeriodSeconds,
			"must not be set for readinessProbes")
	}
}

// probe checks a probe. A failed liveness or startup probe restarts its container; for these (ends)
// the success threshold must be 1.
func (l *list) probe(b *corev1.Probe, p *field.Path, ends bool) {
	if b == nil {
		return
	}
	h := handlers{list: l, at: p}
	h.exec(b.Exec)
	h.httpGet(b.HTTPGet)
	h.kind(b.TCPSocket != nil, "tcpSocket", func(p *field.Path) { l.port(b.TCPSocket.Port, p.Child("port")) })
	h.kind(b.GRPC != nil, "grpc", func(p *field.Path) {
		l.each(p.Child("port"), b.GRPC.Port, validation.IsValidPortNum(int(b.GRPC.Port)))
		if m := b.GRPC.Mode; m != nil && *m == corev1.GRPCProbeModeTLS {
			l.forbidden(p.Child("mode"), "TLS is not supported: omit mode, or write an exec probe")
		} else if m != nil {
			oneOf(l, p.Child("mode"), *m, corev1.GRPCProbeModePlaintext)
		}
	})
	if h.n == 0 {
		l.required(p, "must specify a handler type")
	}
	l.atLeast(p.Child("initialDelaySeconds"), int64(b.InitialDelaySeconds), 0)
	l.atLeast(p.Child("timeoutSeconds"), int64(b.TimeoutSeconds), 0)
	l.atLeast(p.Child("periodSeconds"), int64(b.PeriodSeconds), 0)
	l.atLeast(p.Child("successThreshold"), int64(b.SuccessThreshold), 0)
	l.atLeast(p.Child("failureThreshold"), int64(b.FailureThreshold), 0)
	if ends && b.SuccessThreshold != 1 {
		l.invalid(p.Child("successThreshold"), b.SuccessThreshold, "must be 1")
	}
	if g := b.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
		l.invalid(p.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0")
	}
}

func (l *list) port(port intstr.IntOrString, p *field.Path) {
	if port.Type == intstr.Int {
		l.each(p, port.IntVal, validation.IsValidPortNum(int(port.IntVal)))
	} else {
		l.each(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
}

// handlers checks that exactly one handler of a probe or hook is set.
type handlers struct {
	*list
	at *field.Path
	n  int
}

func (h *handlers) kind(set bool, name string, check func(*field.Path)) {
	switch {
	case set && h.n > 0:
		h.forbidden(h.at.Child(name), "may not specify more than 1 handler type")
	case set:
		h.n++
		check(h.at.Child(name))
	}
}

func (h *handlers) exec(x *corev1.ExecAction) {
	h.kind(x != nil, "exec", func(p *field.Path) {
		if len(x.Command) == 0 {
			h.required(p.Child("command"), "")
		}
	})
}

func (h *handlers) httpGet(x *corev1.HTTPGetAction) {
	h.kind(x != nil, "httpGet", func(p *field.Path) {
		if x.Path == "" {
			h.required(p.Child("path"), "")
		}
		h.port(x.Port, p.Child("port"))
		oneOf(h.list, p.Child("scheme"), x.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
		for _, x := range x.HTTPHeaders {
			h.each(p.Child("httpHeaders"), x.Name, validation.IsHTTPHeaderName(x.Name))
		}
	})
}

// lifecycle checks hooks. A sleep hook must end within the grace period.
func (l *list) lifecycle(c *corev1.Lifecycle, grace *int64, p *field.Path) {
	if c == nil {
		return
	}
	hook := func(x *corev1.LifecycleHandler, p *field.Path) {
		if x == nil {
			return
		}
		h := handlers{list: l, at: p}
		h.exec(x.Exec)
		h.httpGet(x.HTTPGet)
		h.kind(x.Sleep != nil, "sleep", func(p *field.Path) {
			if s := x.Sleep.Seconds; grace != nil && (s < 0 || s > *grace) {
				l.invalid(p, s, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
			}
		})
		if h.n == 0 && x.TCPSocket == nil {
			l.required(p, "must specify a handler type")
		}
	}
	hook(c.PostStart, p.Child("postStart"))
	hook(c.PreStop, p.Child("preStop"))
}
