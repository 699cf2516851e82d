// Package podspec says what the spec of a pod means for the device that runs it: its containers in
// their order, its class, grace, network and hooks, what is wrong with it, and the environment and
// files that its ConfigMaps, Secrets and fields make. It is pure: it knows nothing of what runs,
// and never touches a disk, an engine or a clock. Packages agent, volume, image and probe call it.
package podspec

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kinds of containers.
const (
	KindSandbox = "sandbox" // holds the network that the containers of a pod share
	KindInit    = "init"
	KindApp     = "app"
)

// KindEphemeral is a container that somebody has added to a pod that runs, to look at it. It is
// started once, in the pod's network and, with a target, among that container's processes; it
// counts for nothing: not for the pod's phase, its readiness or what it asks for.
const KindEphemeral = "ephemeral"

// A Container is a container of a pod that should be running or have run.
type Container struct {
	Spec *corev1.Container
	Kind string
}

// Containers lists the containers of a pod in the order of their start, but for ephemerals.
func Containers(pod *corev1.Pod) []Container {
	out := make([]Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		out = append(out, Container{&pod.Spec.InitContainers[i], KindInit})
	}
	for i := range pod.Spec.Containers {
		out = append(out, Container{&pod.Spec.Containers[i], KindApp})
	}
	return out
}

// Ephemerals lists the ephemeral containers of a pod, which Containers leaves out.
func Ephemerals(pod *corev1.Pod) []Container {
	out := make([]Container, 0, len(pod.Spec.EphemeralContainers))
	for i := range pod.Spec.EphemeralContainers {
		out = append(out, Container{(*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon),
			KindEphemeral})
	}
	return out
}

// Find finds a container of a pod by name; nil where it has none, or there is no pod.
func Find(pod *corev1.Pod, name string) *corev1.Container {
	if pod == nil {
		return nil
	}
	for _, w := range slices.Concat(Containers(pod), Ephemerals(pod)) {
		if w.Spec.Name == name {
			return w.Spec
		}
	}
	return nil
}

// IsSidecar tells whether an init container runs on beside the others (KEP-753).
func IsSidecar(w Container) bool {
	return w.Kind == KindInit && w.Spec.RestartPolicy != nil &&
		*w.Spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// NeedsSandbox tells whether a pod needs a network of its own that outlives its containers: where
// several of them share it, or its processes, or one is told its address before it starts. Another
// pod with one container owns its network through that container, and one on the host's network
// needs none.
func NeedsSandbox(pod *corev1.Pod) bool {
	return (!HasOneContainer(pod) || SharesProcesses(pod) || asksAddress(pod) || named(pod)) && !pod.Spec.HostNetwork
}

// named tells whether a pod's hosts file says more than an engine's does.
func named(pod *corev1.Pod) bool { return len(pod.Spec.HostAliases) > 0 || pod.Spec.Subdomain != "" }

// HasOneContainer tells whether a pod has one container.
func HasOneContainer(pod *corev1.Pod) bool {
	return len(pod.Spec.InitContainers)+len(pod.Spec.Containers) == 1
}

// asksAddress tells whether a container's environment names the pod's address.
func asksAddress(pod *corev1.Pod) bool {
	return slices.ContainsFunc(Containers(pod), func(w Container) bool {
		return slices.ContainsFunc(w.Spec.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && isAddress(e.ValueFrom.FieldRef.FieldPath)
		})
	})
}

// isAddress tells whether a field is the pod's address, which is known once its network is there.
func isAddress(field string) bool { return field == "status.podIP" || field == "status.podIPs" }

// SharesProcesses tells whether the containers of a pod see each other's processes. The
// first of them is then the sandbox's.
func SharesProcesses(pod *corev1.Pod) bool { return IsTrue(pod.Spec.ShareProcessNamespace) }

// RestartPolicy is the restart policy of a container: its own, or the pod's.
func RestartPolicy(pod *corev1.Pod, w Container) corev1.RestartPolicy {
	if w.Spec.RestartPolicy != nil {
		return corev1.RestartPolicy(*w.Spec.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// Grace is how long the containers of a pod may take to stop.
func Grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		seconds = *pod.DeletionGracePeriodSeconds
	}
	// more is no grace any more, but less than none
	return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second
}

// Priority is the priority of a pod; 0 where it says none.
func Priority(p *corev1.Pod) int32 {
	if p.Spec.Priority != nil {
		return *p.Spec.Priority
	}
	return 0
}

// SystemCritical is the priority from which a pod is never evicted by its device.
const SystemCritical = 2_000_000_000

// IsBestEffort tells whether a pod asks for and limits nothing.
func IsBestEffort(pod *corev1.Pod) bool { return QOSClass(pod) == corev1.PodQOSBestEffort }

// QOSClass is the quality-of-service class of a pod, as Kubernetes computes it.
func QOSClass(pod *corev1.Pod) corev1.PodQOSClass {
	any, guaranteed := false, true
	for _, w := range Containers(pod) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			req, hasReq := w.Spec.Resources.Requests[name]
			lim, hasLim := w.Spec.Resources.Limits[name]
			if hasReq && !req.IsZero() || hasLim && !lim.IsZero() {
				any = true
			}
			if !hasLim || lim.IsZero() || hasReq && req.Cmp(lim) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// MessagePath is where a container writes its message.
func MessagePath(c *corev1.Container) string {
	return cmp.Or(c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
}

// Hostname is what a pod's containers are called.
func Hostname(pod *corev1.Pod) string {
	name := cmp.Or(pod.Spec.Hostname, pod.Name)
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// Hooks of a container's life.
const (
	PostStart = "PostStart"
	PreStop   = "PreStop"
)

// Hook is a hook of a container; nil where it has none.
func Hook(c *corev1.Container, kind string) *corev1.LifecycleHandler {
	switch {
	case c == nil || c.Lifecycle == nil:
		return nil
	case kind == PostStart:
		return c.Lifecycle.PostStart
	}
	return c.Lifecycle.PreStop
}

// A ProbeKind is a kind of probe.
type ProbeKind int

// The three kinds of probes.
const (
	Startup ProbeKind = iota
	Liveness
	Readiness
	ProbeKinds // how many there are
)

// String is the name as events have it.
func (k ProbeKind) String() string { return [...]string{"Startup", "Liveness", "Readiness"}[k] }

// ProbeOf is a probe of a container; nil where it has none.
func ProbeOf(c *corev1.Container, k ProbeKind) *corev1.Probe {
	switch k {
	case Startup:
		return c.StartupProbe
	case Liveness:
		return c.LivenessProbe
	}
	return c.ReadinessProbe
}

// Lower is the name as sentences have it.
func (k ProbeKind) Lower() string { return [...]string{"startup", "liveness", "readiness"}[k] }

// OrDefault is a number of a probe, or the default where it is not set.
func OrDefault(v, def int32) int32 {
	if v <= 0 {
		return def
	}
	return v
}

// HasLiveVolumes tells whether a pod has files that follow what they are made of.
func HasLiveVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	})
}

// Images are the images of a pod: of its containers, and of its volumes.
func Images(pod *corev1.Pod) (refs []string) {
	for _, w := range slices.Concat(Containers(pod), Ephemerals(pod)) {
		refs = append(refs, w.Spec.Image)
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			refs = append(refs, v.Reference)
		}
	}
	return refs
}

// DNSOptions are the options of a pod as resolv.conf has them.
func DNSOptions(c *corev1.PodDNSConfig) (options []string) {
	for _, o := range c.Options {
		option := o.Name
		if o.Value != nil && *o.Value != "" {
			option += ":" + *o.Value
		}
		options = append(options, option)
	}
	return options
}
