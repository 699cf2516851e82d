package kube

import (
	"net/http"
	"time"

	scalev1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/state"
)

// scale reads or sets how many pods a workload wants.
func (c *call) scale() error {
	f, err := resource.Negotiate(c.r, []string{resource.MediaJSON, resource.MediaYAML, resource.MediaProto}, "Table",
		"PartialObjectMetadata")
	if err != nil {
		return err
	}
	if c.verb == "get" {
		o := c.lookup(c.Fleet.Snapshot())
		if o == nil {
			return c.missing()
		}
		return c.write(http.StatusOK, scaleAs(write.ScaleOf(o), f), f.Media)
	}
	var kind types.PatchType
	if c.verb == "patch" {
		if kind, err = c.patchType(); err != nil {
			return err
		}
	}
	w, err := c.readWriteOptions(kind)
	if err != nil {
		return err
	}
	if c.verb == "update" {
		if err := body.KnownMedia(c.r); err != nil {
			return err
		}
	}
	body, err := c.body(c.sub.Kind)
	if err != nil {
		return err
	}
	var sent *scalev1.Scale
	if c.verb == "update" || kind == types.ApplyYAMLPatchType {
		o, err := c.decode(body, c.sub.Kind)
		if err != nil {
			return err
		}
		sent = o.(*scalev1.Scale)
		if err := w.Place(sent); err != nil {
			return err
		}
	}
	st, err := c.commit(w.Dry, func(s state.Snapshot, now time.Time) (write.Step, error) {
		return w.Scale(s, sent, body, kind, now)
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, scaleAs(write.ScaleOf(st.Result), f), f.Media)
}

// scaleAs returns a scale in the requested form, with Kubernetes' columns.
func scaleAs(sc *scalev1.Scale, f resource.Form) runtime.Object {
	some := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()},
		ObjectMeta: sc.ObjectMeta,
	}
	switch f.As {
	case "Table":
		row := metav1.TableRow{Cells: []any{sc.Name, int64(sc.Spec.Replicas), int64(sc.Status.Replicas),
			duration.HumanDuration(time.Since(sc.CreationTimestamp.Time))}}
		switch f.Include {
		case metav1.IncludeMetadata:
			row.Object = runtime.RawExtension{Object: some}
		case metav1.IncludeObject:
			row.Object = runtime.RawExtension{Object: sc}
		}
		return f.Versioned(&metav1.Table{
			TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()},
			ListMeta: metav1.ListMeta{ResourceVersion: sc.ResourceVersion},
			ColumnDefinitions: []metav1.TableColumnDefinition{
				{Name: "Name", Type: "string"}, {Name: "Desired", Type: "integer", Description: "How many pods are wanted."},
				{Name: "Available", Type: "integer", Description: "How many pods there are."}, {Name: "Age", Type: "string"},
			},
			Rows: []metav1.TableRow{row},
		})
	case "PartialObjectMetadata":
		return f.Versioned(some)
	}
	return sc
}

// done answers a request whose result has no object to show.
func (c *call) done(f resource.Form) error {
	return c.write(http.StatusCreated, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated,
	}, f.Media)
}

// bind assigns a pod to a node by hand.
func (c *call) bind() error {
	w, err := c.readWriteOptions("")
	if err != nil {
		return err
	}
	o, f, err := c.readPosted(c.sub.Kind)
	if err != nil {
		return err
	}
	binding := o.(*corev1.Binding)
	if err := w.Place(binding); err != nil {
		return err
	}
	if k := binding.Target.Kind; binding.Target.Name == "" || k != "" && k != "Node" {
		return apierrors.NewBadRequest(`target is not a node: give its name in target.name, with target.kind "Node"`)
	}
	_, err = c.commit(w.Dry, func(s state.Snapshot, now time.Time) (write.Step, error) { return w.Bind(s, binding, now) })
	if err != nil {
		return err
	}
	return c.done(f)
}

// evict deletes a pod if its disruption budgets allow it.
func (c *call) evict() error {
	w, err := c.readWriteOptions("")
	if err != nil {
		return err
	}
	o, f, err := c.readPosted(c.sub.Kind)
	if err != nil {
		return err
	}
	eviction := o.(*policyv1.Eviction)
	if err := w.Place(eviction); err != nil {
		return err
	}
	opts := eviction.DeleteOptions
	if opts == nil {
		opts = new(metav1.DeleteOptions)
	}
	if errs := validation.ValidateDeleteOptions(opts); len(errs) > 0 {
		return apierrors.NewInvalid(c.sub.Kind.GroupKind(), c.name, errs)
	}
	_, err = c.commit(w.Dry || len(opts.DryRun) > 0, func(s state.Snapshot, now time.Time) (write.Step, error) {
		return w.Evict(s, opts, now)
	})
	if err != nil {
		return err
	}
	return c.done(f)
}
