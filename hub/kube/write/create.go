package write

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
)

// Create returns the step that creates the object. It generates the name if the object asks for
// one.
func (r *Request) Create(s state.Snapshot, o state.Object, now time.Time) (Step, error) {
	next := o.DeepCopyObject().(state.Object)
	like := *r
	for like.Name = next.GetName(); like.Name == "" && next.GetGenerateName() != ""; {
		name := generateName(next.GetGenerateName())
		if s.Get(state.Key{Kind: r.Resource.State, Namespace: r.Namespace, Name: name}) == nil {
			next.SetName(name)
			like.Name = name
		}
	}
	return like.createStep(s, next, now, false)
}

// generateName returns a random name that begins with base.
func generateName(base string) string {
	const room = 63 - 5
	return base[:min(len(base), room)] + rand.String(5)
}

// createStep returns the step that creates an object. settled means that the object's managedFields
// are final.
func (r *Request) createStep(s state.Snapshot, o state.Object, now time.Time, settled bool) (Step, error) {
	if !anyVersion(o.GetResourceVersion()) {
		return Step{}, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if o.GetName() == "" {
		return Step{}, apierrors.NewInvalid(r.Resource.GroupVersionKind.GroupKind(), "", field.ErrorList{
			field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	key := r.key()
	base := map[state.Key]state.Object{key: nil}
	var ns *corev1.Namespace
	if r.Resource.Namespaced {
		k := state.Key{Kind: state.Namespaces, Name: r.Namespace}
		ns, _ = s.Get(k).(*corev1.Namespace)
		if err := r.mayCreateIn(ns); err != nil {
			return Step{}, err
		}
		base[k] = ns
	}
	if s.Get(key) != nil {
		return Step{}, apierrors.NewAlreadyExists(r.Resource.GroupResource(), o.GetName())
	}
	setServerFields(o, now)
	if r.Resource.Generation {
		o.SetGeneration(1)
	}
	if !settled {
		admission.Default(o, r.Settings) // a manager that omits a field owns the field's default
	}
	if err := admission.Complete(o, s); err != nil {
		return Step{}, apierrors.NewForbidden(r.Resource.GroupResource(), o.GetName(), err)
	}
	if !settled {
		if err := r.Managers.update(r.Resource, nil, o, r.Manager, ""); err != nil {
			return Step{}, err
		}
	}
	r.dropServerFields(o)
	r.signDrain(nil, o)
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	warnings, errs := admission.Admit(o, nil, r.Settings)
	warnings = append(warnings, admission.NodeNameWarnings(o, s)...)
	v := admission.PodSecurity(o, nil, ns, r.Settings)
	if v.Refused != "" {
		return Step{Audit: v.Audit}, apierrors.NewForbidden(r.Resource.GroupResource(), o.GetName(), errors.New(v.Refused))
	}
	if err := r.mayLower(nil, o); err != nil {
		return Step{}, err
	}
	if len(errs) > 0 {
		return Step{}, apierrors.NewInvalid(r.Resource.GroupVersionKind.GroupKind(), o.GetName(), errs)
	}
	charges, err := admission.Charge(o, s, now)
	if err != nil {
		return Step{}, apierrors.NewForbidden(r.Resource.GroupResource(), o.GetName(), err)
	}
	return Step{
		Changes: append(charges, state.Put(o, r.reason("create", o))),
		Result:  o, Created: true, Warnings: v.AppendWarning(warnings), Audit: v.Audit, dependsOn: base, from: s,
		consulted: admission.Consulted,
	}, nil
}

// mayLower checks the right to set a namespace's pod security below the hub's default.
func (r *Request) mayLower(live, next state.Object) error {
	ns, ok := next.(*corev1.Namespace)
	if !ok || r.Allow("update", "podsecurity") {
		return nil
	}
	old, _ := live.(*corev1.Namespace)
	if why := admission.LoweredLevel(ns, old, r.Settings); why != "" {
		return apierrors.NewForbidden(r.Resource.GroupResource(), ns.Name, errors.New(why))
	}
	return nil
}

// mayOwn checks that the user may delete the object if the object gets new owners, because the
// garbage collector then deletes it with them. Kubernetes' OwnerReferencesPermissionEnforcement
// does the same.
func (r *Request) mayOwn(live, next state.Object) error {
	if equality.Semantic.DeepEqual(live.GetOwnerReferences(), next.GetOwnerReferences()) ||
		r.Allow("delete", r.Resource.Plural) {
		return nil
	}
	// The text is Kubernetes'.
	return apierrors.NewForbidden(r.Resource.GroupResource(), next.GetName(), fmt.Errorf(
		"cannot set an ownerRef on a resource you can't delete: role %q does not allow it", r.Role))
}

// mayCreateIn refuses new objects in a namespace that is being deleted.
func (r *Request) mayCreateIn(ns *corev1.Namespace) error {
	if ns == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, r.Namespace)
	}
	if ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		e := apierrors.NewForbidden(r.Resource.GroupResource(), r.Name,
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", r.Namespace))
		e.ErrStatus.Details.Causes = append(e.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Message: "namespace " + r.Namespace + " is being terminated",
			Field: "metadata.namespace",
		})
		return e
	}
	return nil
}

// setServerFields sets a new object's fields that only the server may set.
func setServerFields(o state.Object, now time.Time) {
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetSelfLink("")
	o.SetGeneration(0)
	o.SetCreationTimestamp(metav1.NewTime(now.UTC().Truncate(time.Second)))
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
}

// dropServerFields removes a new object's fields that clients may not set. A new node keeps its
// status.
func (r *Request) dropServerFields(o state.Object) {
	if o, ok := o.(*corev1.Namespace); ok {
		o.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(o.Spec.Finalizers, corev1.FinalizerKubernetes) {
			o.Spec.Finalizers = append(o.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
		return
	}
	if r.Resource.Sub("status") == nil || r.Resource.State == state.Nodes {
		return
	}
	state.SetStatus(o, nil)
	if p, ok := o.(*corev1.Pod); ok {
		p.Status.Phase = corev1.PodPending
	}
}

// signDrain replaces the name in a drain order by the user's name. Admission refuses an order that
// cannot be read.
func (r *Request) signDrain(live, next state.Object) {
	n, ok := next.(*corev1.Node)
	if !ok {
		return
	}
	text, ordered := n.Annotations[state.DrainAnnotation]
	if !ordered || live != nil && live.GetAnnotations()[state.DrainAnnotation] == text {
		return
	}
	if o, err := state.ParseDrainOrder(text); err == nil {
		o.By = r.User
		n.Annotations[state.DrainAnnotation] = o.String()
	}
}
