package write

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// applied returns the step of a server-side apply. It creates a missing object, or merges sent into
// the existing one.
func (r *Request) applied(s state.Snapshot, live state.Object, sent body.Body, now time.Time) (Step, error) {
	patch := &unstructured.Unstructured{}
	if err := json.Unmarshal(sent.Data, &patch.Object); err != nil {
		return Step{}, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	duplicates, err := r.checkKeys(sent.Duplicates)
	if err != nil {
		return Step{}, err
	}
	if patch.GroupVersionKind() != r.Resource.GroupVersionKind {
		return Step{}, body.WrongKind(patch.GroupVersionKind(), r.Resource.GroupVersionKind)
	}
	if patch.GetManagedFields() != nil {
		return Step{}, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	if err := r.Place(patch); err != nil {
		return Step{}, err
	}
	warnings, err := r.checkFields(patch, sent)
	if err != nil {
		return Step{}, err
	}
	warnings = append(duplicates, warnings...)
	m, err := r.Managers.of(r.Resource, r.sub())
	if err != nil {
		return Step{}, err
	}
	var base runtime.Object
	switch {
	case live != nil:
		base = r.Resource.Show(live)
	case r.Sub != nil:
		return Step{}, r.missing()
	case patch.GetUID() != "":
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, fmt.Errorf(
			"uid mismatch: the provided object specified uid %s, and no existing object was found", patch.GetUID()))
	default:
		if err := r.MayCreate(); err != nil {
			return Step{}, err
		}
		if base, err = resource.Scheme.New(r.Resource.GroupVersionKind); err != nil {
			return Step{}, err
		}
		base.GetObjectKind().SetGroupVersionKind(r.Resource.GroupVersionKind)
	}
	merged, err := m.Apply(base, patch, r.Manager, r.Force)
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known): // the error is a conflict
		return Step{}, err
	case err != nil: // the object does not fit the schema
		return Step{}, apierrors.NewBadRequest(err.Error())
	}
	next, ok := resource.Take(merged)
	if !ok {
		return Step{}, fmt.Errorf("apply %s %s: merging gave a %T", r.Resource.Singular, r.Name, merged)
	}
	next = next.DeepCopyObject().(state.Object)
	if err := body.CheckBounds(next, r.Resource.GroupVersionKind, r.Name); err != nil {
		return Step{}, err
	}
	var st Step
	if live == nil {
		next.SetName(r.Name)
		next.SetNamespace(r.Namespace)
		st, err = r.createStep(s, next, now, true)
	} else {
		st, err = r.replaceStep(s, live, next, now)
	}
	st.Warnings = append(warnings, st.Warnings...)
	return st, err
}

// checkKeys handles duplicate keys of an applied object as its fieldValidation says.
func (r *Request) checkKeys(err error) ([]string, error) {
	switch {
	case err == nil, r.FieldValidation == metav1.FieldValidationIgnore:
		return nil, nil
	case r.FieldValidation == metav1.FieldValidationStrict:
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

// checkFields handles unknown fields of an applied object as its fieldValidation says. sent is the
// object's original text.
func (r *Request) checkFields(patch *unstructured.Unstructured, sent body.Body) ([]string, error) {
	b, err := patch.MarshalJSON()
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	kind := r.Resource.GroupVersionKind
	o, _, err := resource.StrictJSON.Decode(b, &kind, nil)
	strict, ok := runtime.AsStrictDecodingError(err)
	if err == nil || ok {
		if err := body.CheckBounds(o, kind, r.Name); err != nil {
			return nil, err
		}
	}
	switch {
	case err == nil:
		return nil, nil
	case !ok, r.FieldValidation == metav1.FieldValidationStrict:
		return nil, body.DecodeError(sent, kind, err)
	case r.FieldValidation == metav1.FieldValidationIgnore:
		return nil, nil
	}
	return body.Messages(strict.Errors()), nil
}
