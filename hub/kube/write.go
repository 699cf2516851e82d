package kube

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/state"
)

// request returns the request to change the path's object for package write.
func (c *call) request() *write.Request {
	return &write.Request{
		Resource: c.res, Sub: c.sub, Namespace: c.namespace, Name: c.name, Verb: c.verb,
		User: c.user.Name, Role: string(c.user.Role), MayCreate: c.mayCreate,
		Allow:           func(verb, resource string) bool { return c.Allow(c.user.Role, verb, resource) },
		FieldValidation: c.fieldValidation(), Settings: c.Settings, Managers: c.managers,
	}
}

// readWriteOptions reads the options of a write.
func (c *call) readWriteOptions(patch types.PatchType) (*write.Request, error) {
	var o metav1.PatchOptions
	q := c.r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_PatchOptions(&q, &o, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	name := "CreateOptions"
	switch c.verb {
	case "patch":
		name = "PatchOptions"
	case "update":
		name = "UpdateOptions"
	}
	if patch != types.ApplyYAMLPatchType && o.Force != nil && c.verb != "patch" {
		o.Force = nil // force has no meaning without apply
	}
	if errs := validation.ValidatePatchOptions(&o, patch); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: name}, "", errs)
	}
	w := c.request()
	w.Manager, w.Force, w.Dry = o.FieldManager, o.Force != nil && *o.Force, len(o.DryRun) > 0
	if w.Manager == "" {
		w.Manager = manager(c.r.UserAgent())
	}
	return w, nil
}

// manager returns the default field manager, which is the client program's name.
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

// readChange reads an update or a patch, and returns the form of its answer.
func (c *call) readChange(patch types.PatchType) (w *write.Request, f resource.Form, err error) {
	if w, err = c.readWriteOptions(patch); err != nil {
		return w, f, err
	}
	if f, err = resource.Negotiate(c.r, c.res.Media(), "Table", "PartialObjectMetadata"); err != nil {
		return w, f, err
	}
	return w, f, c.refuseNodeLeases()
}

func (c *call) create() error {
	w, f, err := c.readChange("")
	if err != nil {
		return err
	}
	o, err := c.object()
	if err != nil {
		return err
	}
	c.name = o.GetName()
	st, err := c.commit(w.Dry, func(s state.Snapshot, now time.Time) (write.Step, error) { return w.Create(s, o, now) })
	if err != nil {
		return err
	}
	return c.write(http.StatusCreated, c.view.One(c.res, st.Result, f, true), f.Media)
}

// named returns a copy of the call whose path names the object. The control loop may use the copy
// after the original call has been answered.
func (c *call) named(o state.Object) *call {
	like := *c
	like.name = o.GetName()
	return &like
}

func (c *call) update() error {
	w, f, err := c.readChange("")
	if err != nil {
		return err
	}
	o, err := c.object()
	if err != nil {
		return err
	}
	st, err := c.commit(w.Dry, func(s state.Snapshot, now time.Time) (write.Step, error) { return w.Update(s, o, now) })
	if err != nil {
		return err
	}
	return c.changed(st, f)
}

// changed answers an update or a patch, which may have created the object.
func (c *call) changed(st write.Step, f resource.Form) error {
	code := http.StatusOK
	if st.Created {
		code = http.StatusCreated
	}
	return c.write(code, c.view.One(c.res, st.Result, f, true), f.Media)
}

func (c *call) patch() error {
	kind, err := c.patchType()
	if err != nil {
		return err
	}
	w, f, err := c.readChange(kind)
	if err != nil {
		return err
	}
	sent, err := c.body(c.res.GroupVersionKind)
	if err != nil {
		return err
	}
	st, err := c.commit(w.Dry, func(s state.Snapshot, now time.Time) (write.Step, error) {
		return w.Patch(s, sent, kind, now)
	})
	if err != nil {
		return err
	}
	return c.changed(st, f)
}

// patchType returns the type of the request's patch.
func (c *call) patchType() (types.PatchType, error) {
	kind := types.PatchType(body.ContentType(c.r))
	switch kind {
	case types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType:
		return kind, nil
	}
	return "", resource.UnsupportedMedia(string(kind), string(types.JSONPatchType), string(types.MergePatchType),
		string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType))
}

// refuseNodeLeases refuses writes to leases that the hub itself keeps.
func (c *call) refuseNodeLeases() error {
	if !c.res.NodeLease(c.namespace) {
		return nil
	}
	return apierrors.NewForbidden(c.res.GroupResource(), c.name, errors.New(
		"the hub itself maintains the leases in kube-node-lease: use another namespace"))
}
