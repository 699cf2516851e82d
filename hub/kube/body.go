package kube

import (
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// body reads the request's body: an object of this kind, or a patch of one.
func (c *call) body(kind schema.GroupVersionKind) (body.Body, error) {
	c.reader = c.load.Reader(c.w, c.r, c.user.Name)
	return c.reader.Read(body.Want{Kind: kind, Small: c.small(), Patch: c.verb == "patch", Live: c.liveSize()})
}

// liveSize returns the size in bytes of the object that a patch changes.
func (c *call) liveSize() int {
	if c.verb != "patch" {
		return 0
	}
	o, ok := c.lookup(c.Fleet.Snapshot()).(interface{ Size() int })
	if !ok {
		return 0
	}
	return o.Size()
}

// small reports whether bodies of the request's kind are always short.
func (c *call) small() bool {
	switch {
	case c.verb == "delete" || c.verb == "deletecollection":
		return true
	case c.sub != nil:
		return slices.Contains([]string{"binding", "eviction", "scale"}, c.sub.Name)
	}
	return strings.HasSuffix(c.res.Kind, "Review")
}

// decode decodes an object of the kind from b. It adds warnings about the object's fields.
func (c *call) decode(b body.Body, kind schema.GroupVersionKind) (runtime.Object, error) {
	o, warnings, err := b.Object(kind, c.name, c.fieldValidation())
	c.warn(warnings...)
	return o, err
}

// fieldValidation returns the client's choice for unknown fields.
func (c *call) fieldValidation() string { return c.r.URL.Query().Get("fieldValidation") }

// object reads the request's body as an object of the resource. It checks the object against the
// path.
func (c *call) object() (state.Object, error) {
	if err := body.KnownMedia(c.r); err != nil {
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
	obj, ok := resource.Take(o)
	if !ok {
		return nil, fmt.Errorf("read a %s: %T is not stored by the hub", c.res.Kind, o)
	}
	return obj, c.request().Place(obj)
}

// deleteOptions reads the options of a deletion from the request's body and query.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := new(metav1.DeleteOptions)
	kind := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
	b, err := c.body(kind)
	if err != nil {
		return nil, err
	}
	if len(b.Text) > 0 {
		if err := body.KnownMedia(c.r); err != nil {
			return nil, err
		}
		o, _, err := b.Decode(kind)
		if err != nil && !runtime.IsStrictDecodingError(err) {
			return nil, apierrors.NewBadRequest("decode DeleteOptions: " + err.Error())
		}
		have, ok := o.(*metav1.DeleteOptions)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("decoded object cannot be converted to DeleteOptions: it is a %T",
				o))
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

// readPosted reads a body that is not stored as such, for example an eviction or a review. It also
// returns the form of the answer.
func (c *call) readPosted(kind schema.GroupVersionKind) (o runtime.Object, f resource.Form, err error) {
	if f, err = resource.Negotiate(c.r, c.res.Media()); err != nil {
		return nil, f, err
	}
	if err := body.KnownMedia(c.r); err != nil {
		return nil, f, err
	}
	b, err := c.body(kind)
	if err != nil {
		return nil, f, err
	}
	o, err = c.decode(b, kind)
	return o, f, err
}
