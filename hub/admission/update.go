package admission

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// unchanged checks immutable fields. A client may omit metadata that the server sets
// (resourceVersion, uid, creationTimestamp), except a resourceVersion that Kubernetes requires.
func unchanged(o, old state.Object) field.ErrorList {
	var l list
	l.metaUnchanged(o, old)
	if same := rules[state.KindOf(o)].fixed; same != nil {
		same(&l, o, old)
	}
	return l.errs
}

func (l *list) selectorUnchanged(now, was *metav1.LabelSelector) {
	l.same(now, was, spec.Child("selector"))
}

func (l *list) secretUnchanged(o, was *corev1.Secret) {
	l.same(o.Type, was.Type, field.NewPath("type"))
	if is(was.Immutable) {
		l.frozen(is(o.Immutable), field.NewPath("immutable"))
		l.frozen(equality.Semantic.DeepEqual(o.Data, was.Data), field.NewPath("data"))
	}
}

func (l *list) configMapUnchanged(o, was *corev1.ConfigMap) {
	if is(was.Immutable) {
		l.frozen(is(o.Immutable), field.NewPath("immutable"))
		l.frozen(equality.Semantic.DeepEqual(o.Data, was.Data), field.NewPath("data"))
		l.frozen(equality.Semantic.DeepEqual(o.BinaryData, was.BinaryData), field.NewPath("binaryData"))
	}
}

func (l *list) nodeUnchanged(o, was *corev1.Node) {
	if len(was.Spec.PodCIDRs) > 0 && !equality.Semantic.DeepEqual(o.Spec.PodCIDRs, was.Spec.PodCIDRs) {
		l.forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid")
	}
	if was.Spec.ProviderID != "" && o.Spec.ProviderID != was.Spec.ProviderID {
		l.forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid")
	}
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
	if r := state.KindOf(o).Row(); o.GetResourceVersion() == "" && r != nil && r.Conditional {
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

// keepCompleted restores the fields that a pod's priority class and runtime class set at its
// creation, if an update omits them. Manifests lack these fields, and clients cannot change them.
func keepCompleted(p *corev1.Pod, old state.Object) {
	was, ok := old.(*corev1.Pod)
	if !ok {
		return
	}
	if p.Spec.Priority == nil {
		p.Spec.Priority = was.Spec.Priority
	}
	if p.Spec.PreemptionPolicy == nil {
		p.Spec.PreemptionPolicy = was.Spec.PreemptionPolicy
	}
	if len(p.Spec.Overhead) == 0 {
		p.Spec.Overhead = was.Spec.Overhead.DeepCopy()
	}
	handler, has := was.Annotations[fleet.RuntimeHandlerAnnotation]
	if _, present := p.Annotations[fleet.RuntimeHandlerAnnotation]; has && !present {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[fleet.RuntimeHandlerAnnotation] = handler
	}
}

// podUnchanged allows changes of images, the active deadline (only earlier) and tolerations (only
// additions and other seconds).
func (l *list) podUnchanged(o, old *corev1.Pod) {
	if len(o.Spec.Containers) != len(old.Spec.Containers) || len(o.Spec.InitContainers) != len(old.Spec.InitContainers) {
		l.forbidden(spec.Child("containers"), "pod updates may not add or remove containers")
		return
	}
	if key := fleet.RuntimeHandlerAnnotation; o.Annotations[key] != old.Annotations[key] {
		l.forbidden(field.NewPath("metadata", "annotations").Key(key),
			"was set when the pod was created: runtimeClassName cannot change")
	}
	l.deadline(o.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, spec.Child("activeDeadlineSeconds"))
	for _, was := range old.Spec.Tolerations {
		if !hasToleration(o.Spec.Tolerations, was) {
			l.forbidden(spec.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds")
			break
		}
	}
	for i, g := range o.Spec.SchedulingGates {
		if !slices.Contains(old.Spec.SchedulingGates, g) {
			l.forbidden(spec.Child("schedulingGates").Index(i).Child("name"), fmt.Sprintf(
				"only deletion is allowed, but found new scheduling gate '%s'", g.Name))
		}
	}
	if equality.Semantic.DeepEqual(o.Spec, old.Spec) {
		return
	}
	allowed := o.Spec.DeepCopy()
	allowed.SchedulingGates = old.Spec.SchedulingGates
	if len(old.Spec.SchedulingGates) > 0 {
		l.onlyNarrowed(&o.Spec, &old.Spec)
		allowed.NodeSelector, allowed.Affinity = old.Spec.NodeSelector, withNodeAffinityOf(o.Spec.Affinity, old.Spec.Affinity)
	}
	for i := range allowed.Containers {
		allowed.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range allowed.InitContainers {
		allowed.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	allowed.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	allowed.Tolerations = old.Spec.Tolerations
	if !equality.Semantic.DeepEqual(allowed, &old.Spec) {
		l.forbidden(spec, fmt.Sprintf("pod updates may not change fields other than %s", strings.Join([]string{
			"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
			"`spec.tolerations` (only additions to existing tolerations)", "`spec.schedulingGates` (only deletions)",
		}, ",")))
	}
}

// onlyNarrowed checks that an update of a pod with a scheduling gate allows no additional nodes.
func (l *list) onlyNarrowed(now, was *corev1.PodSpec) {
	for k, v := range was.NodeSelector {
		if have, ok := now.NodeSelector[k]; !ok || have != v {
			l.invalid(spec.Child("nodeSelector"), now.NodeSelector,
				"only additions to spec.nodeSelector are allowed (no mutations or deletions)")
			break
		}
	}
	required := requiredOf(was)
	if required == nil {
		return
	}
	at := spec.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	var terms []corev1.NodeSelectorTerm
	if r := requiredOf(now); r != nil {
		terms = r.NodeSelectorTerms
	}
	if len(terms) != len(required.NodeSelectorTerms) {
		l.invalid(at, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return
	}
	for i, t := range required.NodeSelectorTerms {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 { // an empty term matches nothing; an addition would widen it
			if !equality.Semantic.DeepEqual(t, terms[i]) {
				l.invalid(at.Index(i), terms[i], "a term that is empty can not be changed")
			}
			continue
		}
		if !hasPrefix(terms[i].MatchExpressions, t.MatchExpressions) || !hasPrefix(terms[i].MatchFields, t.MatchFields) {
			l.invalid(at.Index(i), terms[i], "only additions are allowed (no mutations or deletions)")
		}
	}
}

func requiredOf(s *corev1.PodSpec) *corev1.NodeSelector {
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return nil
	}
	return s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// hasPrefix reports whether a list starts with another one.
func hasPrefix(list, with []corev1.NodeSelectorRequirement) bool {
	return len(list) >= len(with) && equality.Semantic.DeepEqual(list[:len(with)], with)
}

// withNodeAffinityOf returns the affinity a with the node affinity of was.
func withNodeAffinityOf(a, was *corev1.Affinity) *corev1.Affinity {
	if a == nil && was == nil {
		return nil
	}
	out := &corev1.Affinity{}
	if a != nil {
		out = a.DeepCopy()
	}
	if out.NodeAffinity = nil; was != nil {
		out.NodeAffinity = was.NodeAffinity
	} else if *out == (corev1.Affinity{}) {
		return nil
	}
	return out
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

// hasToleration looks for a toleration, ignoring its seconds.
func hasToleration(have []corev1.Toleration, t corev1.Toleration) bool {
	for _, h := range have {
		if h.MatchToleration(&t) {
			return true
		}
	}
	return false
}
