package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metascheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/watch"
	"flotilla.dev/hub/state"
)

// lookup returns the object that the path names, nil if it is not there.
func (c *call) lookup(snap state.Snapshot) state.Object {
	return c.view.Get(snap, c.res, c.namespace, c.name)
}

func (c *call) get() error {
	f, err := resource.Negotiate(c.r, c.res.Media(), "Table", "PartialObjectMetadata")
	if err != nil {
		return err
	}
	snap := c.Fleet.Snapshot()
	if err := checkRev(c.r.URL.Query().Get("resourceVersion"), snap.Revision); err != nil {
		return err
	}
	o := c.lookup(snap)
	if o == nil {
		return c.missing()
	}
	return c.write(http.StatusOK, c.view.One(c.res, o, f, true), f.Media)
}

// options reads and checks the options of a list or watch.
func (c *call) options(kind state.Kind) (*internalversion.ListOptions, *resource.Selection, error) {
	var o internalversion.ListOptions
	if err := metascheme.ParameterCodec.DecodeParameters(c.r.URL.Query(), metav1.SchemeGroupVersion, &o); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if errs := metavalidation.ValidateListOptions(&o, true); len(errs) > 0 {
		return nil, nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if o.Limit < 0 {
		return nil, nil, apierrors.NewBadRequest("limit is " + strconv.FormatInt(o.Limit, 10) +
			": it must not be negative; 0 means no limit")
	}
	if f := c.res.FieldNames(kind); f != nil && o.FieldSelector != nil {
		var err error
		if o.FieldSelector, err = o.FieldSelector.Transform(f); err != nil {
			return nil, nil, err
		}
	}
	sel, err := resource.NewSelection(kind, c.namespace, o.LabelSelector, o.FieldSelector)
	return &o, sel, err
}

func (c *call) list() error {
	o, sel, err := c.options(c.res.State)
	if err != nil {
		return err
	}
	f, err := resource.Negotiate(c.r, c.res.Media(), "Table", "PartialObjectMetadataList")
	if err != nil {
		return err
	}
	snap := c.Fleet.Snapshot()
	if err := checkRev(o.ResourceVersion, snap.Revision); err != nil {
		return err
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact &&
		o.ResourceVersion != resource.FormatRev(snap.Revision) {
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old: only the newest " +
			"state can be listed; leave resourceVersionMatch out")
	}
	m := metav1.ListMeta{ResourceVersion: resource.FormatRev(snap.Revision)}
	var from page
	if o.Continue != "" {
		if o.ResourceVersion != "" && o.ResourceVersion != "0" {
			return apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		if from, err = parsePage(o.Continue, snap.Revision); err != nil {
			return err
		}
		// Pages show the present state, and all carry the first page's revision: a watch from there
		// sends all that changed meanwhile.
		m.ResourceVersion = resource.FormatRev(from.Rev)
	} else {
		from.Rev = snap.Revision
	}
	key := fmt.Sprintf("%d %t %s %s %t %t %s?%s", snap.Revision, c.wantsPretty(), f.Media, f.As, f.Old,
		from.Rev == snap.Revision, c.r.URL.EscapedPath(), c.r.URL.RawQuery)
	body, release, err := c.answers.share(c.user.Name, key, func() ([]byte, error) {
		list, err := c.listOf(snap, o, sel, f, m, from)
		if err != nil {
			return nil, err
		}
		b, err := resource.Marshal(list, f.Media)
		return c.pretty(b, f.Media), err
	})
	if err != nil {
		return err
	}
	defer release()
	c.send(http.StatusOK, body, f.Media)
	return nil
}

// watch streams the selected objects and their changes.
func (c *call) watch() error {
	o, sel, err := c.options(c.res.State)
	if err != nil {
		return err
	}
	// a stream of YAML documents has no framing
	media := slices.DeleteFunc(c.res.Media(), func(m string) bool { return m == resource.MediaYAML })
	f, err := resource.Negotiate(c.r, media, "Table", "PartialObjectMetadata")
	if err != nil {
		return err
	}
	var from uint64
	if o.ResourceVersion != "" {
		if from, err = strconv.ParseUint(o.ResourceVersion, 10, 64); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("resourceVersion %q is not a number: use one that the server gave",
				o.ResourceVersion))
		}
	}
	life := time.Duration(1800+rand.IntN(1800)) * time.Second
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		life = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), life)
	defer cancel()

	ws, err := c.upgrades()
	if err != nil {
		return err
	}
	w := &watch.Watch{
		Fleet: c.Fleet, View: c.view, Resource: c.res, Selection: sel, Form: f, Rev: from, Encodings: c.encodings, Log: c.Log,
		Hold: func(bytes int) (func(), error) { return c.answers.hold(c.user.Name, bytes) },
	}
	if ws {
		w.ServeWebSocket(ctx, c.w, c.r, o)
		return nil
	}
	w.Serve(ctx, c.w, o)
	return nil
}

// listOf makes a page of a list.
func (c *call) listOf(snap state.Snapshot, o *internalversion.ListOptions, sel *resource.Selection, f resource.Form,
	m metav1.ListMeta, from page) (runtime.Object, error) {
	var objs []state.Object
	more := int64(0)
	for obj := range c.view.Walk(snap, sel, from.Namespace, from.Name) {
		if o.Limit > 0 && int64(len(objs)) == o.Limit {
			more++
			if !sel.All() {
				break
			}
			continue
		}
		objs = append(objs, obj)
	}
	if more > 0 {
		last := objs[len(objs)-1]
		m.Continue = page{Rev: from.Rev, Namespace: last.GetNamespace(), Name: last.GetName()}.String()
		if sel.All() {
			m.RemainingItemCount = &more
		}
	}
	return c.view.Many(c.res, objs, f, m)
}

// checkRev refuses a resourceVersion that is newer than the newest revision.
func checkRev(want string, have uint64) error {
	if want == "" {
		return nil
	}
	rev, err := strconv.ParseUint(want, 10, 64)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("resourceVersion %q is not a number: use one that the server gave", want))
	}
	if rev > have {
		e := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rev, have), 1)
		e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge,
			Message: "Too large resource version"}}
		return e
	}
	return nil
}

// A page says where the next page of a list starts. Clients see it as an opaque token.
type page struct {
	Rev       uint64 `json:"rv"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"start"`
}

func (p page) String() string {
	b, _ := json.Marshal(p) // strings and a number: cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

func parsePage(token string, have uint64) (p page, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || p.Name == "" || p.Rev == 0 {
		return page{}, apierrors.NewBadRequest("continue key is not valid: begin the list again without continue")
	}
	if p.Rev > have {
		return page{}, apierrors.NewResourceExpired(
			"The provided continue parameter is from another state of the fleet: begin the list again without continue")
	}
	return p, nil
}
