package admission

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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
	oneOf(l, p.Child("type"), s.Strategy.Type, appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType)
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
	oneOf(l, p.Child("type"), s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType)
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

// template checks what a workload makes pods of, and that its selector finds them.
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
	if selector, err := metav1.LabelSelectorAsSelector(s); err == nil && !selector.Empty() && s != nil && !selector.Matches(labels.Set(t.Labels)) {
		l.invalid(p.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
	}
	l.all(metavalidation.ValidateLabels(t.Labels, p.Child("metadata", "labels")))
	l.all(apivalidation.ValidateAnnotations(t.Annotations, p.Child("metadata", "annotations")))
	l.podSpec(&t.Spec, p.Child("spec"), ofTemplate)
	p = p.Child("spec")
	if r := t.Spec.RestartPolicy; r == corev1.RestartPolicyOnFailure || r == corev1.RestartPolicyNever {
		l.errs = append(l.errs, field.NotSupported(p.Child("restartPolicy"), r, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		l.forbidden(p.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported")
	}
	if t.Spec.NodeName != "" && kind == "daemonset" {
		l.forbidden(p.Child("nodeName"), "a daemonset chooses its nodes: use nodeSelector or affinity")
	}
}
