package kube

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/state"
)

// maxBody is the size in bytes of the greatest request that is read: Kubernetes'
// limit for JSON and YAML.
const maxBody = 3 << 20

// body reads the request's body.
func (c *call) body() ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	case err != nil:
		return nil, apierrors.NewBadRequest("read the body of the request: " + err.Error())
	}
	return b, nil
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

// decoder returns what reads a body of the media type. All are strict: how
// strictly the result is taken is the client's choice.
func decoder(media string) (runtime.Decoder, error) {
	switch media {
	case mediaJSON:
		return strictJSON, nil
	case mediaYAML, "application/x-yaml", "text/yaml":
		return strictYAML, nil
	case mediaProto:
		return protoCodec, nil
	}
	return nil, unsupportedMedia(media, mediaJSON, mediaYAML, mediaProto)
}

// decode reads an object of the kind from b. What is wrong with its fields is
// refused, warned about or ignored, as fieldValidation says.
func (c *call) decode(b []byte, media string, kind schema.GroupVersionKind) (runtime.Object, error) {
	d, err := decoder(media)
	if err != nil {
		return nil, err
	}
	// An empty body decodes as the default kind with no fields: say so instead.
	if len(b) == 0 {
		return nil, apierrors.NewBadRequest("the body of the request is empty: send a " + kind.Kind)
	}
	if err := readable(b, media, kind); err != nil {
		return nil, err
	}
	o, have, err := d.Decode(b, &kind, nil)
	strict, ok := runtime.AsStrictDecodingError(err)
	if err != nil && !ok {
		if have != nil && *have != kind && runtime.IsNotRegisteredError(err) {
			return nil, wrongKind(*have, kind)
		}
		return nil, unreadable(b, media, kind, err)
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
			return nil, unreadable(b, media, kind, err)
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
	b, err := c.body()
	if err != nil {
		return nil, err
	}
	o, err := c.decode(b, c.contentType(), c.res.GroupVersionKind)
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
	b, err := c.body()
	if err != nil {
		return nil, err
	}
	if len(b) > 0 {
		d, err := decoder(c.contentType())
		if err != nil {
			return nil, err
		}
		kind := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
		if err := readable(b, c.contentType(), kind); err != nil {
			return nil, err
		}
		o, _, err := d.Decode(b, &kind, nil)
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
