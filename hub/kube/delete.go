package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// deleting reads the options of a deletion and checks them.
func (c *call) deleting() (*metav1.DeleteOptions, resource.Form, error) {
	o, err := c.deleteOptions()
	if err != nil {
		return nil, resource.Form{}, err
	}
	if errs := validation.ValidateDeleteOptions(o); len(errs) > 0 {
		return nil, resource.Form{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	if err := c.ownLeases(); err != nil {
		return nil, resource.Form{}, err
	}
	//lint:ignore SA1019 older clients still send it
	if c.res.State == state.Jobs && o.PropagationPolicy == nil && o.OrphanDependents == nil {
		c.warn("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning")
	}
	f, err := resource.Negotiate(c.r, c.res.Media())
	return o, f, err
}

func (c *call) delete() error {
	o, f, err := c.deleting()
	if err != nil {
		return err
	}
	gone := false
	st, err := c.commit(len(o.DryRun) > 0, func(s state.Snapshot, now time.Time) (step, error) {
		live := c.lookup(s)
		if live == nil {
			return step{}, c.missing()
		}
		change, ok, err := c.deletion(live, o, now)
		if err != nil {
			return step{}, err
		}
		gone = ok && change.Delete
		st := step{result: live, base: map[state.Key]state.Object{state.KeyOf(live): live}}
		if ok {
			st.changes, st.result = []state.Change{change}, change.Object
		}
		return st, nil
	})
	if err != nil {
		return err
	}
	if !gone || c.res.State == state.Pods || c.res.State == state.Namespaces {
		return c.write(http.StatusOK, c.res.Show(st.result), f.Media)
	}
	return c.write(http.StatusOK, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: c.name, Group: c.res.Group, Kind: c.res.Plural, UID: st.result.GetUID()},
	}, f.Media)
}

// deletion is the change that deletes an object: at once, or, where a finalizer
// or a device holds it, by a mark. Where that changes nothing, ok is false.
func (c *call) deletion(live state.Object, o *metav1.DeleteOptions, now time.Time) (change state.Change, ok bool, err error) {
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != live.GetUID() {
			return change, false, apierrors.NewConflict(c.res.GroupResource(), live.GetName(), fmt.Errorf(
				"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, live.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != live.GetResourceVersion() {
			return change, false, apierrors.NewConflict(c.res.GroupResource(), live.GetName(), fmt.Errorf(
				"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, live.GetResourceVersion()))
		}
	}
	why := c.why("delete", live)
	next := live.DeepCopyObject().(state.Object)
	changed := false
	switch next.(type) {
	case *corev1.Pod, *corev1.Namespace: // whose end has begun, as with Kubernetes
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
			grace = new(int64(1)) // as Kubernetes does: it is no order to forget the pod at once
		}
		change, ok = state.Delete(next, now, grace, why)
		return change, ok, nil
	case *corev1.Namespace:
		if next.DeletionTimestamp != nil {
			return change, false, nil
		}
		if state.Immortal(next.Name) {
			return change, false, apierrors.NewForbidden(c.res.GroupResource(), next.Name, errors.New("this namespace may not be deleted"))
		}
		mark(next, now)
		next.Status.Phase = corev1.NamespaceTerminating
		return state.Put(next, why), true, nil
	}
	if c.res.State == state.PriorityClasses && state.SystemClass(live.GetName()) != nil {
		return change, false, apierrors.NewForbidden(c.res.GroupResource(), live.GetName(), errors.New("this is a system priority class and cannot be deleted"))
	}
	if len(next.GetFinalizers()) == 0 {
		return state.Remove(live, why), true, nil
	}
	if next.GetDeletionTimestamp() == nil {
		mark(next, now)
		if c.res.Generation {
			next.SetGeneration(next.GetGeneration() + 1)
		}
		changed = true
	}
	return state.Put(next, why), changed, nil
}

// mark notes that an object is to go.
func mark(o state.Object, now time.Time) {
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	zero := int64(0)
	o.SetDeletionTimestamp(&at)
	o.SetDeletionGracePeriodSeconds(&zero)
}

// setPropagation notes in an object's finalizers what is to become of those that
// it owns; the garbage collection of package workload does it. In the background
// needs no note: they go when their owner has gone. Where the deletion does not say, what
// is noted already stands, and then what is usual of the kind.
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

// propagates tells whether a finalizer says what is to become of what an object owns.
func propagates(finalizer string) bool {
	return finalizer == metav1.FinalizerOrphanDependents || finalizer == metav1.FinalizerDeleteDependents
}

func (c *call) deleteCollection() error {
	o, f, err := c.deleting()
	if err != nil {
		return err
	}
	list, sel, err := c.options(c.res.State)
	if err != nil {
		return err
	}
	var gone []state.Object
	_, err = c.commit(len(o.DryRun) > 0, func(s state.Snapshot, now time.Time) (step, error) {
		st := step{}
		gone = nil
		for live := range c.view.Walk(s, sel, "", "") {
			if list.Limit > 0 && int64(len(gone)) == list.Limit {
				break
			}
			change, ok, err := c.deletion(live, o, now)
			if err != nil {
				return step{}, err
			}
			gone = append(gone, live)
			if ok {
				st.changes, st.result = append(st.changes, change), change.Object
			}
		}
		return st, nil
	})
	if err != nil {
		return err
	}
	answer, err := c.view.Many(c.res, gone, f, metav1.ListMeta{ResourceVersion: resource.FormatRev(c.Fleet.Snapshot().Revision)})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, answer, f.Media)
}
