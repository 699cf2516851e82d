package admission

import (
	"fmt"
	"maps"
	"math"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (l *list) deployment(s *appsv1.DeploymentSpec, p *field.Path) {
	l.count(s.Replicas, p.Child("replicas"))
	l.template(s.Selector, &s.Template, p, "deployment")
	l.atLeast(p.Child("minReadySeconds"), int64(s.MinReadySeconds), 0)
	l.count(s.RevisionHistoryLimit, p.Child("revisionHistoryLimit"))
	l.count(s.ProgressDeadlineSeconds, p.Child("progressDeadlineSeconds"))
	if d := s.ProgressDeadlineSeconds; d != nil && *d <= s.MinReadySeconds {
		l.invalid(p.Child("progressDeadlineSeconds"), *d, "must be greater than minReadySeconds")
	}
	p = p.Child("strategy")
	oneOf(l, p.Child("type"), s.Strategy.Type, appsv1.RecreateDeploymentStrategyType,
		appsv1.RollingUpdateDeploymentStrategyType)
	u := s.Strategy.RollingUpdate
	p = p.Child("rollingUpdate")
	switch {
	case s.Strategy.Type == appsv1.RecreateDeploymentStrategyType && u != nil:
		l.forbidden(p, "may not be specified when strategy `type` is 'Recreate'")
	case s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType && u == nil:
		l.required(p, "")
	case u != nil:
		l.intOrPercent(p.Child("maxUnavailable"), u.MaxUnavailable, true)
		l.intOrPercent(p.Child("maxSurge"), u.MaxSurge, false)
		if isZero(u.MaxUnavailable) && isZero(u.MaxSurge) {
			l.invalid(p.Child("maxUnavailable"), u.MaxUnavailable, "may not be 0 when `maxSurge` is 0")
		}
	}
}

func (l *list) replicaSet(s *appsv1.ReplicaSetSpec, p *field.Path) {
	l.count(s.Replicas, p.Child("replicas"))
	l.atLeast(p.Child("minReadySeconds"), int64(s.MinReadySeconds), 0)
	l.template(s.Selector, &s.Template, p, "replicaset")
}

func (l *list) daemonSet(s *appsv1.DaemonSetSpec, p *field.Path) {
	l.template(s.Selector, &s.Template, p, "daemonset")
	l.atLeast(p.Child("minReadySeconds"), int64(s.MinReadySeconds), 0)
	l.count(s.RevisionHistoryLimit, p.Child("revisionHistoryLimit"))
	p = p.Child("updateStrategy")
	oneOf(l, p.Child("type"), s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType,
		appsv1.OnDeleteDaemonSetStrategyType)
	u := s.UpdateStrategy.RollingUpdate
	p = p.Child("rollingUpdate")
	switch {
	case s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType && u == nil:
		l.required(p, "")
	case s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType:
		l.intOrPercent(p.Child("maxUnavailable"), u.MaxUnavailable, true)
		l.intOrPercent(p.Child("maxSurge"), u.MaxSurge, true)
		switch {
		case !isZero(u.MaxUnavailable) && !isZero(u.MaxSurge):
			l.invalid(p.Child("maxSurge"), u.MaxSurge, "may not be set when maxUnavailable is non-zero")
		case isZero(u.MaxUnavailable) && isZero(u.MaxSurge):
			l.required(p.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0")
		}
	}
}

func (l *list) count(n *int32, p *field.Path) {
	if n != nil {
		l.atLeast(p, int64(*n), 0)
	}
}

// template checks a workload's template, and that the workload's selector matches it.
func (l *list) template(s *metav1.LabelSelector, t *corev1.PodTemplateSpec, spec *field.Path, kind string) {
	p := spec.Child("selector")
	switch {
	case s == nil:
		l.required(p, "")
	case len(s.MatchLabels)+len(s.MatchExpressions) == 0:
		l.invalid(p, s, "empty selector is invalid for "+kind)
	default:
		l.selector(s, p)
	}
	p = spec.Child("template")
	if selector, err := metav1.LabelSelectorAsSelector(s); err == nil && !selector.Empty() && s != nil &&
		!selector.Matches(labels.Set(t.Labels)) {
		l.invalid(p.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
	}
	l.all(metavalidation.ValidateLabels(t.Labels, p.Child("metadata", "labels")))
	l.all(apivalidation.ValidateAnnotations(t.Annotations, p.Child("metadata", "annotations")))
	l.podSpec(&t.Spec, p.Child("spec"), ofTemplate)
	p = p.Child("spec")
	if r := t.Spec.RestartPolicy; r == corev1.RestartPolicyOnFailure || r == corev1.RestartPolicyNever {
		l.errs = append(l.errs, field.NotSupported(p.Child("restartPolicy"), r,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		l.forbidden(p.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported")
	}
	if t.Spec.NodeName != "" && kind == "daemonset" {
		l.forbidden(p.Child("nodeName"), "a daemonset chooses its nodes: use nodeSelector or affinity")
	}
}

func defaultStatefulSet(s *appsv1.StatefulSetSpec) {
	set(&s.Replicas, 1)
	set(&s.RevisionHistoryLimit, 10)
	fill(&s.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if s.UpdateStrategy.Type == "" {
		s.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		set(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if u := s.UpdateStrategy.RollingUpdate; u != nil &&
		s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		set(&u.Partition, 0)
	}
	set(&s.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	fill(&s.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	fill(&s.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	for i := range s.VolumeClaimTemplates {
		c := &s.VolumeClaimTemplates[i]
		fill(&c.APIVersion, "v1")
		fill(&c.Kind, "PersistentVolumeClaim")
		defaultClaim(c, Settings{})
	}
	DefaultPodTemplate(&s.Template)
}

// statefulSetName keeps names short enough for an ordinal in the pods' names and a hash in the
// revisions' names; both names are label values. Kubernetes accepts longer names, but cannot create
// their pods.
func statefulSetName(name string, prefix bool) []string {
	wrong := apivalidation.NameIsDNSLabel(name, prefix)
	if len(name) > 52 {
		wrong = append(wrong, "must be no more than 52 characters: the labels of its pods add 11")
	}
	return wrong
}

func (l *list) statefulSet(s *appsv1.StatefulSetSpec, p *field.Path, fresh bool) {
	l.count(s.Replicas, p.Child("replicas"))
	l.atLeast(p.Child("minReadySeconds"), int64(s.MinReadySeconds), 0)
	if o := s.Ordinals; o != nil {
		l.atLeast(p.Child("ordinals", "start"), int64(o.Start), 0)
		if s.Replicas != nil && int64(o.Start)+int64(*s.Replicas) > math.MaxInt32 {
			l.invalid(p.Child("ordinals", "start"), o.Start,
				fmt.Sprintf("with %d replicas the last ordinal is above %d", *s.Replicas, math.MaxInt32-1))
		}
	}
	if s.ServiceName != "" {
		label(l, p.Child("serviceName"), s.ServiceName)
	}
	oneOf(l, p.Child("podManagementPolicy"), s.PodManagementPolicy, appsv1.OrderedReadyPodManagement,
		appsv1.ParallelPodManagement)
	l.statefulUpdate(&s.UpdateStrategy, p.Child("updateStrategy"))
	if keep := s.PersistentVolumeClaimRetentionPolicy; keep != nil {
		at := p.Child("persistentVolumeClaimRetentionPolicy")
		oneOf(l, at.Child("whenDeleted"), keep.WhenDeleted, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
		oneOf(l, at.Child("whenScaled"), keep.WhenScaled, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	}
	names := map[string]bool{}
	for i := range s.VolumeClaimTemplates {
		c, at := &s.VolumeClaimTemplates[i], p.Child("volumeClaimTemplates").Index(i)
		switch name := at.Child("metadata", "name"); {
		case c.Name == "":
			l.required(name, "")
		case names[c.Name]:
			l.duplicate(name, c.Name)
		default:
			label(l, name, c.Name)
		}
		names[c.Name] = true
		l.all(metavalidation.ValidateLabels(c.Labels, at.Child("metadata", "labels")))
		l.all(apivalidation.ValidateAnnotations(c.Annotations, at.Child("metadata", "annotations")))
		if fresh { // in an existing StatefulSet they cannot change, so they may stay
			l.finalizers(c.Finalizers, at.Child("metadata", "finalizers"))
		}
		l.claimSpec(&c.Spec, at.Child("spec"))
		l.unsupported(&c.Spec, at.Child("spec"))
	}
	l.template(s.Selector, podsOf(s), p, "statefulset")
}

// podsOf returns the template with the claims, name and subdomain that the pods get.
func podsOf(s *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	t := s.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	claimed := map[string]bool{}
	var volumes []corev1.Volume
	for _, c := range s.VolumeClaimTemplates {
		if c.Name == "" || claimed[c.Name] {
			continue // reported already
		}
		claimed[c.Name] = true
		volumes = append(volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
	}
	for _, v := range t.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	t.Spec.Volumes = volumes
	return t
}

func (l *list) statefulUpdate(u *appsv1.StatefulSetUpdateStrategy, p *field.Path) {
	oneOf(l, p.Child("type"), u.Type, appsv1.OnDeleteStatefulSetStrategyType, appsv1.RollingUpdateStatefulSetStrategyType)
	r := u.RollingUpdate
	p = p.Child("rollingUpdate")
	switch {
	case r == nil:
	case u.Type == appsv1.OnDeleteStatefulSetStrategyType:
		l.invalid(p, field.OmitValueType{}, "only allowed for updateStrategy 'RollingUpdate'")
	default:
		l.count(r.Partition, p.Child("partition"))
		l.intOrPercent(p.Child("maxUnavailable"), r.MaxUnavailable, true)
		if r.MaxUnavailable != nil && isZero(r.MaxUnavailable) {
			l.invalid(p.Child("maxUnavailable"), r.MaxUnavailable, "cannot be 0")
		}
	}
}

func (l *list) statefulSetUnchanged(o, was *appsv1.StatefulSet) {
	may := was.Spec.DeepCopy()
	may.Replicas, may.Template, may.UpdateStrategy, may.MinReadySeconds = o.Spec.Replicas, o.Spec.Template,
		o.Spec.UpdateStrategy, o.Spec.MinReadySeconds
	may.Ordinals, may.RevisionHistoryLimit, may.PersistentVolumeClaimRetentionPolicy = o.Spec.Ordinals,
		o.Spec.RevisionHistoryLimit, o.Spec.PersistentVolumeClaimRetentionPolicy
	if !equality.Semantic.DeepEqual(&o.Spec, may) {
		l.forbidden(spec, "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "+
			"'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are "+
			"forbidden")
	}
}

func defaultController(c *corev1.ReplicationController) {
	set(&c.Spec.Replicas, 1)
	t := c.Spec.Template
	if t == nil {
		return
	}
	if len(c.Spec.Selector) == 0 {
		c.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(c.Labels) == 0 {
		c.Labels = maps.Clone(t.Labels)
	}
	DefaultPodTemplate(t)
}

func (l *list) controller(s *corev1.ReplicationControllerSpec, p *field.Path) {
	l.count(s.Replicas, p.Child("replicas"))
	l.atLeast(p.Child("minReadySeconds"), int64(s.MinReadySeconds), 0)
	if len(s.Selector) == 0 {
		l.required(p.Child("selector"), "")
	}
	if s.Template == nil {
		l.required(p.Child("template"), "")
		return
	}
	if len(s.Selector) > 0 {
		l.template(&metav1.LabelSelector{MatchLabels: s.Selector}, s.Template, p, "ReplicationController")
	}
}

func (l *list) podTemplate(t *corev1.PodTemplate) {
	p := field.NewPath("template")
	l.all(metavalidation.ValidateLabels(t.Template.Labels, p.Child("metadata", "labels")))
	l.all(apivalidation.ValidateAnnotations(t.Template.Annotations, p.Child("metadata", "annotations")))
	l.podSpec(&t.Template.Spec, p.Child("spec"), ofTemplate)
}
