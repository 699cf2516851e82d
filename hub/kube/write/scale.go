package write

import (
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	scalev1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// ScaleOf returns how many pods a workload should have, and how many it has.
func ScaleOf(o state.Object) *scalev1.Scale {
	m := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	sc := &scalev1.Scale{
		TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: scalev1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
			CreationTimestamp: m.CreationTimestamp,
		},
	}
	sc.Spec.Replicas = state.Replicas(o)
	switch o := o.(type) {
	case *appsv1.Deployment:
		sc.Status.Replicas = o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	case *appsv1.StatefulSet:
		sc.Status.Replicas = o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	case *corev1.ReplicationController:
		sc.Status.Replicas = o.Status.Replicas
		sc.Status.Selector = labels.FormatLabels(o.Spec.Selector)
	case *appsv1.ReplicaSet:
		sc.Status.Replicas = o.Status.Replicas
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

// Scale returns the step that sets a workload's number of pods: to that of sent or, if sent is nil,
// to the patch's result.
func (r *Request) Scale(s state.Snapshot, sent *scalev1.Scale, patch body.Body, kind types.PatchType,
	now time.Time) (Step, error) {
	live := r.live(s)
	if live == nil {
		return Step{}, r.missing()
	}
	want, warnings := sent, []string(nil)
	if want == nil {
		var err error
		if want, warnings, err = r.patchedScale(ScaleOf(live), patch.Data, kind); err != nil {
			return Step{}, err
		}
	}
	if err := r.checkUID(live, want.UID); err != nil {
		return Step{}, err
	}
	if rv := want.ResourceVersion; !anyVersion(rv) && rv != live.GetResourceVersion() {
		return Step{}, apierrors.NewConflict(r.Resource.GroupResource(), r.Name, errModified)
	}
	if want.Spec.Replicas < 0 {
		return Step{}, apierrors.NewInvalid(r.Sub.Kind.GroupKind(), r.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), want.Spec.Replicas, "must be greater than or equal to 0")})
	}
	if kind == types.ApplyYAMLPatchType {
		return r.applied(s, live, r.scaleApplied(want), now)
	}
	next := live.DeepCopyObject().(state.Object)
	setReplicas(next, want.Spec.Replicas)
	if err := r.Managers.update(r.Resource, live, next, r.Manager, "scale"); err != nil {
		return Step{}, err
	}
	st, err := r.replaceStep(s, live, next, now)
	st.Warnings = append(warnings, st.Warnings...)
	return st, err
}

// scaleApplied converts an applied scale to an apply of the workload. The scale's manager then owns
// the workload's replicas.
func (r *Request) scaleApplied(sc *scalev1.Scale) body.Body {
	b, _ := json.Marshal(map[string]any{ // strings and numbers can always be encoded
		"apiVersion": r.Resource.GroupVersion().String(), "kind": r.Resource.Kind,
		"metadata": map[string]any{"name": r.Name, "namespace": r.Namespace},
		"spec":     map[string]any{"replicas": sc.Spec.Replicas},
	})
	return body.Body{Text: b, Media: resource.MediaJSON, Data: b}
}

func (r *Request) patchedScale(was *scalev1.Scale, patch []byte,
	kind types.PatchType) (*scalev1.Scale, []string, error) {
	b, err := json.Marshal(was)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a scale for a patch: %w", err)
	}
	if b, err = patchJSON(b, patch, kind, &scalev1.Scale{}); err != nil {
		return nil, nil, err
	}
	o, warnings, err := r.decodePatched(b, r.Sub.Kind)
	if err != nil {
		return nil, nil, err
	}
	is := o.(*scalev1.Scale)
	return is, warnings, r.Place(is)
}
