package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// A write is what a request to change something asks for beside the change.
type write struct {
	manager string // who owns the fields that are set
	force   bool
	dry     bool // do everything, but change nothing
	settled bool // managedFields are what they shall be
}

// A step is what a request comes to, on one snapshot.
type step struct {
	changes  []state.Change
	result   state.Object // what is answered
	created  bool
	warnings []string
	audit    string // what the audit is to say beside it
	// base are the objects that the step was made from: while they stand, so does it.
	base map[state.Key]state.Object
	// from is where it looked at all of some kinds: while they are the same, so is what it says.
	from      state.Snapshot
	consulted []state.Kind
}

// writing reads the options of a write.
func (c *call) writing(patch types.PatchType) (write, error) {
	var o metav1.PatchOptions
	q := c.r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_PatchOptions(&q, &o, nil); err != nil {
		return write{}, apierrors.NewBadRequest(err.Error())
	}
	name := "CreateOptions"
	switch c.verb {
	case "patch":
		name = "PatchOptions"
	case "update":
		name = "UpdateOptions"
	}
	if patch != types.ApplyYAMLPatchType && o.Force != nil && c.verb != "patch" {
		o.Force = nil // means nothing there
	}
	if errs := validation.ValidatePatchOptions(&o, patch); len(errs) > 0 {
		return write{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: name}, "", errs)
	}
	w := write{manager: o.FieldManager, force: o.Force != nil && *o.Force, dry: len(o.DryRun) > 0}
	if w.manager == "" {
		w.manager = manager(c.r.UserAgent())
	}
	return w, nil
}

// manager is who owns fields that are set without saying: the program.
func manager(userAgent string) string {
	name := make([]rune, 0, validation.FieldManagerMaxLength)
	for _, r := range userAgent {
		if r == '/' || len(name) == cap(name) {
			break
		}
		if r >= ' ' && r != 0x7f {
			name = append(name, r)
		}
	}
	if len(name) == 0 {
		return "unknown"
	}
	return string(name)
}

// What the writer makes itself when it must be made again: more than that is made
// outside, and tried so many times.
const (
	writersShare = 20 * time.Millisecond
	remakes      = 10
)

// errMoved is the writer's word that what a step was made from has changed, and that the
// step takes too long to be made by it.
var errMoved = errors.New("the object has been modified while the request was carried out; please apply your changes to the latest version and try again")

// commit carries out what make comes to. make is called outside of the writer first, so
// that this is not kept from its work by decoding, patching and validation, and once more
// by the writer if what it was made from has changed since and it took no time.
func (c *call) commit(dry bool, make func(s state.Snapshot, now time.Time) (step, error)) (step, error) {
	st, err := c.attempt(dry, make)
	for range remakes {
		if !errors.Is(err, errMoved) {
			break
		}
		st, err = c.attempt(dry, make)
	}
	if errors.Is(err, errMoved) {
		err = apierrors.NewConflict(c.res.GroupResource(), c.name, errMoved)
	}
	if err != nil {
		err = c.writeError(err)
	}
	c.auditWrite(dry, st, err)
	if err != nil {
		return step{}, err
	}
	c.warn(st.warnings...)
	return st, nil
}

// longestWrite is how long a request waits to be remembered: where the database is cut off
// in the middle of it, that can be as long as it is away.
const longestWrite = 20 * time.Second

// attempt makes a step once and has the writer carry it out.
func (c *call) attempt(dry bool, make func(s state.Snapshot, now time.Time) (step, error)) (step, error) {
	began := time.Now()
	st, err := make(c.Fleet.Snapshot(), c.Now())
	took := time.Since(began)
	if err == nil && dry && st.created {
		st.result.SetUID(uuid.NewUUID()) // as it would have had one
	}
	if err == nil && !dry && len(st.changes) > 0 {
		var applied []state.Applied
		ctx, cancel := context.WithTimeout(c.r.Context(), longestWrite)
		defer cancel()
		applied, err = c.Fleet.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			var err error
			switch {
			case st.stands(s):
			case took > writersShare && st.base != nil:
				return nil, errMoved
			default:
				st, err = make(s, now)
			}
			for i := range st.changes {
				st.changes[i].By = c.who.Name
			}
			return st.changes, err
		})
		if err == nil && len(applied) > 0 {
			key := state.KeyOf(st.result)
			for _, a := range applied {
				switch {
				case a.Key != key:
				case a.New != nil:
					st.result = a.New
				case c.verb == "delete":
					st.result = a.Old
				default: // it gave up its last finalizer: it is answered as it was last
					st.result = resource.Shallow(st.result)
					st.result.SetResourceVersion(resource.FormatRev(a.Rev))
				}
			}
		}
	}
	return st, err
}

func (st *step) stands(s state.Snapshot) bool {
	for k, o := range st.base {
		if s.Get(k) != o {
			return false
		}
	}
	for _, k := range st.consulted {
		if !s.Alike(st.from, k) {
			return false
		}
	}
	return st.base != nil
}

// writeError turns the loop's own failures into answers; those of a step are
// answers already.
func (c *call) writeError(err error) error {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, control.ErrFull):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
			Message: "the hub's disk is full: it can remember nothing more; make room on it, or delete something, and try again",
		}}
	case errors.Is(err, control.ErrUnavailable):
		return c.unavailable()
	case errors.Is(err, control.ErrStopped):
		return c.stopping()
	case c.r.Context().Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("the request ended before the hub had answered it: read the object to see whether it was changed", 0) // sent again, it would hear of its own success
	}
	c.Log.Error("carry out a request", "err", err)
	return apierrors.NewInternalError(err)
}

func (c *call) key(o state.Object) state.Key {
	return state.Key{Kind: c.res.State, Namespace: c.namespace, Name: o.GetName()}
}

// changing reads how a request wants to change an object of the resource, and in which
// form it wants the answer.
func (c *call) changing(patch types.PatchType) (w write, f resource.Form, err error) {
	if w, err = c.writing(patch); err != nil {
		return w, f, err
	}
	if f, err = resource.Negotiate(c.r, c.res.Media(), "Table", "PartialObjectMetadata"); err != nil {
		return w, f, err
	}
	return w, f, c.ownLeases()
}

func (c *call) create() error {
	w, f, err := c.changing("")
	if err != nil {
		return err
	}
	o, err := c.object()
	if err != nil {
		return err
	}
	generate := o.GetName() == "" && o.GetGenerateName() != ""
	c.name = o.GetName()
	st, err := c.commit(w.dry, func(s state.Snapshot, now time.Time) (step, error) {
		next := o.DeepCopyObject().(state.Object)
		for generate {
			next.SetName(generated(next.GetGenerateName()))
			if s.Get(c.key(next)) == nil {
				break
			}
		}
		return c.named(next).creation(s, next, w, now)
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusCreated, c.view.One(c.res, st.result, f, true), f.Media)
}

// named is the call as if its path named the object: a new call, for this one may
// have been answered before the writer comes to it.
func (c *call) named(o state.Object) *call {
	like := *c
	like.name = o.GetName()
	return &like
}

// generated is a name that begins as asked and that nobody has.
func generated(base string) string {
	const room = 63 - 5
	return base[:min(len(base), room)] + rand.String(5)
}

// creation is the step that creates an object.
func (c *call) creation(s state.Snapshot, o state.Object, w write, now time.Time) (step, error) {
	if !anyVersion(o.GetResourceVersion()) {
		return step{}, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if o.GetName() == "" {
		return step{}, apierrors.NewInvalid(c.res.GroupVersionKind.GroupKind(), "", field.ErrorList{
			field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	key := c.key(o)
	base := map[state.Key]state.Object{key: nil}
	var ns *corev1.Namespace
	if c.res.Namespaced {
		k := state.Key{Kind: state.Namespaces, Name: c.namespace}
		ns, _ = s.Get(k).(*corev1.Namespace)
		if err := c.open(ns); err != nil {
			return step{}, err
		}
		base[k] = ns
	}
	if s.Get(key) != nil {
		return step{}, apierrors.NewAlreadyExists(c.res.GroupResource(), o.GetName())
	}
	fresh(o, now)
	if c.res.Generation {
		o.SetGeneration(1)
	}
	if !w.settled {
		admission.Default(o, c.Settings) // who leaves a field out owns its default
	}
	if err := admission.Complete(o, s); err != nil {
		return step{}, apierrors.NewForbidden(c.res.GroupResource(), o.GetName(), err)
	}
	if !w.settled {
		if err := c.apply.update(c.res, nil, o, w.manager, ""); err != nil {
			return step{}, err
		}
	}
	c.prepare(o)
	c.signDrain(nil, o)
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	warnings, errs := admission.Admit(o, nil, c.Settings)
	warnings = append(warnings, admission.Named(o, s)...)
	v := admission.PodSecurity(o, nil, ns, c.Settings)
	if v.Refused != "" {
		return step{audit: v.Audit}, apierrors.NewForbidden(c.res.GroupResource(), o.GetName(), errors.New(v.Refused))
	}
	if err := c.mayLower(nil, o); err != nil {
		return step{}, err
	}
	if len(errs) > 0 {
		return step{}, apierrors.NewInvalid(c.res.GroupVersionKind.GroupKind(), o.GetName(), errs)
	}
	charges, err := admission.Charge(o, s, now)
	if err != nil {
		return step{}, apierrors.NewForbidden(c.res.GroupResource(), o.GetName(), err)
	}
	return step{
		changes: append(charges, state.Put(o, c.why("create", o))),
		result:  o, created: true, warnings: v.Tell(warnings), audit: v.Audit, base: base, from: s, consulted: admission.Consulted,
	}, nil
}

// mayLower refuses a namespace whose pods are held to less than the hub's default to
// whoever may not choose that.
func (c *call) mayLower(live, next state.Object) error {
	ns, ok := next.(*corev1.Namespace)
	if !ok || c.Allow(c.who.Role, "update", "podsecurity") {
		return nil
	}
	old, _ := live.(*corev1.Namespace)
	if why := admission.Lowered(ns, old, c.Settings); why != "" {
		return apierrors.NewForbidden(c.res.GroupResource(), ns.Name, errors.New(why))
	}
	return nil
}

// mayOwn refuses other owners of an object to whoever may not delete it, as Kubernetes'
// OwnerReferencesPermissionEnforcement: owners that are gone take it with them.
func (c *call) mayOwn(live, next state.Object) error {
	if equality.Semantic.DeepEqual(live.GetOwnerReferences(), next.GetOwnerReferences()) || c.Allow(c.who.Role, "delete", c.resource) {
		return nil
	}
	// The words are Kubernetes' own.
	return apierrors.NewForbidden(c.res.GroupResource(), next.GetName(), fmt.Errorf("cannot set an ownerRef on a resource you can't delete: role %q does not allow it", c.who.Role))
}

// open tells why nothing can be created in a namespace.
func (c *call) open(ns *corev1.Namespace) error {
	if ns == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, c.namespace)
	}
	if ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		e := apierrors.NewForbidden(c.res.GroupResource(), c.name,
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", c.namespace))
		e.ErrStatus.Details.Causes = append(e.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Message: "namespace " + c.namespace + " is being terminated", Field: "metadata.namespace",
		})
		return e
	}
	return nil
}

// fresh sets what the server alone says of a new object.
func fresh(o state.Object, now time.Time) {
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetSelfLink("")
	o.SetGeneration(0)
	o.SetCreationTimestamp(metav1.NewTime(now.UTC().Truncate(time.Second)))
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
}

// prepare drops what a client cannot say of a new object. A node's status stands:
// whoever creates one may say what is known of it.
func (c *call) prepare(o state.Object) {
	if o, ok := o.(*corev1.Namespace); ok {
		o.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(o.Spec.Finalizers, corev1.FinalizerKubernetes) {
			o.Spec.Finalizers = append(o.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
		return
	}
	if c.res.Sub("status") == nil || c.res.State == state.Nodes {
		return
	}
	state.SetStatus(o, nil)
	if p, ok := o.(*corev1.Pod); ok {
		p.Status.Phase = corev1.PodPending
	}
}

// why is the sentence that tells of a write.
func (c *call) why(verb string, o state.Object) string {
	what := c.res.Singular
	if c.sub != nil {
		what = c.sub.Name + " of " + what
	}
	return fmt.Sprintf("%s %s %s: asked by %s", verb, what, state.Display(o), c.who.Name)
}

// ownLeases refuses writes to the leases that the hub itself keeps.
func (c *call) ownLeases() error {
	if !c.res.NodeLease(c.namespace) {
		return nil
	}
	return apierrors.NewForbidden(c.res.GroupResource(), c.name, errors.New(
		"leases of nodes are kept by the hub: they say when it last heard of each; use another namespace"))
}
