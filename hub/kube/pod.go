package kube

import (
	"errors"
	"maps"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// done answers a request that creates nothing that could be shown.
func (c *call) done(f resource.Form) error {
	return c.write(http.StatusCreated, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated,
	}, f.Media)
}

// bind places a pod on a node by hand.
func (c *call) bind() error {
	w, err := c.writing("")
	if err != nil {
		return err
	}
	o, f, err := c.posted(c.sub.Kind)
	if err != nil {
		return err
	}
	binding := o.(*corev1.Binding)
	if err := c.place(binding); err != nil {
		return err
	}
	node := binding.Target.Name
	if k := binding.Target.Kind; node == "" || k != "" && k != "Node" {
		return apierrors.NewBadRequest(`target is not a node: give its name in target.name, with target.kind "Node"`)
	}
	_, err = c.commit(w.dry, func(s state.Snapshot, now time.Time) (step, error) {
		p := s.Pod(c.namespace, c.name)
		switch {
		case p == nil:
			return step{}, c.missing()
		case c.otherThan(p, binding.UID) != nil:
			return step{}, c.otherThan(p, binding.UID)
		case binding.ResourceVersion != "" && binding.ResourceVersion != p.ResourceVersion:
			return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, errModified)
		case p.Spec.NodeName != "":
			return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, errors.New("pod "+c.name+" is already assigned to node \""+p.Spec.NodeName+"\""))
		case p.DeletionTimestamp != nil:
			return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, errors.New("pod "+c.name+" is being deleted, cannot be assigned to a host"))
		case len(p.Spec.SchedulingGates) > 0:
			return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, errors.New("pod "+c.name+" has non-empty .spec.schedulingGates"))
		case s.Node(node) == nil:
			return step{}, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, node)
		}
		next := p.DeepCopy()
		if err := c.bound(next, p, binding); err != nil {
			return step{}, err
		}
		next.Spec.NodeName = node
		state.SetPodCondition(next, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, state.Ceil(now).Time)
		return step{changes: []state.Change{state.Put(next, "bind "+state.Display(p)+" to "+node+": asked by "+c.who.Name)}, result: next}, nil
	})
	if err != nil {
		return err
	}
	return c.done(f)
}

// bound gives a pod the labels and annotations of what binds it, as Kubernetes does: a scheduler of its own
// says with them what it has chosen.
func (c *call) bound(next, p *corev1.Pod, binding *corev1.Binding) error {
	if len(binding.Labels)+len(binding.Annotations) == 0 {
		return nil
	}
	next.Labels, next.Annotations = merged(p.Labels, binding.Labels), merged(p.Annotations, binding.Annotations)
	if _, errs := admission.Admit(next, p, c.Settings); len(errs) > 0 {
		return c.invalid(errs...)
	}
	return nil
}

// merged is a new map of what is in both; what the second says counts.
func merged(a, b map[string]string) map[string]string {
	all := make(map[string]string, len(a)+len(b))
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// evict deletes a pod, unless a disruption budget would not have it.
func (c *call) evict() error {
	w, err := c.writing("")
	if err != nil {
		return err
	}
	o, f, err := c.posted(c.sub.Kind)
	if err != nil {
		return err
	}
	eviction := o.(*policyv1.Eviction)
	if err := c.place(eviction); err != nil {
		return err
	}
	opts := eviction.DeleteOptions
	if opts == nil {
		opts = new(metav1.DeleteOptions)
	}
	if errs := validation.ValidateDeleteOptions(opts); len(errs) > 0 {
		return apierrors.NewInvalid(c.sub.Kind.GroupKind(), c.name, errs)
	}
	_, err = c.commit(w.dry || len(opts.DryRun) > 0, func(s state.Snapshot, now time.Time) (step, error) {
		p := s.Pod(c.namespace, c.name)
		if p == nil {
			return step{}, c.missing()
		}
		st := step{result: p}
		if err := permit(s, p, now); err != nil {
			return step{}, err
		}
		change, ok, err := c.deletion(p, opts, now)
		if err != nil || !ok {
			return st, err
		}
		change.Why = "evict " + state.Display(p) + " from " + p.Spec.NodeName + ": asked by " + c.who.Name
		if gone, isPod := change.Object.(*corev1.Pod); isPod && !change.Delete {
			state.SetPodCondition(gone, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			}, now)
		}
		st.changes, st.result = []state.Change{change}, change.Object
		return st, nil
	})
	if err != nil {
		return err
	}
	return c.done(f)
}
