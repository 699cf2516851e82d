package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	scalev1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// scaleOf shows how many pods a workload wants and has.
func scaleOf(o state.Object) *scalev1.Scale {
	m := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	sc := &scalev1.Scale{
		TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: scalev1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		},
	}
	switch o := o.(type) {
	case *appsv1.Deployment:
		sc.Spec.Replicas, sc.Status.Replicas = state.Replicas(o), o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	case *appsv1.StatefulSet:
		sc.Spec.Replicas, sc.Status.Replicas = state.Replicas(o), o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	case *corev1.ReplicationController:
		sc.Spec.Replicas, sc.Status.Replicas = state.Replicas(o), o.Status.Replicas
		sc.Status.Selector = labels.FormatLabels(o.Spec.Selector)
	case *appsv1.ReplicaSet:
		sc.Spec.Replicas, sc.Status.Replicas = state.Replicas(o), o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	}
	return sc
}

func setReplicas(o state.Object, n int32) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas = &n
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = &n
	case *appsv1.StatefulSet:
		o.Spec.Replicas = &n
	case *corev1.ReplicationController:
		o.Spec.Replicas = &n
	}
}

// scale reads or sets how many pods a workload wants.
func (c *call) scale() error {
	f, err := resource.Negotiate(c.r, []string{resource.MediaJSON, resource.MediaYAML, resource.MediaProto}, "Table", "PartialObjectMetadata")
	if err != nil {
		return err
	}
	if c.verb == "get" {
		o := c.lookup(c.Fleet.Snapshot())
		if o == nil {
			return c.missing()
		}
		return c.write(http.StatusOK, scaleAs(scaleOf(o), f), f.Media)
	}
	var kind types.PatchType
	if c.verb == "patch" {
		if kind, err = c.patchType(); err != nil {
			return err
		}
	}
	w, err := c.writing(kind)
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
		if err := c.place(sent); err != nil {
			return err
		}
	}
	st, err := c.commit(w.dry, func(s state.Snapshot, now time.Time) (step, error) {
		live := c.lookup(s)
		if live == nil {
			return step{}, c.missing()
		}
		want, warnings := sent, []string(nil)
		if want == nil {
			var err error
			if want, warnings, err = c.patchedScale(scaleOf(live), body.Data, kind); err != nil {
				return step{}, err
			}
		}
		if err := c.otherThan(live, want.UID); err != nil {
			return step{}, err
		}
		if rv := want.ResourceVersion; !anyVersion(rv) && rv != live.GetResourceVersion() {
			return step{}, apierrors.NewConflict(c.res.GroupResource(), c.name, errModified)
		}
		if want.Spec.Replicas < 0 {
			return step{}, apierrors.NewInvalid(c.sub.Kind.GroupKind(), c.name, field.ErrorList{
				field.Invalid(field.NewPath("spec", "replicas"), want.Spec.Replicas, "must be greater than or equal to 0")})
		}
		if kind == types.ApplyYAMLPatchType {
			return c.applied(s, live, c.scaleApplied(want), w, now)
		}
		next := live.DeepCopyObject().(state.Object)
		setReplicas(next, want.Spec.Replicas)
		if err := c.apply.update(c.res, live, next, w.manager, "scale"); err != nil {
			return step{}, err
		}
		st, err := c.replacement(s, live, next, now)
		st.warnings = append(warnings, st.warnings...)
		return st, err
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, scaleAs(scaleOf(st.result), f), f.Media)
}

// scaleApplied is the applied scale as it is applied to the workload itself: whoever
// applies a scale comes to own the workload's replicas.
func (c *call) scaleApplied(sc *scalev1.Scale) body.Body {
	b, _ := json.Marshal(map[string]any{ // strings and a number: cannot fail
		"apiVersion": c.res.GroupVersion().String(), "kind": c.res.Kind,
		"metadata": map[string]any{"name": c.name, "namespace": c.namespace},
		"spec":     map[string]any{"replicas": sc.Spec.Replicas},
	})
	return body.Body{Text: b, Media: resource.MediaJSON, Data: b}
}

// scaleAs shows a scale in the form that is asked for, with the columns of Kubernetes.
func scaleAs(sc *scalev1.Scale, f resource.Form) runtime.Object {
	some := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()},
		ObjectMeta: sc.ObjectMeta,
	}
	switch f.As {
	case "Table":
		row := metav1.TableRow{Cells: []any{sc.Name, int64(sc.Spec.Replicas), int64(sc.Status.Replicas), duration.HumanDuration(time.Since(sc.CreationTimestamp.Time))}}
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

func (c *call) patchedScale(was *scalev1.Scale, patch []byte, kind types.PatchType) (*scalev1.Scale, []string, error) {
	b, err := json.Marshal(was)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a scale for a patch: %w", err)
	}
	if b, err = patchJSON(b, patch, kind, &scalev1.Scale{}); err != nil {
		return nil, nil, err
	}
	o, warnings, err := c.decodePatched(b, c.sub.Kind)
	if err != nil {
		return nil, nil, err
	}
	is := o.(*scalev1.Scale)
	return is, warnings, c.place(is)
}
