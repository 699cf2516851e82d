// Package body reads and decodes the bodies of API requests.
//
// Only this package reads bodies. It limits their size, depth and elements, and reserves memory
// before it decodes them. Errors name the field and the line. Package admission has the rules for
// objects' fields.
package body

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/shared/bound"
)

// Limits in bytes of a request's body.
const (
	MaxBody  = 3 << 20  // Kubernetes' limit for JSON and YAML
	maxSmall = 64 << 10 // limit for reviews, bindings, evictions, scales and delete options
)

// A Body is a request's body that is checked but not decoded.
type Body struct {
	Text       []byte // the text as it was sent
	Media      string // media type of Data: mediaJSON or mediaProto
	Data       []byte // Text, or its JSON if Text is YAML
	Duplicates error  // error that lists duplicate keys of YAML
}

// A Want describes the body that a request needs.
type Want struct {
	Kind  schema.GroupVersionKind
	Small bool // bodies of this kind are always short
	Patch bool // the body may be a patch of an object of the kind
	Live  int  // size in bytes of the object that a patch changes
}

// A Reader reads the body of one request, and reserves memory for it until Release.
type Reader struct {
	load     *Load
	w        http.ResponseWriter
	r        *http.Request
	user     string
	releases []func() // each releases a part of the reserved memory
}

// Reader returns the reader of a user's request.
func (l *Load) Reader(w http.ResponseWriter, r *http.Request, user string) *Reader {
	return &Reader{load: l, w: w, r: r, user: user}
}

// Release releases the reserved memory.
func (r *Reader) Release() {
	for _, release := range r.releases {
		release()
	}
	r.releases = nil
}

func (r *Reader) reserve(from *budget, bytes int64) error {
	release, err := from.take(r.r.Context(), r.user, bytes)
	if err == nil {
		r.releases = append(r.releases, release)
	}
	return err
}

// Read reads the request's body. It counts the elements, and reserves memory before decoding.
func (r *Reader) Read(want Want) (b Body, err error) {
	most := int64(MaxBody)
	if want.Small {
		most = maxSmall
	}
	size := r.r.ContentLength
	if size < 0 || size > most {
		size = most
	}
	if err := r.reserve(&r.load.reading, size); err != nil {
		return b, err
	}
	b.Text, err = io.ReadAll(http.MaxBytesReader(r.w, r.r.Body, most))
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return b, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", most))
	case err != nil:
		return b, apierrors.NewBadRequest("read the body of the request: " + err.Error())
	}
	unread := func(err error) error {
		return apierrors.NewBadRequest(want.Kind.Kind + " cannot be read: " + err.Error())
	}
	b.Media, b.Data = resource.MediaJSON, b.Text
	media := ContentType(r.r)
	isYAML := false
	var n bound.Count
	switch media {
	case resource.MediaProto:
		b.Media = resource.MediaProto
		into, newErr := resource.Scheme.New(want.Kind)
		if newErr != nil {
			return b, newErr
		}
		n, err = bound.CountProto(b.Text, into)
	case resource.MediaJSON, string(types.JSONPatchType):
		n = bound.CountJSON(b.Text)
	default: // a patch may be YAML; duplicate keys are an error only in an apply
		isYAML = media == string(types.ApplyYAMLPatchType)
		if json.Valid(b.Text) {
			n = bound.CountJSON(b.Text)
			break
		}
		isYAML = true
		n, err = bound.CountYAML(b.Text)
	}
	if err == nil {
		err = n.Bounded()
	}
	if err != nil {
		return b, unread(err)
	}
	need := cost(b.Text, n, isYAML)
	if want.Patch {
		need += patchCost(b.Text, media, want.Live)
	}
	if err := r.reserve(&r.load.decoding, need); err != nil {
		return b, err
	}
	if isYAML && len(b.Text) > 0 {
		if err := bound.YAML(b.Text, nil); err != nil {
			return b, unread(err)
		}
		if b.Data, b.Duplicates, err = fromYAML(b.Text); err != nil {
			return b, apierrors.NewBadRequest("error decoding YAML: error converting YAML to JSON: " + err.Error())
		}
		if err := bound.CountJSON(b.Data).Bounded(); err != nil {
			return b, unread(err)
		}
	}
	if want.Patch && media != string(types.ApplyYAMLPatchType) {
		return b, nil // the caller checks the object after the patch
	}
	return b, CheckCost(b.Data, b.Media, want.Kind)
}

// fromYAML converts YAML to JSON. duplicates lists duplicate keys.
func fromYAML(text []byte) (data []byte, duplicates, err error) {
	if data, duplicates = yaml.YAMLToJSONStrict(text); duplicates == nil {
		return data, nil, nil
	}
	data, err = yaml.YAMLToJSON(text)
	return data, duplicates, err
}

// ContentType returns the media type of the request's body. The default is JSON.
func ContentType(r *http.Request) string {
	header := r.Header.Get("Content-Type")
	if header == "" {
		return resource.MediaJSON
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil {
		return header
	}
	return media
}

// KnownMedia refuses a body whose media type cannot encode an object.
func KnownMedia(r *http.Request) error {
	switch media := ContentType(r); media {
	case resource.MediaJSON, resource.MediaYAML, "application/x-yaml", "text/yaml", resource.MediaProto:
		return nil
	default:
		return resource.UnsupportedMedia(media, resource.MediaJSON, resource.MediaYAML, resource.MediaProto)
	}
}

// Decode decodes a body as an object of the kind. It is strict, but returns the object together
// with a strict-decoding error. The client's fieldValidation decides whether the error counts.
func (b Body) Decode(kind schema.GroupVersionKind) (runtime.Object, *schema.GroupVersionKind, error) {
	if b.Media == resource.MediaProto {
		return resource.ProtoCodec.Decode(b.Data, &kind, nil)
	}
	o, have, err := resource.StrictJSON.Decode(b.Data, &kind, nil)
	if strict, ok := runtime.AsStrictDecodingError(err); b.Duplicates != nil && (err == nil || ok) {
		all := []error{b.Duplicates}
		if ok {
			all = append(all, strict.Errors()...)
		}
		err = runtime.NewStrictDecodingError(all)
	}
	return o, have, err
}

// Object decodes an object of the kind from b. validation says whether unknown and duplicate fields
// are refused, returned as warnings, or ignored. name is the object's name in the path.
func (b Body) Object(kind schema.GroupVersionKind, name,
	validation string) (o runtime.Object, warnings []string, err error) {
	// An empty body would be decoded as an object without fields, so refuse it here.
	if len(b.Text) == 0 {
		return nil, nil, apierrors.NewBadRequest("the body of the request is empty: send a " + kind.Kind)
	}
	o, have, err := b.Decode(kind)
	strict, ok := runtime.AsStrictDecodingError(err)
	if err != nil && !ok {
		if have != nil && *have != kind && runtime.IsNotRegisteredError(err) {
			return nil, nil, WrongKind(*have, kind)
		}
		return nil, nil, DecodeError(b, kind, err)
	}
	if *have != kind {
		return nil, nil, WrongKind(*have, kind)
	}
	if err := CheckBounds(o, kind, name); err != nil {
		return nil, nil, err
	}
	if !ok {
		return o, nil, nil
	}
	switch validation {
	case metav1.FieldValidationIgnore:
		return o, nil, nil
	case metav1.FieldValidationStrict:
		return nil, nil, DecodeError(b, kind, err)
	}
	return o, Messages(strict.Errors()), nil
}

// Messages returns the errors' texts, for warnings.
func Messages(errs []error) (all []string) {
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return all
}

// WrongKind refuses an object whose kind differs from the path's.
func WrongKind(have, want schema.GroupVersionKind) error {
	if have.GroupVersion() != want.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the API version in the data (%s) does not match the expected API version (%s)", have.GroupVersion(),
			want.GroupVersion()))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (%s)",
		have.Kind, want.Kind))
}
