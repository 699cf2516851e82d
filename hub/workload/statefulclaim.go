package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func (d *stateful) claimName(t *corev1.PersistentVolumeClaim, n int64) string {
	return fmt.Sprintf("%s-%s-%d", t.Name, d.set.Name, n)
}

// claimed notes the StatefulSets whose claim, by its name, one may be.
func (p *pass) claimed(w *work, k state.Key) {
	for set := range state.Each[*appsv1.StatefulSet](p.s, state.StatefulSets, k.Namespace) {
		for i := range set.Spec.VolumeClaimTemplates {
			pod, ok := strings.CutPrefix(k.Name, set.Spec.VolumeClaimTemplates[i].Name+"-")
			if _, its := ordinalOf(set.Name, pod); ok && its {
				w.add(state.KeyOf(set))
			}
		}
	}
}

// claims makes the claims that the pod of an ordinal is missing and may have. It says why a
// pod that is new has to wait; empty: it has not.
func (d *stateful) claims(n int64, fresh bool) (wait string) {
	for i := range d.set.Spec.VolumeClaimTemplates {
		t := &d.set.Spec.VolumeClaimTemplates[i]
		name := d.claimName(t, n)
		switch c := d.s.Claim(d.set.Namespace, name); {
		case c == nil:
			wait = cmp.Or(wait, d.makeClaim(t, n))
		case c.DeletionTimestamp != nil:
			wait = cmp.Or(wait, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name))
		case fresh && d.scaledAway() && slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return refersTo(r, podKind, d.name(n)) }):
			wait = cmp.Or(wait, fmt.Sprintf("persistentvolumeclaim %q goes with the pod that had it", name))
		}
	}
	return wait
}

// makeClaim makes a claim, or says why it may not be made: then no other of its template may.
func (d *stateful) makeClaim(t *corev1.PersistentVolumeClaim, n int64) (why string) {
	if why = d.denied[t.Name]; why != "" {
		return why
	}
	c := t.DeepCopy()
	labels := maps.Clone(c.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, d.set.Spec.Selector.MatchLabels)
	c.TypeMeta, c.Status = metav1.TypeMeta{}, corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	c.ObjectMeta = metav1.ObjectMeta{
		Name: d.claimName(t, n), Namespace: d.set.Namespace, Labels: labels, Annotations: c.Annotations, Finalizers: c.Finalizers, CreationTimestamp: d.stamp(),
	}
	c.OwnerReferences, _ = d.ownersOf(c, nil, n)
	if err := d.mayClaim(c); err != nil {
		if d.denied == nil {
			d.denied = map[string]string{}
		}
		why = fmt.Sprintf("persistentvolumeclaims %q is forbidden: %v", c.Name, err)
		d.denied[t.Name], d.refuse = why, cmp.Or(d.refuse, why)
		return why
	}
	d.tell(state.Put(c, fmt.Sprintf("create claim %s for %s of %s", state.Display(c), d.name(n), d.set.Name)), "SuccessfulCreate")
	return ""
}

// mayClaim asks what the namespace says of a new claim: its limit ranges, and its quotas.
func (d *stateful) mayClaim(c *corev1.PersistentVolumeClaim) error {
	if d.Complete != nil {
		if err := d.Complete(c, d.s); err != nil {
			return err
		}
	}
	if d.Charge != nil {
		_, err := d.Charge(c, d.s, d.now)
		return err
	}
	return nil
}

// owned sees to it that the claims of a pod go with whom they are to go: with the
// StatefulSet, with the pod that is not wanted any more, or with nobody.
func (d *stateful) owned(pod *corev1.Pod, n int64) {
	for i := range d.set.Spec.VolumeClaimTemplates {
		c := d.s.Claim(d.set.Namespace, d.claimName(&d.set.Spec.VolumeClaimTemplates[i], n))
		if c == nil || d.born[state.KeyOf(c)] {
			continue
		}
		if refs, known := d.ownersOf(c, pod, n); known && !equality.Semantic.DeepEqual(refs, c.OwnerReferences) {
			c = c.DeepCopy()
			c.OwnerReferences = refs
			d.do(state.Put(c, ""))
		}
	}
}

func (d *stateful) scaledAway() bool {
	keep := d.set.Spec.PersistentVolumeClaimRetentionPolicy
	return keep != nil && keep.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// ownersOf returns the owners that the claim of a pod is to have. One that belongs to an
// earlier StatefulSet or pod of the same name is not known: it is left to the garbage
// collection. One that somebody else controls stays that one's.
func (d *stateful) ownersOf(c *corev1.PersistentVolumeClaim, pod *corev1.Pod, n int64) (refs []metav1.OwnerReference, known bool) {
	foreign, spare := false, !d.inRange(n)
	withPod := d.scaledAway() && spare && pod != nil
	keep := d.set.Spec.PersistentVolumeClaimRetentionPolicy
	deletes := keep != nil && keep.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	withSet := deletes && !(d.scaledAway() && spare)
	is := func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller }
	for _, r := range c.OwnerReferences {
		switch {
		case refersTo(r, statefulSetKind, d.set.Name):
			if r.UID != d.set.UID {
				return nil, false
			}
			if withSet && is(r) {
				refs, withSet = append(refs, r), false
			}
		case refersTo(r, podKind, d.name(n)):
			if pod == nil || r.UID != pod.UID {
				return nil, false
			}
			if withPod && is(r) {
				refs, withPod = append(refs, r), false
			}
		default:
			refs, foreign = append(refs, r), foreign || is(r)
		}
	}
	if foreign && (deletes || d.scaledAway()) {
		return slices.DeleteFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == d.set.UID || pod != nil && r.UID == pod.UID }), true
	}
	if withSet {
		refs = append(refs, *metav1.NewControllerRef(d.set, statefulSetKind))
	}
	if withPod {
		refs = append(refs, *metav1.NewControllerRef(pod, podKind))
	}
	return refs, true
}

func refersTo(r metav1.OwnerReference, kind gvk, name string) bool {
	return r.Kind == kind.Kind && r.APIVersion == kind.GroupVersion().String() && r.Name == name
}
