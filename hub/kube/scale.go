package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	scalev1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
		sc.Spec.Replicas, sc.Status.Replicas = replicas(o.Spec.Replicas), o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	case *appsv1.ReplicaSet:
		sc.Spec.Replicas, sc.Status.Replicas = replicas(o.Spec.Replicas), o.Status.Replicas
		sc.Status.Selector = metav1.FormatLabelSelector(o.Spec.Selector)
	}
	return sc
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func setReplicas(o state.Object, n int32) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas = &n
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = &n
	}
}

// scale reads or sets how many pods a workload wants.
func (c *call) scale() error {
	f, err := negotiate(c.r, []string{mediaJSON, mediaYAML, mediaProto})
	if err != nil {
		return err
	}
	if c.verb == "get" {
		o := c.lookup(c.Fleet.Snapshot())
		if o == nil {
			return c.missing()
		}
		return c.write(http.StatusOK, scaleOf(o), f.media)
	}
	kind := types.PatchType(c.contentType())
	if c.verb == "patch" && kind != types.JSONPatchType && kind != types.MergePatchType && kind != types.StrategicMergePatchType {
		return unsupportedMedia(string(kind), string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType))
	}
	w, err := c.writing(kind)
	if err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	var sent *scalev1.Scale
	if c.verb == "update" {
		o, err := c.decode(body, c.contentType(), c.sub.kind)
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
		want := sent
		if want == nil {
			if want, err = patchedScale(scaleOf(live), body, kind); err != nil {
				return step{}, err
			}
		}
		if rv := want.ResourceVersion; rv != "" && rv != live.GetResourceVersion() {
			return step{}, apierrors.NewConflict(c.res.groupResource(), c.name, errModified)
		}
		if want.Spec.Replicas < 0 {
			return step{}, apierrors.NewInvalid(c.sub.kind.GroupKind(), c.name, field.ErrorList{
				field.Invalid(field.NewPath("spec", "replicas"), want.Spec.Replicas, "must be greater than or equal to 0")})
		}
		next := live.DeepCopyObject().(state.Object)
		setReplicas(next, want.Spec.Replicas)
		if err := c.apply.update(c.res, live, next, w.manager, "scale"); err != nil {
			return step{}, err
		}
		return c.replacement(s, live, next, now)
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, scaleOf(st.result), f.media)
}

func patchedScale(was *scalev1.Scale, patch []byte, kind types.PatchType) (*scalev1.Scale, error) {
	b, err := json.Marshal(was)
	if err != nil {
		return nil, fmt.Errorf("encode a scale for a patch: %w", err)
	}
	if b, err = patchJSON(b, patch, kind, &scalev1.Scale{}); err != nil {
		return nil, err
	}
	is := new(scalev1.Scale)
	if err := json.Unmarshal(b, is); err != nil {
		return nil, apierrors.NewBadRequest("patched scale: " + err.Error())
	}
	return is, nil
}
