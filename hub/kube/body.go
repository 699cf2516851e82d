package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
)

// Sizes in bytes of the greatest request that is read.
const (
	maxBody  = 3 << 20  // Kubernetes' limit for JSON and YAML
	maxSmall = 64 << 10 // of reviews, bindings, evictions, scales and delete options
)

// A body is the body of a request, after it was counted and before it is decoded.
type body struct {
	text  []byte // as it was sent
	media string // of data: mediaJSON or mediaProto
	data  []byte // text, or the JSON of text that is YAML
	twice error  // lists the keys that the YAML has twice
}

// body reads the request's body: an object of that kind, or a patch of one. Nothing else reads
// bodies, so every body is counted, and its memory is reserved, before it is decoded.
func (c *call) body(kind schema.GroupVersionKind) (b body, err error) {
	most := int64(maxBody)
	if c.small() {
		most = maxSmall
	}
	size := c.r.ContentLength
	if size < 0 || size > most {
		size = most
	}
	if err := c.reserve(&c.load.reading, size); err != nil {
		return b, err
	}
	b.text, err = io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, most))
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return b, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", most))
	case err != nil:
		return b, apierrors.NewBadRequest("read the body of the request: " + err.Error())
	}
	unread := func(err error) error {
		return apierrors.NewBadRequest(kind.Kind + " cannot be read: " + err.Error())
	}
	b.media, b.data = mediaJSON, b.text
	media := c.contentType()
	written := false // as YAML
	var n bound.Count
	switch media {
	case mediaProto:
		b.media = mediaProto
		into, newErr := scheme.New(kind)
		if newErr != nil {
			return b, newErr
		}
		n, err = bound.CountProto(b.text, into)
	case mediaJSON, string(types.JSONPatchType):
		n = bound.CountJSON(b.text)
	default: // a patch may be YAML; one that is applied says each name once, as YAML
		written = media == string(types.ApplyYAMLPatchType)
		if json.Valid(b.text) {
			n = bound.CountJSON(b.text)
			break
		}
		written = true
		n, err = bound.CountYAML(b.text)
	}
	if err == nil {
		err = n.Bounded()
	}
	if err != nil {
		return b, unread(err)
	}
	if err := c.reserve(&c.load.decoding, cost(b.text, n, written)); err != nil {
		return b, err
	}
	if written && len(b.text) > 0 {
		if err := bound.YAML(b.text, nil); err != nil {
			return b, unread(err)
		}
		if b.data, b.twice, err = fromYAML(b.text); err != nil {
			return b, apierrors.NewBadRequest("error decoding YAML: error converting YAML to JSON: " + err.Error())
		}
		if err := bound.CountJSON(b.data).Bounded(); err != nil {
			return b, unread(err)
		}
	}
	if c.verb == "patch" && media != string(types.ApplyYAMLPatchType) {
		return b, nil // it is not of the kind; what becomes of it is looked at
	}
	return b, readable(b.data, b.media, kind)
}

// fromYAML turns YAML into JSON. twice lists the keys that the YAML has twice.
func fromYAML(text []byte) (data []byte, twice, err error) {
	if data, twice = yaml.YAMLToJSONStrict(text); twice == nil {
		return data, nil, nil
	}
	data, err = yaml.YAMLToJSON(text)
	return data, twice, err
}

// small tells whether the request is of a kind whose body is always short.
func (c *call) small() bool {
	switch {
	case c.verb == "delete" || c.verb == "deletecollection":
		return true
	case c.sub != nil:
		return slices.Contains([]string{"binding", "eviction", "scale"}, c.sub.name)
	}
	return strings.HasSuffix(c.res.Kind, "Review")
}

// contentType returns the media type of the body; none at all is JSON.
func (c *call) contentType() string {
	header := c.r.Header.Get("Content-Type")
	if header == "" {
		return mediaJSON
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil {
		return header
	}
	return media
}

// known refuses a body whose media type is not one of objects.
func (c *call) known() error {
	switch media := c.contentType(); media {
	case mediaJSON, mediaYAML, "application/x-yaml", "text/yaml", mediaProto:
		return nil
	default:
		return unsupportedMedia(media, mediaJSON, mediaYAML, mediaProto)
	}
}

// decode reads a body as an object of the kind, of which it is known to be readable. It is strict: the error may be one of strict
// decoding alone, and how strictly that is taken is the client's choice.
func (b body) decode(kind schema.GroupVersionKind) (runtime.Object, *schema.GroupVersionKind, error) {
	if b.media == mediaProto {
		return protoCodec.Decode(b.data, &kind, nil)
	}
	o, have, err := strictJSON.Decode(b.data, &kind, nil)
	if strict, ok := runtime.AsStrictDecodingError(err); b.twice != nil && (err == nil || ok) {
		all := []error{b.twice}
		if ok {
			all = append(all, strict.Errors()...)
		}
		err = runtime.NewStrictDecodingError(all)
	}
	return o, have, err
}

// decode reads an object of the kind from b. What is wrong with its fields is
// refused, warned about or ignored, as fieldValidation says.
func (c *call) decode(b body, kind schema.GroupVersionKind) (runtime.Object, error) {
	// An empty body decodes as the default kind with no fields: say so instead.
	if len(b.text) == 0 {
		return nil, apierrors.NewBadRequest("the body of the request is empty: send a " + kind.Kind)
	}
	o, have, err := b.decode(kind)
	strict, ok := runtime.AsStrictDecodingError(err)
	if err != nil && !ok {
		if have != nil && *have != kind && runtime.IsNotRegisteredError(err) {
			return nil, wrongKind(*have, kind)
		}
		return nil, unreadable(b, kind, err)
	}
	if *have != kind {
		return nil, wrongKind(*have, kind)
	}
	if err := keeps(o, kind, c.name); err != nil {
		return nil, err
	}
	if ok {
		switch c.fieldValidation() {
		case metav1.FieldValidationIgnore:
		case metav1.FieldValidationStrict:
			return nil, unreadable(b, kind, err)
		default:
			for _, e := range strict.Errors() {
				c.warn(e.Error())
			}
		}
	}
	return o, nil
}

func wrongKind(have, want schema.GroupVersionKind) error {
	if have.GroupVersion() != want.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", have.GroupVersion(), want.GroupVersion()))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (%s)", have.Kind, want.Kind))
}

// fieldValidation is what the client wants done about unknown fields.
func (c *call) fieldValidation() string { return c.r.URL.Query().Get("fieldValidation") }

// object reads the request's body as an object of the resource, and checks it
// against the path.
func (c *call) object() (state.Object, error) {
	if err := c.known(); err != nil {
		return nil, err
	}
	b, err := c.body(c.res.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	o, err := c.decode(b, c.res.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	obj, ok := take(o)
	if !ok {
		return nil, fmt.Errorf("read a %s: %T is not kept by the hub", c.res.Kind, o)
	}
	return obj, c.place(obj)
}

// place checks an object's name and namespace against the path, and fills in
// what the path says.
func (c *call) place(o state.Object) error {
	if c.res.namespaced {
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

// deleteOptions reads what a deletion is to be like, from its body and its query.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := new(metav1.DeleteOptions)
	kind := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
	b, err := c.body(kind)
	if err != nil {
		return nil, err
	}
	if len(b.text) > 0 {
		if err := c.known(); err != nil {
			return nil, err
		}
		o, _, err := b.decode(kind)
		if err != nil && !runtime.IsStrictDecodingError(err) {
			return nil, apierrors.NewBadRequest("decode DeleteOptions: " + err.Error())
		}
		have, ok := o.(*metav1.DeleteOptions)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("decoded object cannot be converted to DeleteOptions: it is a %T", o))
		}
		opts = have
		return opts, nil
	}
	q := c.r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&q, opts, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return opts, nil
}
