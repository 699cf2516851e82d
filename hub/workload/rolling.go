package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

// setSize sets a ReplicaSet's replicas, and the annotations that show later whether the
// Deployment's replicas have changed.
func (r *rollout) setSize(rs *appsv1.ReplicaSet, n int32) {
	from := replicasOf(rs)
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[desiredAnnotation] = strconv.Itoa(int(*r.d.Spec.Replicas))
	rs.Annotations[maxAnnotation] = strconv.Itoa(int(*r.d.Spec.Replicas + r.surge))
	rs.Spec.Replicas = &n
	if was := r.was[rs.Name]; was != nil {
		from = replicasOf(was)
	}
	if from == n {
		delete(r.why, rs.Name)
		return
	}
	c := state.Put(rs, fmt.Sprintf("scale %s from %d to %d for %s", state.Display(rs), from, n,
		r.d.Name)).Event("ScalingReplicaSet")
	c.About, c.Source = r.before, "deployment-controller"
	r.why[rs.Name] = c
}

func total(sets []*appsv1.ReplicaSet, count func(*appsv1.ReplicaSet) int32) (n int32) {
	for _, rs := range sets {
		n += count(rs)
	}
	return n
}

func availableOf(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }

// roomForNew returns the size that the current ReplicaSet may have now.
func (r *rollout) roomForNew() int32 {
	have, want := replicasOf(r.current), *r.d.Spec.Replicas
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return want
	}
	room := want + r.surge - total(r.all(), replicasOf)
	if room <= 0 {
		return have
	}
	return have + min(room, want-have)
}

// roll takes one step of a rolling update: it grows the new ReplicaSet within maxSurge, and shrinks
// the old ones within maxUnavailable.
func (r *rollout) roll() {
	r.syncRevision(true)
	if r.current == nil || r.born(r.current) {
		return
	}
	want := *r.d.Spec.Replicas
	switch have := replicasOf(r.current); {
	case have > want:
		r.setSize(r.current, want)
		return
	case have < want:
		if n := r.roomForNew(); n != have {
			r.setSize(r.current, n)
			return
		}
	}
	if !r.holdForImages() {
		r.shrinkOld()
	}
}

// born reports whether the ReplicaSet is created in this pass.
func (r *rollout) born(rs *appsv1.ReplicaSet) bool { return r.was[rs.Name] == nil }

func (r *rollout) shrinkOld() {
	if total(r.old, replicasOf) == 0 {
		return
	}
	least := *r.d.Spec.Replicas - r.gone
	notYet := replicasOf(r.current) - availableOf(r.current)
	spare := total(r.all(), replicasOf) - least - notYet
	if spare <= 0 {
		return
	}
	// Remove unavailable old pods first: they serve no requests and may block the rollout.
	for _, rs := range r.old {
		if n := min(spare, replicasOf(rs)-availableOf(rs)); n > 0 {
			r.setSize(rs, replicasOf(rs)-n)
			spare -= n
		}
	}
	spare = total(r.all(), availableOf) - least
	for _, rs := range r.old {
		if n := min(spare, replicasOf(rs)); n > 0 {
			r.setSize(rs, replicasOf(rs)-n)
			spare -= n
		}
	}
}

// recreate removes all old pods before it creates new pods.
func (r *rollout) recreate() {
	r.syncRevision(false)
	if r.holdForImages() {
		return
	}
	shrunk := false
	for _, rs := range r.old {
		if replicasOf(rs) > 0 {
			r.setSize(rs, 0)
			shrunk = true
		}
	}
	if shrunk {
		return
	}
	for _, rs := range r.old {
		for o := range r.s.Owned(rs.UID, state.Pods) {
			if pod := o.(*corev1.Pod); !state.Terminated(pod) {
				r.stopping = append(r.stopping, pod) // the pod runs, or may run
			}
		}
	}
	if len(r.stopping) > 0 {
		return
	}
	r.syncRevision(true)
	if r.current != nil && replicasOf(r.current) != *r.d.Spec.Replicas {
		r.setSize(r.current, *r.d.Spec.Replicas)
	}
}

// rescaled reports whether the Deployment's replicas have changed since its ReplicaSets were sized.
func (r *rollout) rescaled() bool {
	for _, rs := range r.all() {
		if n, err := strconv.Atoi(rs.Annotations[desiredAnnotation]); replicasOf(rs) > 0 && err == nil &&
			int32(n) != *r.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// scale distributes a changed number of replicas over the ReplicaSets in proportion to their sizes.
func (r *rollout) scale() {
	want := *r.d.Spec.Replicas
	var active []*appsv1.ReplicaSet
	for _, rs := range r.all() {
		if replicasOf(rs) > 0 {
			active = append(active, rs)
		}
	}
	if len(active) <= 1 {
		only := r.current
		if len(active) == 1 {
			only = active[0]
		} else if only == nil && len(r.old) > 0 {
			only = r.old[len(r.old)-1]
		}
		if only != nil && (replicasOf(only) != want || only.Annotations[desiredAnnotation] != strconv.Itoa(int(want))) {
			r.setSize(only, want)
		}
		return
	}
	if c := r.current; c != nil && replicasOf(c) == want && availableOf(c) == want &&
		c.Annotations[desiredAnnotation] == strconv.Itoa(int(want)) {
		for _, rs := range r.old {
			if replicasOf(rs) > 0 {
				r.setSize(rs, 0)
			}
		}
		return
	}
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return
	}
	allowed := int32(0)
	if want > 0 {
		allowed = want + r.surge
	}
	add := allowed - total(active, replicasOf)
	// The largest ReplicaSets come first. Among equal sizes, the newer grow first and the older
	// shrink first.
	slices.SortStableFunc(active, func(a, b *appsv1.ReplicaSet) int {
		age := a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		if add > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(replicasOf(b), replicasOf(a)), age)
	})
	sizes, added := make([]int32, len(active)), int32(0)
	for i, rs := range active {
		share := int32(0)
		if add != 0 {
			share = r.share(rs, add-added)
		}
		sizes[i] = replicasOf(rs) + share
		added += share
	}
	sizes[0] = max(sizes[0]+add-added, 0)
	for i, rs := range active {
		r.setSize(rs, sizes[i])
	}
}

// share returns how much of left a ReplicaSet gets in proportion to its size; below 0 it shrinks.
func (r *rollout) share(rs *appsv1.ReplicaSet, left int32) int32 {
	if left == 0 {
		return 0
	}
	part := -replicasOf(rs)
	if want := *r.d.Spec.Replicas; want > 0 {
		before, err := strconv.Atoi(rs.Annotations[maxAnnotation])
		if err != nil || before <= 0 {
			before = int(max(r.d.Status.Replicas, 1))
		}
		part += int32(math.Round(float64(replicasOf(rs)) * float64(want+r.surge) / float64(before)))
	}
	if left > 0 {
		return min(max(part, 0), left)
	}
	return max(min(part, 0), left)
}

// roll deletes pods of an older revision, from the last ordinal down to the partition. It deletes
// one at a time, each once the pods after it are available, or as many as maxUnavailable allows.
// With parallel pod management it deletes unavailable pods first, without that limit.
func (d *stateful) roll() {
	s := d.set.Spec.UpdateStrategy
	if s.Type == appsv1.OnDeleteStatefulSetStrategyType || d.missing {
		return
	}
	old := func(pod *corev1.Pod) bool { return revisionLabel(pod) != d.update.Name && pod.DeletionTimestamp == nil }
	from, most, bounded := int64(0), int64(1), false
	if u := s.RollingUpdate; u != nil {
		from = int64(max(ptr.Deref(u.Partition, 0), 0))
		if bounded = u.MaxUnavailable != nil; bounded {
			most = int64(unavailableOf(u.MaxUnavailable, int32(d.want)))
		}
	}
	idle := bounded && !d.ordered // replacing an unavailable pod costs no availability
	for i := d.want - 1; i >= 0 && bounded; i-- {
		pod := d.pods[d.first+i]
		if d.isAvailable(pod) {
			continue
		}
		if most--; idle && i >= from && old(pod) {
			d.drop(pod, "its template has changed, and it does not serve")
		}
	}
	for i := d.want - 1; i >= from && most > 0; i-- {
		switch pod := d.pods[d.first+i]; {
		case old(pod) && (!idle || d.isAvailable(pod)):
			d.drop(pod, "its template has changed")
			most--
		case !bounded && !d.isAvailable(pod):
			return
		}
	}
}

// unavailableOf returns how many pods may be unavailable during an update, at least one.
func unavailableOf(v *intstr.IntOrString, total int32) int32 {
	return max(scaled(v, total, false), 1)
}
