package kube

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
)

var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// anyVersion tells whether the resourceVersion of an object that is sent asks for none: Kubernetes
// reads it as a number, and none of an object is 0.
func anyVersion(rv string) bool { return rv == "" || rv == "0" }

func (c *call) update() error {
	w, f, err := c.changing("")
	if err != nil {
		return err
	}
	o, err := c.object()
	if err != nil {
		return err
	}
	st, err := c.commit(w.dry, func(s state.Snapshot, now time.Time) (step, error) {
		next := o.DeepCopyObject().(state.Object)
		live := c.lookup(s)
		switch {
		case live == nil && c.sub == nil && c.res.Row.CreateOnUpdate:
			if err := c.mayCreate(); err != nil {
				return step{}, err
			}
			next.SetResourceVersion("")
			return c.creation(s, next, w, now)
		case live == nil:
			return step{}, c.missing()
		case c.otherThan(live, next.GetUID()) != nil:
			return step{}, c.otherThan(live, next.GetUID())
		}
		admission.Default(next, c.Settings)
		if err := c.apply.update(c.res, live, next, w.manager, c.target.sub); err != nil {
			return step{}, err
		}
		return c.replacement(s, live, next, now)
	})
	if err != nil {
		return err
	}
	code := http.StatusOK
	if st.created {
		code = http.StatusCreated
	}
	return c.write(code, c.view.One(c.res, st.result, f, true), f.Media)
}

// otherThan refuses what is meant for an object of that name with another UID.
func (c *call) otherThan(live state.Object, uid types.UID) error {
	if uid == "" || uid == live.GetUID() {
		return nil
	}
	//lint:ignore ST1005 the words of Kubernetes
	return apierrors.NewConflict(c.res.GroupResource(), c.name, fmt.Errorf(
		"Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, live.GetUID()))
}

func (c *call) invalid(errs ...*field.Error) error {
	return apierrors.NewInvalid(c.res.GroupVersionKind.GroupKind(), c.name, errs)
}

// replacement is the step that puts next in the place of live, as far as the
// path allows: the main resource leaves the status alone, /status all but that.
// next's managedFields are settled already.
func (c *call) replacement(s state.Snapshot, live, next state.Object, now time.Time) (step, error) {
	switch rv := next.GetResourceVersion(); {
	case anyVersion(rv) && c.res.Row.Conditional:
		return step{}, c.invalid(field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"))
	case !anyVersion(rv) && rv != live.GetResourceVersion():
		return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, errModified)
	}
	if uid := next.GetUID(); uid != "" && uid != live.GetUID() {
		return step{}, c.invalid(field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable"))
	}
	next.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	next.SetResourceVersion(live.GetResourceVersion())
	next.SetUID(live.GetUID())
	next.SetSelfLink("")
	next.SetCreationTimestamp(live.GetCreationTimestamp())
	if next.GetDeletionTimestamp() == nil { // left out; what is said otherwise is refused
		next.SetDeletionTimestamp(live.GetDeletionTimestamp())
	}
	if next.GetDeletionGracePeriodSeconds() == nil {
		next.SetDeletionGracePeriodSeconds(live.GetDeletionGracePeriodSeconds())
	}
	next.SetGeneration(live.GetGeneration())
	next.SetGenerateName(live.GetGenerateName())

	resize := c.sub != nil && c.sub.Name == "resize"
	ephemeral := c.sub != nil && c.sub.Name == "ephemeralcontainers"
	switch {
	case c.sub == nil && c.res.Sub("status") != nil, c.sub != nil && c.sub.Name == "finalize":
		state.SetStatus(next, live)
	case c.sub != nil && c.sub.Name == "status":
		with := live.DeepCopyObject().(state.Object)
		state.SetStatus(with, next)
		with.SetAnnotations(next.GetAnnotations())
		with.SetManagedFields(next.GetManagedFields())
		next = with
		if p, ok := next.(*corev1.Pod); ok {
			if n := s.Node(p.Spec.NodeName); n != nil && state.ReadyOf(n) == corev1.ConditionTrue {
				state.SettleReady(p, now)
			}
		}
	case ephemeral:
		next = withEphemeral(live.(*corev1.Pod), next.(*corev1.Pod))
		if err := c.mayDebug(s, next.(*corev1.Pod), live.(*corev1.Pod)); err != nil {
			return step{}, err
		}
	case resize:
		next = admission.Resized(next.(*corev1.Pod), live.(*corev1.Pod))
	case c.sub != nil && c.sub.Name == "approval":
		next = decided(live.(*certv1.CertificateSigningRequest), next.(*certv1.CertificateSigningRequest), now)
	}
	if n, ok := next.(*corev1.Namespace); ok {
		if old := live.(*corev1.Namespace); c.sub == nil || c.sub.Name != "finalize" {
			n.Spec.Finalizers = old.Spec.Finalizers
		}
	}
	c.signDrain(live, next)
	var warnings []string
	var errs field.ErrorList
	switch {
	case resize:
		warnings, errs = admission.AdmitResize(next.(*corev1.Pod), live.(*corev1.Pod), c.Settings)
	case ephemeral:
		warnings, errs = admission.AdmitEphemeral(next.(*corev1.Pod), live.(*corev1.Pod), c.Settings)
	default:
		warnings, errs = admission.Admit(next, live, c.Settings)
		if c.sub == nil && state.KindOf(next) != state.Pods {
			warnings = append(warnings, admission.Named(next, s)...)
		}
	}
	base := map[state.Key]state.Object{state.KeyOf(live): live}
	var v admission.Verdict
	if (c.sub == nil || ephemeral) && c.res.Namespaced {
		k := state.Key{Kind: state.Namespaces, Name: c.namespace}
		base[k] = s.Get(k)
		ns, _ := base[k].(*corev1.Namespace)
		v = admission.PodSecurity(next, live, ns, c.Settings)
	}
	if ns, ok := next.(*corev1.Namespace); ok && len(errs) == 0 {
		warnings = append(warnings, admission.Relabelled(ns, live.(*corev1.Namespace), s.Pods(ns.Name), c.Settings)...)
	}
	if c.res.Generation && !equality.Semantic.DeepEqual(state.SpecOf(live), state.SpecOf(next)) {
		next.SetGeneration(live.GetGeneration() + 1)
	}
	st := step{result: live, warnings: v.Tell(warnings), audit: v.Audit, base: base}
	if same(live, next) {
		return st, nil
	}
	if v.Refused != "" {
		return step{audit: v.Audit}, apierrors.NewForbidden(c.res.GroupResource(), c.name, errors.New(v.Refused))
	}
	if err := c.mayLower(live, next); err != nil {
		return step{}, err
	}
	if err := c.mayOwn(live, next); err != nil {
		return step{}, err
	}
	if len(errs) > 0 {
		return step{}, c.invalid(errs...)
	}
	if err := admission.MayReplace(next, s); err != nil {
		return step{}, apierrors.NewForbidden(c.res.GroupResource(), c.name, err)
	}
	if resize {
		charges, err := admission.Resize(next.(*corev1.Pod), live.(*corev1.Pod), s, now)
		if err != nil {
			return step{}, apierrors.NewForbidden(c.res.GroupResource(), c.name, err)
		}
		st.changes = charges
	}
	st.result, st.from, st.consulted = next, s, admission.Consulted
	if state.Released(next) {
		st.changes = append(st.changes, state.Remove(next, c.why("delete", next)+", and the last finalizer has gone"))
	} else {
		st.changes = append(st.changes, state.Put(next, c.why("change", next)))
	}
	return st, nil
}

// place checks an object's name and namespace against the path, and fills in
// what the path says.
func (c *call) place(o state.Object) error {
	if c.res.Namespaced {
		switch o.GetNamespace() {
		case "":
			o.SetNamespace(c.namespace)
		case c.namespace:
		default:
			return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
	} else {
		o.SetNamespace("")
	}
	if c.name != "" {
		switch o.GetName() {
		case "":
			if c.verb == "update" { // what is sent takes the whole place: it has to say whose
				return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", c.name))
			}
			o.SetName(c.name)
		case c.name:
		default:
			return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", o.GetName(), c.name))
		}
	}
	return nil
}
