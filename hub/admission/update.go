package admission

import (
	"fmt"
	"math"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// unchanged tells which fields have changed that may not. Fields of the metadata
// that the server fills in (resourceVersion, uid, creationTimestamp) may be left
// out of the new object, but for the resourceVersion where Kubernetes wants it.
func unchanged(o, old state.Object) field.ErrorList {
	var l list
	l.metaUnchanged(o, old)
	spec := field.NewPath("spec")
	switch o := o.(type) {
	case *corev1.Pod:
		l.podUnchanged(o, old.(*corev1.Pod), spec)
	case *appsv1.Deployment:
		l.same(o.Spec.Selector, old.(*appsv1.Deployment).Spec.Selector, spec.Child("selector"))
	case *appsv1.ReplicaSet:
		l.same(o.Spec.Selector, old.(*appsv1.ReplicaSet).Spec.Selector, spec.Child("selector"))
	case *appsv1.DaemonSet:
		l.same(o.Spec.Selector, old.(*appsv1.DaemonSet).Spec.Selector, spec.Child("selector"))
	case *appsv1.ControllerRevision:
		l.same(o.Data, old.(*appsv1.ControllerRevision).Data, field.NewPath("data"))
	case *corev1.Secret:
		was := old.(*corev1.Secret)
		l.same(o.Type, was.Type, field.NewPath("type"))
		if is(was.Immutable) {
			l.frozen(is(o.Immutable), field.NewPath("immutable"))
			l.frozen(equality.Semantic.DeepEqual(o.Data, was.Data), field.NewPath("data"))
		}
	case *corev1.ConfigMap:
		was := old.(*corev1.ConfigMap)
		if is(was.Immutable) {
			l.frozen(is(o.Immutable), field.NewPath("immutable"))
			l.frozen(equality.Semantic.DeepEqual(o.Data, was.Data), field.NewPath("data"))
			l.frozen(equality.Semantic.DeepEqual(o.BinaryData, was.BinaryData), field.NewPath("binaryData"))
		}
	case *corev1.Node:
		was := old.(*corev1.Node)
		if len(was.Spec.PodCIDRs) > 0 && !equality.Semantic.DeepEqual(o.Spec.PodCIDRs, was.Spec.PodCIDRs) {
			l.forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid")
		}
		if was.Spec.ProviderID != "" && o.Spec.ProviderID != was.Spec.ProviderID {
			l.forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid")
		}
	}
	return l.errs
}

func (l *list) same(now, was any, p *field.Path) {
	l.all(apivalidation.ValidateImmutableField(now, was, p))
}

func (l *list) frozen(same bool, p *field.Path) {
	if !same {
		l.forbidden(p, "field is immutable when `immutable` is set")
	}
}

func (l *list) metaUnchanged(o, old state.Object) {
	p := field.NewPath("metadata")
	if old.GetDeletionTimestamp() != nil {
		l.all(apivalidation.ValidateNoNewFinalizers(o.GetFinalizers(), old.GetFinalizers(), p.Child("finalizers")))
	}
	kind := state.KindOf(o)
	if o.GetResourceVersion() == "" && (kind == state.Leases || kind == state.PodDisruptionBudgets) {
		l.invalid(p.Child("resourceVersion"), "", "must be specified for an update")
	}
	l.same(o.GetName(), old.GetName(), p.Child("name"))
	l.same(o.GetNamespace(), old.GetNamespace(), p.Child("namespace"))
	if o.GetUID() != "" {
		l.same(o.GetUID(), old.GetUID(), p.Child("uid"))
	}
	if t := o.GetCreationTimestamp(); !t.IsZero() {
		l.same(t, old.GetCreationTimestamp(), p.Child("creationTimestamp"))
	}
	if o.GetDeletionTimestamp() != nil {
		l.same(o.GetDeletionTimestamp(), old.GetDeletionTimestamp(), p.Child("deletionTimestamp"))
	}
	if o.GetDeletionGracePeriodSeconds() != nil {
		l.same(o.GetDeletionGracePeriodSeconds(), old.GetDeletionGracePeriodSeconds(), p.Child("deletionGracePeriodSeconds"))
	}
}

// podUnchanged: of a pod only images, the active deadline (downwards) and
// tolerations (more of them, or other seconds) may change.
func (l *list) podUnchanged(o, old *corev1.Pod, p *field.Path) {
	if len(o.Spec.Containers) != len(old.Spec.Containers) || len(o.Spec.InitContainers) != len(old.Spec.InitContainers) {
		l.forbidden(p.Child("containers"), "pod updates may not add or remove containers")
		return
	}
	l.deadline(o.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, p.Child("activeDeadlineSeconds"))
	for _, was := range old.Spec.Tolerations {
		if !hasToleration(o.Spec.Tolerations, was) {
			l.forbidden(p.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds")
			break
		}
	}
	if equality.Semantic.DeepEqual(o.Spec, old.Spec) {
		return
	}
	allowed := o.Spec.DeepCopy()
	for i := range allowed.Containers {
		allowed.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range allowed.InitContainers {
		allowed.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	allowed.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	allowed.Tolerations = old.Spec.Tolerations
	if !equality.Semantic.DeepEqual(allowed, &old.Spec) {
		l.forbidden(p, fmt.Sprintf("pod updates may not change fields other than %s", strings.Join([]string{
			"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
			"`spec.tolerations` (only additions to existing tolerations)",
		}, ",")))
	}
}

func (l *list) deadline(now, was *int64, p *field.Path) {
	switch {
	case now == nil && was != nil:
		l.invalid(p, "null", "must not update from a positive integer to nil value")
	case now != nil && (*now < 0 || *now > math.MaxInt32):
		l.invalid(p, *now, validation.InclusiveRangeError(0, math.MaxInt32))
	case now != nil && was != nil && *now > *was:
		l.invalid(p, *now, "must be less than or equal to previous value")
	}
}

// hasToleration looks for a toleration, whatever its seconds.
func hasToleration(have []corev1.Toleration, t corev1.Toleration) bool {
	for _, h := range have {
		if h.MatchToleration(&t) {
			return true
		}
	}
	return false
}
