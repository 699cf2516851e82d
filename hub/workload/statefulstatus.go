package workload

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// status updates the status, and reports the pods that the StatefulSet waits for.
func (d *stateful) status(ends bool) {
	d.gather(false)
	st := d.set.Status.DeepCopy()
	if ends || d.update != nil {
		st.ObservedGeneration = d.set.Generation
	}
	if d.update != nil {
		st.CurrentRevision, st.UpdateRevision, st.CollisionCount = d.current.Name, d.update.Name, &d.collisions
	}
	st.Replicas, st.ReadyReplicas, st.AvailableReplicas, st.CurrentReplicas, st.UpdatedReplicas = 0, 0, 0, 0, 0
	for _, pod := range d.pods {
		st.Replicas++
		if pod.Status.Phase == corev1.PodRunning && ready(pod) {
			st.ReadyReplicas++
			if d.available(pod, d.set.Spec.MinReadySeconds, &d.next) {
				st.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revisionLabel(pod) == st.CurrentRevision {
			st.CurrentReplicas++
		}
		if revisionLabel(pod) == st.UpdateRevision {
			st.UpdatedReplicas++
		}
	}
	all := int32(d.want)
	if !ends && d.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && st.UpdatedReplicas == all &&
		st.ReadyReplicas == all && st.Replicas == all {
		st.CurrentReplicas, st.CurrentRevision = st.UpdatedReplicas, st.UpdateRevision
	}
	refused := d.condition(st, statefulFailure, failedCreate, d.refuse)
	for _, c := range st.Conditions {
		if c.Type == statefulFailure && d.Complete != nil {
			setEarlier(&d.next, d.retryAt(c.LastTransitionTime))
		}
	}
	unreachable, blocked := d.unreachable(maps.Values(d.pods),
		"No other pod gets that name until the device is back"), d.blocked()
	stuck := d.condition(st, state.PodUnreachable, string(state.PodUnreachable), unreachable)
	behind := d.condition(st, state.RolloutBlocked, string(state.RolloutBlocked), blocked)
	if equality.Semantic.DeepEqual(&d.set.Status, st) {
		return
	}
	set := d.set.DeepCopy()
	set.Status = *st
	c := state.Put(set, "")
	switch {
	case refused:
		c = refusal(set, d.refuse, statefulSource)
	case stuck:
		c = waitChange(set, unreachable, string(state.PodUnreachable), statefulSource)
	case behind:
		c = waitChange(set, blocked, string(state.RolloutBlocked), statefulSource)
	}
	d.do(c)
}

// waitChange returns the change of a workload with an event that says why the workload waits.
func waitChange(o state.Object, why, reason, source string) state.Change {
	c := state.Put(o, fmt.Sprintf("%s waits: %s", state.Display(o), why)).Warning(reason)
	c.Message, c.Source = why, source
	return c
}

// unreadyFor is how long a pod may be unready before it counts as stuck.
const unreadyFor = time.Minute

// blocked names the pod of an older revision that blocks the update, and the command that helps; ""
// if there is none.
func (d *stateful) blocked() string {
	pod := d.waitsFor
	if pod == nil || pod.DeletionTimestamp != nil || silent(d.s.Node(pod.Spec.NodeName)) {
		return ""
	}
	since := pod.CreationTimestamp
	if c := state.PodCondition(pod, corev1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
		since = c.LastTransitionTime
	}
	if at := since.Add(unreadyFor); at.After(d.now) {
		setEarlier(&d.next, at)
		return ""
	}
	return fmt.Sprintf("%s has an older revision and does not become ready, and the pods after it "+
		"wait for it. If it will never be ready: kubectl delete pod %s -n %s", pod.Name, pod.Name, pod.Namespace)
}

// statefulFailure is a condition of ReplicaSets. Kubernetes' StatefulSets lack it; they only have
// events.
const statefulFailure = appsv1.StatefulSetConditionType(appsv1.ReplicaSetReplicaFailure)

// condition sets a condition while there is a message, and removes it otherwise. It reports whether
// the message is new. It does not change other conditions.
func (d *stateful) condition(st *appsv1.StatefulSetStatus, t appsv1.StatefulSetConditionType, reason,
	message string) bool {
	at := slices.IndexFunc(st.Conditions, func(c appsv1.StatefulSetCondition) bool { return c.Type == t })
	switch {
	case message == "" && at >= 0:
		st.Conditions = slices.Delete(st.Conditions, at, at+1)
		return false
	case message == "" || at >= 0 && st.Conditions[at].Message == message:
		return false
	case at >= 0:
		st.Conditions[at].Message = message
		return false
	}
	st.Conditions = append(st.Conditions,
		appsv1.StatefulSetCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: d.stamp(), Reason: reason,
			Message: message})
	return true
}

// silent reports whether a node's Ready condition is Unknown. Its pods may still run.
func silent(n *corev1.Node) bool { return n != nil && state.ReadyOf(n) == corev1.ConditionUnknown }

// maxNamed is how many pods a message names.
const maxNamed = 3

// unreachable names the pods on unreachable devices, with the consequence and the commands that
// help; "" if there are none.
func (p *pass) unreachable(pods iter.Seq[*corev1.Pod], follows string) string {
	var list []*corev1.Pod
	for pod := range pods {
		if pod.Spec.NodeName != "" && !state.Terminated(pod) && silent(p.s.Node(pod.Spec.NodeName)) {
			list = append(list, pod)
		}
	}
	if len(list) == 0 {
		return ""
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	var who []string
	for _, pod := range list[:min(len(list), maxNamed)] {
		who = append(who, fmt.Sprintf("%s on %s", pod.Name, pod.Spec.NodeName))
	}
	if more := len(list) - maxNamed; more > 0 {
		who = append(who, fmt.Sprintf("%d more", more))
	}
	first := list[0]
	text := fmt.Sprintf("%s may still run: the device does not answer. %s. If the device never returns: kubectl delete "+
		"node %s; if the pod has certainly stopped: kubectl delete pod %s -n %s --force",
		strings.Join(who, ", "), follows, first.Spec.NodeName, first.Name, first.Namespace)
	if state.HasClaims(first) {
		text += ". Its volume is on that device: a new pod waits for it, unless its claims are deleted too"
	}
	return text
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func (d *stateful) claimName(t *corev1.PersistentVolumeClaim, n int64) string {
	return fmt.Sprintf("%s-%s-%d", t.Name, d.set.Name, n)
}

// claimed adds the StatefulSets to which a claim may belong by its name.
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

// claims creates the missing claims of an ordinal's pod. It returns why a new pod has to wait; ""
// if it need not.
func (d *stateful) claims(n int64, fresh bool) (wait string) {
	for i := range d.set.Spec.VolumeClaimTemplates {
		t := &d.set.Spec.VolumeClaimTemplates[i]
		name := d.claimName(t, n)
		switch c := d.s.Claim(d.set.Namespace, name); {
		case c == nil:
			wait = cmp.Or(wait, d.makeClaim(t, n))
		case c.DeletionTimestamp != nil:
			wait = cmp.Or(wait, fmt.Sprintf("persistentvolumeclaim %q is being deleted", name))
		case fresh && d.scaledAway() && slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool {
			return refersTo(r, podKind, d.name(n))
		}):
			wait = cmp.Or(wait, fmt.Sprintf("persistentvolumeclaim %q is deleted with its former pod", name))
		}
	}
	return wait
}

// makeClaim creates a claim, or returns why it may not be created. The reason applies to all claims
// of the template.
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
		Name: d.claimName(t, n), Namespace: d.set.Namespace, Labels: labels, Annotations: c.Annotations,
		Finalizers: c.Finalizers, CreationTimestamp: d.stamp(),
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
	d.tell(state.Put(c, fmt.Sprintf("create claim %s for %s of %s", state.Display(c), d.name(n), d.set.Name)),
		"SuccessfulCreate")
	return ""
}

// mayClaim checks a new claim against the limit ranges and quotas of its namespace.
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

// setClaimOwners sets the owner references of a pod's claims by the retention policy: the
// StatefulSet, the surplus pod, or none.
func (d *stateful) setClaimOwners(pod *corev1.Pod, n int64) {
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

// ownersOf returns the owner references that a pod's claim should have. known is false while the
// claim refers to an earlier StatefulSet or pod of the same name; garbage collection removes that
// reference. References to another controller stay.
func (d *stateful) ownersOf(c *corev1.PersistentVolumeClaim, pod *corev1.Pod,
	n int64) (refs []metav1.OwnerReference, known bool) {
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
		return slices.DeleteFunc(refs, func(r metav1.OwnerReference) bool {
			return r.UID == d.set.UID || pod != nil && r.UID == pod.UID
		}), true
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
