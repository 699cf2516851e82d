package write

import (
	"cmp"
	"errors"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// Update returns the step that replaces the object with o.
func (r *Request) Update(s state.Snapshot, o state.Object, now time.Time) (Step, error) {
	next := o.DeepCopyObject().(state.Object)
	live := r.live(s)
	switch {
	case live == nil && r.Sub == nil && r.Resource.Row.CreateOnUpdate:
		if err := r.MayCreate(); err != nil {
			return Step{}, err
		}
		next.SetResourceVersion("")
		return r.createStep(s, next, now, false)
	case live == nil:
		return Step{}, r.missing()
	case r.checkUID(live, next.GetUID()) != nil:
		return Step{}, r.checkUID(live, next.GetUID())
	}
	admission.Default(next, r.Settings)
	if err := r.Managers.update(r.Resource, live, next, r.Manager, r.sub()); err != nil {
		return Step{}, err
	}
	return r.replaceStep(s, live, next, now)
}

// replaceStep returns the step that replaces live by next as far as the path allows: the resource
// itself keeps the status, and /status changes only the status. next's managedFields are final.
func (r *Request) replaceStep(s state.Snapshot, live, next state.Object, now time.Time) (Step, error) {
	switch rv := next.GetResourceVersion(); {
	case anyVersion(rv) && r.Resource.Row.Conditional:
		return Step{}, r.invalid(field.Invalid(field.NewPath("metadata", "resourceVersion"), 0,
			"must be specified for an update"))
	case !anyVersion(rv) && rv != live.GetResourceVersion():
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, errModified)
	}
	if uid := next.GetUID(); uid != "" && uid != live.GetUID() {
		return Step{}, r.invalid(field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable"))
	}
	keepMetadata(live, next)
	next, err := r.restrictToPath(s, live, next, now)
	if err != nil {
		return Step{}, err
	}
	r.signDrain(live, next)
	next = admission.SignIncident(next, live, r.User, now)
	warnings, errs := r.admit(s, live, next)
	base := map[state.Key]state.Object{state.KeyOf(live): live}
	var v admission.Verdict
	if (r.Sub == nil || r.sub() == "ephemeralcontainers") && r.Resource.Namespaced {
		k := state.Key{Kind: state.Namespaces, Name: r.Namespace}
		base[k] = s.Get(k)
		ns, _ := base[k].(*corev1.Namespace)
		v = admission.PodSecurity(next, live, ns, r.Settings)
	}
	if r.Resource.Generation && !equality.Semantic.DeepEqual(state.SpecOf(live), state.SpecOf(next)) {
		next.SetGeneration(live.GetGeneration() + 1)
	}
	st := Step{Result: live, Warnings: v.AppendWarning(warnings), Audit: v.Audit, dependsOn: base}
	if unchanged(live, next) {
		return st, nil
	}
	if v.Refused != "" {
		return Step{Audit: v.Audit}, r.forbidden(errors.New(v.Refused))
	}
	if err := r.mayLower(live, next); err != nil {
		return Step{}, err
	}
	if err := r.mayOwn(live, next); err != nil {
		return Step{}, err
	}
	if len(errs) > 0 {
		return Step{}, r.invalid(errs...)
	}
	if err := admission.MayReplace(next, s); err != nil {
		return Step{}, r.forbidden(err)
	}
	if r.sub() == "resize" {
		charges, err := admission.Resize(next.(*corev1.Pod), live.(*corev1.Pod), s, now)
		if err != nil {
			return Step{}, r.forbidden(err)
		}
		st.Changes = charges
	}
	st.Result, st.from, st.consulted = next, s, admission.Consulted
	st.Audit = cmp.Or(st.Audit, changed(live, next))
	if state.Released(next) {
		st.Changes = append(st.Changes, state.Remove(next, r.reason("delete", next)+", and the last finalizer has gone"))
	} else {
		st.Changes = append(st.Changes, state.Put(next, r.reason("change", next)))
	}
	return st, nil
}

// forbidden refuses the request for a reason that is not in the object.
func (r *Request) forbidden(why error) error {
	return apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, why)
}

// keepMetadata copies metadata that only the server may set from live to next.
func keepMetadata(live, next state.Object) {
	next.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	next.SetResourceVersion(live.GetResourceVersion())
	next.SetUID(live.GetUID())
	next.SetSelfLink("")
	next.SetCreationTimestamp(live.GetCreationTimestamp())
	if next.GetDeletionTimestamp() == nil { // a missing timestamp is restored; a different one is refused later
		next.SetDeletionTimestamp(live.GetDeletionTimestamp())
	}
	if next.GetDeletionGracePeriodSeconds() == nil {
		next.SetDeletionGracePeriodSeconds(live.GetDeletionGracePeriodSeconds())
	}
	next.SetGeneration(live.GetGeneration())
	next.SetGenerateName(live.GetGenerateName())
}

// restrictToPath returns next's fields where the path may change the object, and live's fields
// elsewhere.
func (r *Request) restrictToPath(s state.Snapshot, live, next state.Object, now time.Time) (state.Object, error) {
	switch r.sub() {
	case "":
		if r.Resource.Sub("status") != nil {
			state.SetStatus(next, live)
		}
	case "finalize":
		state.SetStatus(next, live)
	case "status":
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
	case "ephemeralcontainers":
		next = withEphemeral(live.(*corev1.Pod), next.(*corev1.Pod))
		if err := r.mayDebug(s, next.(*corev1.Pod), live.(*corev1.Pod)); err != nil {
			return nil, err
		}
	case "resize":
		next = admission.Resized(next.(*corev1.Pod), live.(*corev1.Pod))
	case "approval":
		next = withConditions(live.(*certv1.CertificateSigningRequest), next.(*certv1.CertificateSigningRequest), now)
	}
	if n, ok := next.(*corev1.Namespace); ok && r.sub() != "finalize" {
		n.Spec.Finalizers = live.(*corev1.Namespace).Spec.Finalizers
	}
	return next, nil
}

// admit returns the warnings and errors about next by the rules of the path.
func (r *Request) admit(s state.Snapshot, live, next state.Object) (warnings []string, errs field.ErrorList) {
	switch r.sub() {
	case "resize":
		return admission.AdmitResize(next.(*corev1.Pod), live.(*corev1.Pod), r.Settings)
	case "ephemeralcontainers":
		return admission.AdmitEphemeral(next.(*corev1.Pod), live.(*corev1.Pod), r.Settings)
	}
	warnings, errs = admission.Admit(next, live, r.Settings)
	if r.Sub == nil && state.KindOf(next) != state.Pods {
		warnings = append(warnings, admission.NodeNameWarnings(next, s)...)
	}
	if ns, ok := next.(*corev1.Namespace); ok && len(errs) == 0 {
		warnings = append(warnings, admission.LevelWarnings(ns, live.(*corev1.Namespace), s.Pods(ns.Name), r.Settings)...)
	}
	return warnings, errs
}

// unchanged reports whether next equals live, except for times in managedFields.
func unchanged(live, next state.Object) bool {
	a, b := live.GetManagedFields(), next.GetManagedFields()
	if !sameManagers(a, b) {
		return false
	}
	next = resource.Shallow(next)
	next.SetManagedFields(a)
	next.SetResourceVersion(live.GetResourceVersion())
	live = resource.Shallow(live)
	live.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return equality.Semantic.DeepEqual(live, next)
}

func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		x.Time, y.Time = nil, nil
		if !equality.Semantic.DeepEqual(x, y) {
			return false
		}
	}
	return true
}
