package write

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// Delete returns the step that deletes the object.
func (r *Request) Delete(s state.Snapshot, o *metav1.DeleteOptions, now time.Time) (Step, error) {
	live := r.live(s)
	if live == nil {
		return Step{}, r.missing()
	}
	change, ok, err := r.deleteChange(live, o, now)
	if err != nil {
		return Step{}, err
	}
	st := Step{Result: live, dependsOn: map[state.Key]state.Object{state.KeyOf(live): live}}
	if ok {
		st.Changes, st.Result = []state.Change{change}, change.Object
	}
	return st, nil
}

// DeleteAll returns the step that deletes objects.
func (r *Request) DeleteAll(all []state.Object, o *metav1.DeleteOptions, now time.Time) (st Step, err error) {
	for _, live := range all {
		change, ok, err := r.deleteChange(live, o, now)
		if err != nil {
			return Step{}, err
		}
		if ok {
			st.Changes, st.Result = append(st.Changes, change), change.Object
		}
	}
	return st, nil
}

// deleteChange returns the change that deletes an object: at once, or with a deletionTimestamp
// while finalizers or a device hold the object. ok is false if nothing changes.
func (r *Request) deleteChange(live state.Object, o *metav1.DeleteOptions,
	now time.Time) (change state.Change, ok bool, err error) {
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != live.GetUID() {
			return change, false, apierrors.NewConflict(r.Resource.GroupResource(), live.GetName(), fmt.Errorf(
				"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted "+
					"and then recreated", *p.UID, live.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != live.GetResourceVersion() {
			return change, false, apierrors.NewConflict(r.Resource.GroupResource(), live.GetName(), fmt.Errorf(
				"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object "+
					"might have been modified", *p.ResourceVersion, live.GetResourceVersion()))
		}
	}
	why := r.reason("delete", live)
	next := live.DeepCopyObject().(state.Object)
	changed := false
	switch next.(type) {
	case *corev1.Pod, *corev1.Namespace: // as in Kubernetes, a second deletion does not change the propagation
		if live.GetDeletionTimestamp() == nil {
			setPropagation(next, o)
		}
	default:
		changed = setPropagation(next, o)
	}
	switch next := next.(type) {
	case *corev1.Pod:
		grace := o.GracePeriodSeconds
		if grace != nil && *grace < 0 {
			grace = new(int64(1)) // as in Kubernetes, a negative value does not force the deletion
		}
		change, ok = state.Delete(next, now, grace, why)
		return change, ok, nil
	case *corev1.Namespace:
		if next.DeletionTimestamp != nil {
			return change, false, nil
		}
		if state.IsBuiltInNamespace(next.Name) {
			return change, false, apierrors.NewForbidden(r.Resource.GroupResource(), next.Name,
				errors.New("this namespace may not be deleted"))
		}
		markDeleted(next, now)
		next.Status.Phase = corev1.NamespaceTerminating
		return state.Put(next, why), true, nil
	}
	if r.Resource.State == state.PriorityClasses && state.SystemClass(live.GetName()) != nil {
		return change, false, apierrors.NewForbidden(r.Resource.GroupResource(), live.GetName(),
			errors.New("this is a system priority class and cannot be deleted"))
	}
	if len(next.GetFinalizers()) == 0 {
		return state.Remove(live, why), true, nil
	}
	if next.GetDeletionTimestamp() == nil {
		markDeleted(next, now)
		if r.Resource.Generation {
			next.SetGeneration(next.GetGeneration() + 1)
		}
		changed = true
	}
	return state.Put(next, why), changed, nil
}

// markDeleted sets an object's deletionTimestamp.
func markDeleted(o state.Object, now time.Time) {
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	zero := int64(0)
	o.SetDeletionTimestamp(&at)
	o.SetDeletionGracePeriodSeconds(&zero)
}

// setPropagation sets the finalizers for the deletion of dependents, which package workload's
// garbage collector handles. Background needs no finalizer, because dependents are deleted after
// their owner. Without an option, existing finalizers decide, or else the kind's default.
func setPropagation(o state.Object, opts *metav1.DeleteOptions) bool {
	want := ""
	//lint:ignore SA1019 older clients still send it
	switch p, orphan := opts.PropagationPolicy, opts.OrphanDependents; {
	case p != nil && *p == metav1.DeletePropagationOrphan, p == nil && orphan != nil && *orphan:
		want = metav1.FinalizerOrphanDependents
	case p != nil && *p == metav1.DeletePropagationForeground:
		want = metav1.FinalizerDeleteDependents
	case p != nil, orphan != nil:
	case slices.ContainsFunc(o.GetFinalizers(), propagates):
		return false
	case state.KindOf(o).Row().Orphans:
		want = metav1.FinalizerOrphanDependents
	}
	keep := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), propagates)
	if want != "" {
		keep = append(keep, want)
	}
	if slices.Equal(keep, o.GetFinalizers()) {
		return false
	}
	o.SetFinalizers(keep)
	return true
}

// propagates reports whether a finalizer is one of setPropagation's.
func propagates(finalizer string) bool {
	return finalizer == metav1.FinalizerOrphanDependents || finalizer == metav1.FinalizerDeleteDependents
}
