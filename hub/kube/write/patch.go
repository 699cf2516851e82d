package write

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
)

// maxPatchOperations is Kubernetes' limit for a JSON patch. Each operation may copy the whole
// object.
const maxPatchOperations = 10000

// Limits of a patch's cost. Each operation of a JSON patch may visit the whole object. A strategic
// patch compares each list entry with all others.
const (
	maxPatchBytes   = 256 << 20 // operations times the bytes of the object and the patch
	maxPatchEntries = 8 << 20   // entries of a patch's lists times entries of the object's lists
)

// A patch may copy its own copies, so their total size is limited to the size of a body.
func init() { jsonpatch.AccumulatedCopySizeLimit = body.MaxBody }

// Patch returns the step for a patch of this type.
func (r *Request) Patch(s state.Snapshot, sent body.Body, kind types.PatchType, now time.Time) (Step, error) {
	live := r.live(s)
	if kind == types.ApplyYAMLPatchType {
		return r.applied(s, live, sent, now)
	}
	if live == nil {
		return Step{}, r.missing()
	}
	next, warnings, err := r.patched(live, sent.Data, kind)
	if err != nil {
		return Step{}, err
	}
	admission.Default(next, r.Settings)
	if err := r.Managers.update(r.Resource, live, next, r.Manager, r.sub()); err != nil {
		return Step{}, err
	}
	st, err := r.replaceStep(s, live, next, now)
	st.Warnings = append(warnings, st.Warnings...)
	return st, err
}

// patched returns live after the patch.
func (r *Request) patched(live state.Object, patch []byte, kind types.PatchType) (state.Object, []string, error) {
	shown := r.Resource.Show(live)
	was, err := json.Marshal(shown)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s for a patch: %w", state.KeyOf(live), err)
	}
	is, err := patchJSON(was, patch, kind, shown)
	if err != nil {
		return nil, nil, err
	}
	o, warnings, err := r.decodePatched(is, r.Resource.GroupVersionKind)
	if err != nil {
		return nil, nil, err
	}
	next, ok := resource.Take(o)
	if !ok {
		return nil, nil, body.WrongKind(o.GetObjectKind().GroupVersionKind(), r.Resource.GroupVersionKind)
	}
	if !r.Resource.Namespaced {
		next.SetNamespace("")
	}
	if next.GetName() != live.GetName() || next.GetNamespace() != live.GetNamespace() {
		return nil, nil, apierrors.NewBadRequest(
			"the patch changes metadata.name or metadata.namespace: they are immutable; create another object instead")
	}
	return next, warnings, nil
}

// patchJSON applies a patch to an encoded object. The Go type of like says how lists are merged.
func patchJSON(was, patch []byte, kind types.PatchType, like runtime.Object) (is []byte, err error) {
	defer func() { // the libraries panic on some values, such as a list as a merge key
		if p := recover(); p != nil {
			is, err = nil, unprocessable(fmt.Sprintf("it has a list, an object or nothing where a plain value is expected (%v)",
				p))
		}
	}()
	if err := bound.JSON(patch, nil); err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	switch kind {
	case types.JSONPatchType:
		p, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
		}
		if len(p) > maxPatchOperations {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
				"The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(p)))
		}
		if work := len(p) * (len(was) + len(patch)); work > maxPatchBytes {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
				"%d operations on an object of %d bytes, with a patch of %d bytes, are too much work: send fewer operations, "+
					"or the whole object", len(p), len(was), len(patch)))
		}
		is, err = p.Apply(was)
		var tooBig *jsonpatch.AccumulatedCopySizeError
		if errors.As(err, &tooBig) {
			return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
		}
		if err != nil {
			return nil, unprocessable(err.Error())
		}
		return is, nil
	case types.MergePatchType:
		if err := isObject(patch); err != nil {
			return nil, err
		}
		is, err = jsonpatch.MergePatch(was, patch)
		if err != nil {
			return nil, apierrors.NewBadRequest("error applying patch: " + err.Error())
		}
		return is, nil
	}
	if err := isObject(patch); err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(patch, &tree); err == nil && entries(tree) > maxPatchEntries {
		return nil, apierrors.NewRequestEntityTooLargeError("the lists of the patch have too many entries to be merged: " +
			"send a JSON merge patch, which replaces lists, or the whole object")
	}
	is, err = strategicpatch.StrategicMergePatch(was, patch, like)
	switch {
	case err == nil:
		return is, nil
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys),
		errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return nil, unprocessable(err.Error())
}

// entries counts the comparisons that merging the patch's lists may need.
func entries(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, inside := range v {
			n += entries(inside)
		}
	case []any:
		n = len(v) * len(v)
		for _, inside := range v {
			n += entries(inside)
		}
	}
	return n
}

// unprocessable answers 422 to a valid patch that cannot be applied.
func unprocessable(why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "the patch cannot be applied: " + bound.Text(why, 4096), // why may quote a path of megabytes
	}}
}

func isObject(patch []byte) error {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(patch, &o); err != nil || o == nil {
		return apierrors.NewBadRequest("error decoding patch: it is not a JSON object")
	}
	return nil
}

// decodePatched decodes a patched object. Its kind is known to be right; its unknown fields come
// from the patch.
func (r *Request) decodePatched(b []byte, kind schema.GroupVersionKind) (runtime.Object, []string, error) {
	if err := bound.CountJSON(b).Bounded(); err != nil { // a patch may copy its own copies
		return nil, nil, unprocessable(err.Error())
	}
	if err := body.CheckCost(b, resource.MediaJSON, kind); err != nil {
		return nil, nil, unprocessable(err.Error())
	}
	is := body.Body{Text: b, Media: resource.MediaJSON, Data: b}
	o, have, err := is.Decode(kind)
	strict, isStrict := runtime.AsStrictDecodingError(err)
	if err != nil && !isStrict {
		if runtime.IsNotRegisteredError(err) && have != nil {
			return nil, nil, body.WrongKind(*have, kind)
		}
		text, _ := body.Describe(is, kind, err)
		return nil, nil, unprocessable("patched object: " + text)
	}
	if *have != kind {
		return nil, nil, body.WrongKind(*have, kind)
	}
	if err := body.CheckBounds(o, kind, r.Name); err != nil {
		return nil, nil, err
	}
	if !isStrict {
		return o, nil, nil
	}
	switch r.FieldValidation {
	case metav1.FieldValidationStrict:
		return nil, nil, unprocessable(err.Error())
	case metav1.FieldValidationIgnore:
		return o, nil, nil
	}
	return o, body.Messages(strict.Errors()), nil
}
