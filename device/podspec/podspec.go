// Package podspec interprets the spec of a pod for the device that runs it: order of containers,
// QoS class, grace period, network, hooks, validity, environment, and files of volumes.
//
// It is pure: it knows nothing of running containers and uses no disk, engine or clock. Packages
// agent, plan, volume, image and probe call it.
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
	KindSandbox = "sandbox" // the container that holds the pod's shared network
	KindInit    = "init"
	KindApp     = "app"
)

// KindEphemeral is a debug container added to a running pod. It starts once, in the pod's network
// and, with a target, in the target's process namespace. It does not affect the pod's phase,
// readiness or requests.
const KindEphemeral = "ephemeral"

// A Container is a container of a pod with its kind.
type Container struct {
	Spec *corev1.Container
	Kind string
}

// Containers lists the containers of a pod in start order, without ephemeral ones.
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

// Ephemerals lists the ephemeral containers of a pod.
func Ephemerals(pod *corev1.Pod) []Container {
	out := make([]Container, 0, len(pod.Spec.EphemeralContainers))
	for i := range pod.Spec.EphemeralContainers {
		out = append(out, Container{(*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon),
			KindEphemeral})
	}
	return out
}

// Find returns a container of a pod by name; nil if it is missing or the pod is nil.
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

// IsSidecar reports whether an init container keeps running beside the others (KEP-753).
func IsSidecar(w Container) bool {
	return w.Kind == KindInit && w.Spec.RestartPolicy != nil &&
		*w.Spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// NeedsSandbox reports whether a pod needs a network that outlives its containers: several
// containers share the network or their processes, or a container must know its address before it
// starts. Otherwise the single container owns the network itself.
func NeedsSandbox(pod *corev1.Pod) bool {
	return (!HasOneContainer(pod) || SharesProcesses(pod) || usesAddress(pod) || hasOwnHosts(pod)) && !pod.Spec.HostNetwork
}

// hasOwnHosts reports whether a pod adds entries to the hosts file.
func hasOwnHosts(pod *corev1.Pod) bool {
	return len(pod.Spec.HostAliases) > 0 || pod.Spec.Subdomain != ""
}

// HasOneContainer reports whether a pod has exactly one container.
func HasOneContainer(pod *corev1.Pod) bool {
	return len(pod.Spec.InitContainers)+len(pod.Spec.Containers) == 1
}

// usesAddress reports whether a container's environment contains the pod's address.
func usesAddress(pod *corev1.Pod) bool {
	return slices.ContainsFunc(Containers(pod), func(w Container) bool {
		return slices.ContainsFunc(w.Spec.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && isAddress(e.ValueFrom.FieldRef.FieldPath)
		})
	})
}

// isAddress reports whether a field is the pod's address, which is unknown before the pod's network
// exists.
func isAddress(field string) bool { return field == "status.podIP" || field == "status.podIPs" }

// SharesProcesses reports whether the containers of a pod share a process namespace. The sandbox
// then has process 1.
func SharesProcesses(pod *corev1.Pod) bool { return IsTrue(pod.Spec.ShareProcessNamespace) }

// RestartPolicy returns the restart policy of a container: its own, or the pod's.
func RestartPolicy(pod *corev1.Pod, w Container) corev1.RestartPolicy {
	if w.Spec.RestartPolicy != nil {
		return corev1.RestartPolicy(*w.Spec.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// Grace returns the pod's termination grace period.
func Grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		seconds = *pod.DeletionGracePeriodSeconds
	}
	// A larger value would overflow to a negative one.
	return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second
}

// Priority returns the priority of a pod; the default is 0.
func Priority(p *corev1.Pod) int32 {
	if p.Spec.Priority != nil {
		return *p.Spec.Priority
	}
	return 0
}

// SystemCritical is the lowest priority of pods that the device never evicts.
const SystemCritical = 2_000_000_000

// IsBestEffort reports whether a pod has neither requests nor limits.
func IsBestEffort(pod *corev1.Pod) bool { return QOSClass(pod) == corev1.PodQOSBestEffort }

// QOSClass returns the quality-of-service class of a pod, as Kubernetes computes it.
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

// MessagePath returns the path of a container's termination message.
func MessagePath(c *corev1.Container) string {
	return cmp.Or(c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
}

// Hostname returns the host name of a pod's containers.
func Hostname(pod *corev1.Pod) string {
	name := cmp.Or(pod.Spec.Hostname, pod.Name)
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// Lifecycle hooks of a container.
const (
	PostStart = "PostStart"
	PreStop   = "PreStop"
)

// Hook returns a lifecycle hook of a container, or nil.
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
	ProbeKinds // number of kinds
)

// String returns the name of the kind in events.
func (k ProbeKind) String() string { return [...]string{"Startup", "Liveness", "Readiness"}[k] }

// ProbeOf returns a probe of a container, or nil.
func ProbeOf(c *corev1.Container, k ProbeKind) *corev1.Probe {
	switch k {
	case Startup:
		return c.StartupProbe
	case Liveness:
		return c.LivenessProbe
	}
	return c.ReadinessProbe
}

// Lower returns the name of the kind in lower case.
func (k ProbeKind) Lower() string { return [...]string{"startup", "liveness", "readiness"}[k] }

// OrDefault returns v, or def if v is not positive.
func OrDefault(v, def int32) int32 {
	if v <= 0 {
		return def
	}
	return v
}

// HasLiveVolumes reports whether a pod has volumes whose files follow changes of config maps,
// secrets or fields.
func HasLiveVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	})
}

// Images returns the images of a pod's containers and volumes.
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

// DNSOptions returns the options of a pod's dnsConfig in the form of resolv.conf.
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
