package write

import (
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
)

// Bind returns the step that assigns a pod to a node on request.
func (r *Request) Bind(s state.Snapshot, binding *corev1.Binding, now time.Time) (Step, error) {
	node := binding.Target.Name
	p := s.Pod(r.Namespace, r.Name)
	switch {
	case p == nil:
		return Step{}, r.missing()
	case r.checkUID(p, binding.UID) != nil:
		return Step{}, r.checkUID(p, binding.UID)
	case binding.ResourceVersion != "" && binding.ResourceVersion != p.ResourceVersion:
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, errModified)
	case p.Spec.NodeName != "":
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name,
			errors.New("pod "+r.Name+" is already assigned to node \""+p.Spec.NodeName+"\""))
	case p.DeletionTimestamp != nil:
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name,
			errors.New("pod "+r.Name+" is being deleted, cannot be assigned to a host"))
	case len(p.Spec.SchedulingGates) > 0:
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name,
			errors.New("pod "+r.Name+" has non-empty .spec.schedulingGates"))
	case s.Node(node) == nil:
		return Step{}, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, node)
	}
	next := p.DeepCopy()
	if err := r.withBindingMeta(next, p, binding); err != nil {
		return Step{}, err
	}
	next.Spec.NodeName = node
	state.SetPodCondition(next, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		state.Ceil(now).Time)
	return Step{Changes: []state.Change{state.Put(next, "bind "+state.Display(p)+" to "+node+": asked by "+r.User)},
		Result: next}, nil
}

// withBindingMeta adds the binding's labels and annotations to the pod, as Kubernetes does.
// External schedulers record their choice there.
func (r *Request) withBindingMeta(next, p *corev1.Pod, binding *corev1.Binding) error {
	if len(binding.Labels)+len(binding.Annotations) == 0 {
		return nil
	}
	next.Labels, next.Annotations = merged(p.Labels, binding.Labels), merged(p.Annotations, binding.Annotations)
	if _, errs := admission.Admit(next, p, r.Settings); len(errs) > 0 {
		return r.invalid(errs...)
	}
	return nil
}

// merged returns a new map with the entries of both maps. Those of b have precedence.
func merged(a, b map[string]string) map[string]string {
	all := make(map[string]string, len(a)+len(b))
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// Evict returns the step that deletes a pod if its disruption budgets allow it.
func (r *Request) Evict(s state.Snapshot, opts *metav1.DeleteOptions, now time.Time) (Step, error) {
	p := s.Pod(r.Namespace, r.Name)
	if p == nil {
		return Step{}, r.missing()
	}
	st := Step{Result: p}
	if err := checkBudgets(s, p, now); err != nil {
		return Step{}, err
	}
	change, ok, err := r.deleteChange(p, opts, now)
	if err != nil || !ok {
		return st, err
	}
	change.Why = "evict " + state.Display(p) + " from " + p.Spec.NodeName + ": asked by " + r.User
	if gone, isPod := change.Object.(*corev1.Pod); isPod && !change.Delete {
		state.SetPodCondition(gone, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
			Message: "Eviction API: evicting",
		}, now)
	}
	st.Changes, st.Result = []state.Change{change}, change.Object
	return st, nil
}

// checkBudgets returns why a pod may not be evicted now. It counts pods in the snapshot that the
// eviction changes. The loop is the only writer, so two evictions cannot count the same pod as
// available.
func checkBudgets(s state.Snapshot, p *corev1.Pod, now time.Time) error {
	h := state.RefusalFor(s, p, now)
	switch {
	case h == nil:
		return nil
	case h.Several:
		//lint:ignore ST1005 the words of Kubernetes
		return apierrors.NewInternalError(errors.New(
			"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."))
	}
	e := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: h.String()}}
	return e
}
