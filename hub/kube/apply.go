package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// An applier keeps managedFields: who set which field. It reads the schemas the
// first time that it is needed.
type applier struct {
	settings admission.Settings
	types    func() (managedfields.TypeConverter, error)

	mu       sync.Mutex
	managers map[managerKey]*managedfields.FieldManager
}

type managerKey struct {
	res *resource.Resource
	sub string
}

func newApplier(s admission.Settings) *applier {
	return &applier{settings: s, types: sync.OnceValues(typeConverter), managers: map[managerKey]*managedfields.FieldManager{}}
}

// Default fills in what an applied object leaves out.
func (a *applier) Default(o runtime.Object) {
	if o, ok := o.(state.Object); ok && state.KindOf(o) != "" {
		admission.Default(o, a.settings)
	}
}

// of returns the manager of a resource's fields.
func (a *applier) of(r *resource.Resource, sub string) (*managedfields.FieldManager, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := managerKey{r, sub}
	if m := a.managers[key]; m != nil {
		return m, nil
	}
	tc, err := a.types()
	if err != nil {
		return nil, err
	}
	m, err := managedfields.NewDefaultFieldManager(tc, resource.Scheme, a, resource.Scheme, r.GroupVersionKind, r.GroupVersion(), sub, resets(r, sub))
	if err != nil {
		return nil, fmt.Errorf("keep the managed fields of %s: %w", r.Plural, err)
	}
	a.managers[key] = m
	return m, nil
}

// resets are the fields that a path leaves as they are, whatever is sent: nobody
// comes to own them there.
func resets(r *resource.Resource, sub string) map[fieldpath.APIVersion]fieldpath.Filter {
	version := fieldpath.APIVersion(r.GroupVersion().String())
	var set *fieldpath.Set
	switch {
	case sub == "resize":
		return map[fieldpath.APIVersion]fieldpath.Filter{version: onlyResources}
	case sub == "ephemeralcontainers":
		return map[fieldpath.APIVersion]fieldpath.Filter{version: onlyEphemeral}
	case sub == "status":
		set = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "labels"))
	case sub == "approval":
		set = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "labels"), fieldpath.MakePathOrDie("metadata", "annotations"), fieldpath.MakePathOrDie("status", "certificate"))
	case r.Sub("status") != nil && r.State != state.Nodes:
		set = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	default:
		return nil
	}
	return map[fieldpath.APIVersion]fieldpath.Filter{version: fieldpath.NewExcludeSetFilter(set)}
}

// onlyEphemeral are the fields that pods/ephemeralcontainers is for.
var onlyEphemeral = fieldpath.NewIncludeMatcherFilter(fieldpath.MakePrefixMatcherOrDie("spec", "ephemeralContainers"))

// onlyResources are the fields that pods/resize is for.
var onlyResources = fieldpath.NewIncludeMatcherFilter(
	fieldpath.MakePrefixMatcherOrDie("spec", "containers", fieldpath.MatchAnyPathElement(), "resources"),
	fieldpath.MakePrefixMatcherOrDie("spec", "containers", fieldpath.MatchAnyPathElement(), "resizePolicy"),
	fieldpath.MakePrefixMatcherOrDie("spec", "initContainers", fieldpath.MatchAnyPathElement(), "resources"),
	fieldpath.MakePrefixMatcherOrDie("spec", "initContainers", fieldpath.MatchAnyPathElement(), "resizePolicy"),
)

// update notes in next who has set what differs from live (nil: all of it).
func (a *applier) update(r *resource.Resource, live, next state.Object, manager, sub string) error {
	m, err := a.of(r, sub)
	if err != nil {
		return err
	}
	var was runtime.Object
	if live == nil {
		if was, err = resource.Scheme.New(r.GroupVersionKind); err != nil {
			return err
		}
		was.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind)
	} else {
		was = r.Show(live)
	}
	out := m.UpdateNoErrors(was, r.Show(next), manager)
	if o, ok := out.(state.Object); ok {
		next.SetManagedFields(o.GetManagedFields())
	}
	return nil
}

// applied is the step of a server-side apply: create what is not there, else
// merge what is sent into it.
func (c *call) applied(s state.Snapshot, live state.Object, sent body.Body, w write, now time.Time) (step, error) {
	patch := &unstructured.Unstructured{}
	if err := json.Unmarshal(sent.Data, &patch.Object); err != nil {
		return step{}, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	twice, err := c.checkKeys(sent.Twice)
	if err != nil {
		return step{}, err
	}
	if patch.GroupVersionKind() != c.res.GroupVersionKind {
		return step{}, body.WrongKind(patch.GroupVersionKind(), c.res.GroupVersionKind)
	}
	if patch.GetManagedFields() != nil {
		return step{}, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	if err := c.place(patch); err != nil {
		return step{}, err
	}
	warnings, err := c.checkFields(patch, sent)
	if err != nil {
		return step{}, err
	}
	warnings = append(twice, warnings...)
	m, err := c.apply.of(c.res, c.target.sub)
	if err != nil {
		return step{}, err
	}
	var base runtime.Object
	switch {
	case live != nil:
		base = c.res.Show(live)
	case c.sub != nil:
		return step{}, c.missing()
	case patch.GetUID() != "":
		return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", patch.GetUID()))
	default:
		if err := c.mayCreate(); err != nil {
			return step{}, err
		}
		if base, err = resource.Scheme.New(c.res.GroupVersionKind); err != nil {
			return step{}, err
		}
		base.GetObjectKind().SetGroupVersionKind(c.res.GroupVersionKind)
	}
	merged, err := m.Apply(base, patch, w.manager, w.force)
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known): // a conflict
		return step{}, err
	case err != nil: // what is sent does not fit the schema
		return step{}, apierrors.NewBadRequest(err.Error())
	}
	next, ok := resource.Take(merged)
	if !ok {
		return step{}, fmt.Errorf("apply %s %s: merging gave a %T", c.res.Singular, c.name, merged)
	}
	next = next.DeepCopyObject().(state.Object)
	if err := body.CheckBounds(next, c.res.GroupVersionKind, c.name); err != nil {
		return step{}, err
	}
	var st step
	if live == nil {
		next.SetName(c.name)
		next.SetNamespace(c.namespace)
		st, err = c.creation(s, next, write{settled: true}, now)
	} else {
		st, err = c.replacement(s, live, next, now)
	}
	st.warnings = append(warnings, st.warnings...)
	return st, err
}

// checkKeys checks that what is applied says each thing once.
func (c *call) checkKeys(err error) ([]string, error) {
	switch {
	case err == nil, c.fieldValidation() == metav1.FieldValidationIgnore:
		return nil, nil
	case c.fieldValidation() == metav1.FieldValidationStrict:
		return nil, apierrors.NewBadRequest("error strict decoding YAML: error converting YAML to JSON: " + err.Error())
	}
	text := err.Error()
	if _, lines, ok := strings.Cut(text, "unmarshal errors:\n"); ok {
		text = lines
	}
	var warnings []string
	for line := range strings.Lines(text) {
		warnings = append(warnings, strings.TrimSpace(line))
	}
	return warnings, nil
}

// checkFields checks that the kind has the fields that are applied, which sent has as they were
// written.
func (c *call) checkFields(patch *unstructured.Unstructured, sent body.Body) ([]string, error) {
	b, err := patch.MarshalJSON()
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	kind := c.res.GroupVersionKind
	o, _, err := resource.StrictJSON.Decode(b, &kind, nil)
	strict, ok := runtime.AsStrictDecodingError(err)
	if err == nil || ok {
		if err := body.CheckBounds(o, kind, c.name); err != nil {
			return nil, err
		}
	}
	switch {
	case err == nil:
		return nil, nil
	case !ok, c.fieldValidation() == metav1.FieldValidationStrict:
		return nil, body.DecodeError(sent, kind, err)
	case c.fieldValidation() == metav1.FieldValidationIgnore:
		return nil, nil
	}
	return body.Messages(strict.Errors()), nil
}
