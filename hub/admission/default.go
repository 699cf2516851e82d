package admission

import (
	"github.com/distribution/reference"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// Default fills in an object's defaults in place. It is idempotent.
func Default(o state.Object, s Settings) {
	if fill := rules[state.KindOf(o)].fill; fill != nil {
		fill(o, s)
	}
}

func defaultReplicaSet(r *appsv1.ReplicaSet, _ Settings) {
	set(&r.Spec.Replicas, 1)
	DefaultPodTemplate(&r.Spec.Template)
}

func defaultNamespace(n *corev1.Namespace, _ Settings) {
	if n.Name != "" {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[corev1.LabelMetadataName] = n.Name
	}
	fill(&n.Status.Phase, corev1.NamespaceActive)
}

func defaultNode(n *corev1.Node, _ Settings) {
	if n.Spec.PodCIDR != "" && len(n.Spec.PodCIDRs) == 0 {
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	} else if n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) > 0 {
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
	extended(&n.Status)
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	roundUp(n.Status.Capacity)
	roundUp(n.Status.Allocatable)
}

// DefaultPod fills in a pod's defaults: spec, default tolerations, priority, phase and quality of
// service.
func DefaultPod(p *corev1.Pod, s Settings) {
	spec := &p.Spec
	defaultSpec(spec)
	if g := spec.TerminationGracePeriodSeconds; *g < 0 {
		*g = 1
	}
	eachContainer(spec, func(c *corev1.Container) {
		for name, limit := range c.Resources.Limits {
			if _, ok := c.Resources.Requests[name]; !ok {
				if c.Resources.Requests == nil {
					c.Resources.Requests = corev1.ResourceList{}
				}
				c.Resources.Requests[name] = limit.DeepCopy()
			}
		}
		if spec.HostNetwork {
			for i := range c.Ports {
				fill(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
			}
		}
	})
	set(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if class := state.SystemClass(spec.PriorityClassName); class != nil {
		set(&spec.Priority, class.Value)
	}
	spec.Tolerations = pressureToleration(spec, extendedTolerations(spec, DefaultTolerations(spec.Tolerations, s)))
	fill(&p.Status.Phase, corev1.PodPending)
	if len(spec.SchedulingGates) > 0 && state.PodCondition(p, corev1.PodScheduled) == nil {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		})
	}
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = qos(spec)
	}
}

// DefaultPodTemplate fills in the defaults of a template. As in Kubernetes, some defaults are set
// only in pods.
func DefaultPodTemplate(t *corev1.PodTemplateSpec) { defaultSpec(&t.Spec) }

func defaultSpec(s *corev1.PodSpec) {
	fill(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
	fill(&s.DNSPolicy, corev1.DNSClusterFirst)
	fill(&s.RestartPolicy, corev1.RestartPolicyAlways)
	fill(&s.SchedulerName, corev1.DefaultSchedulerName)
	set(&s.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	set(&s.SecurityContext, corev1.PodSecurityContext{})
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i].VolumeSource)
	}
	eachContainer(s, defaultContainer)
	for i := range s.EphemeralContainers {
		defaultContainer(asContainer(&s.EphemeralContainers[i]))
	}
}

func defaultContainer(c *corev1.Container) {
	fill(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	fill(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	fill(&c.ImagePullPolicy, pullPolicy(c.Image))
	for i := range c.Ports {
		fill(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			fill(&from.FieldRef.APIVersion, "v1")
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		fill(&p.TimeoutSeconds, 1)
		fill(&p.PeriodSeconds, 10)
		fill(&p.SuccessThreshold, 1)
		fill(&p.FailureThreshold, 3)
		defaultHTTPGet(p.HTTPGet)
		if p.GRPC != nil {
			set(&p.GRPC.Service, "")
		}
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h != nil {
		fill(&h.Path, "/")
		fill(&h.Scheme, corev1.URISchemeHTTP)
	}
}

// pullPolicy returns Always for the tag latest, explicit or implied.
func pullPolicy(image string) corev1.PullPolicy {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent // an invalid reference; the engine reports it
	}
	if tagged, ok := reference.TagNameOnly(ref).(reference.Tagged); ok && tagged.Tag() == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func defaultVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.Image != nil {
		fill(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.HostPath != nil {
		set(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.Secret != nil {
		set(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if v.ConfigMap != nil {
		set(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if v.DownwardAPI != nil {
		set(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultFiles(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		set(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for _, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				defaultFiles(source.DownwardAPI.Items)
			}
		}
	}
}

func defaultFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if ref := files[i].FieldRef; ref != nil {
			fill(&ref.APIVersion, "v1")
		}
	}
}

func defaultDeployment(s *appsv1.DeploymentSpec) {
	set(&s.Replicas, 1)
	set(&s.RevisionHistoryLimit, 10)
	set(&s.ProgressDeadlineSeconds, 600)
	fill(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		set(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		set(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		set(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	DefaultPodTemplate(&s.Template)
}

func defaultDaemonSet(s *appsv1.DaemonSetSpec) {
	set(&s.RevisionHistoryLimit, 10)
	fill(&s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		set(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		set(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		set(&s.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	DefaultPodTemplate(&s.Template)
}

// defaultSecret moves the write-only stringData into data.
func defaultSecret(s *corev1.Secret) {
	fill(&s.Type, corev1.SecretTypeOpaque)
	for key, value := range s.StringData {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

// roundUp rounds quantities up to thousandths, as kube-apiserver does.
func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(-3)
		list[name] = q
	}
}

func eachContainer(s *corev1.PodSpec, do func(*corev1.Container)) {
	for i := range s.InitContainers {
		do(&s.InitContainers[i])
	}
	for i := range s.Containers {
		do(&s.Containers[i])
	}
}

// fill sets a zero value.
func fill[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// set sets a nil pointer.
func set[T any](v **T, to T) {
	if *v == nil {
		*v = &to
	}
}

// qos returns a pod's quality of service class.
func qos(s *corev1.PodSpec) corev1.PodQOSClass {
	some, all := false, true
	eachContainer(s, func(c *corev1.Container) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			some = some || !request.IsZero() || !limit.IsZero()
			all = all && !limit.IsZero() && request.Equal(limit)
		}
	})
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case all:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// extended sets the allocatable amount of an extended resource to its capacity if a user sets only
// the capacity, and limits it to the capacity.
func extended(st *corev1.NodeStatus) {
	if st.Allocatable == nil {
		return
	}
	for name, q := range st.Capacity {
		if free, ok := st.Allocatable[name]; !isNative(name) && (!ok || free.Cmp(q) > 0) {
			st.Allocatable[name] = q
		}
	}
	for name := range st.Allocatable {
		if _, ok := st.Capacity[name]; !ok && !isNative(name) {
			delete(st.Allocatable, name)
		}
	}
}
