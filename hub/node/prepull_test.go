package node

import (
	"crypto/ed25519"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func TestADeviceIsToldWhichImagesToPullInAdvance(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d", Generation: 2,
		Annotations: map[string]string{fleet.AnnotationPrepull: "true"}}}
	d.Spec.Template.Spec = corev1.PodSpec{Containers: []corev1.Container{{Image: "web:2"}, {Image: "same:1"}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "login"}}}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "rs",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1-a", UID: "p",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}}}
	pod.Spec = corev1.PodSpec{NodeName: "pi", Containers: []corev1.Container{{Image: "web:1"}, {Image: "same:1"}}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "login"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
	s := state.Empty("test", time.Unix(0, 0))
	for _, o := range []state.Object{d, rs, pod, secret, node} {
		s, _ = state.Apply(s, []state.Change{{Object: o}})
	}
	if got := Desired(s, "pi"); got.Images == nil || fmt.Sprint(got.Images.Prepare) != "[{web:2 shop [login]}]" ||
		len(got.Secrets) != 1 {
		t.Errorf("images %+v, %d secrets", got.Images, len(got.Secrets))
	}
	old := d.DeepCopy()
	old.Generation, old.Spec.Template.Spec.Containers[0].Image = 1, "web:1"
	subjects := Deliver{}.Touches(state.Applied{Key: state.KeyOf(d), Old: old, New: d})
	if nodes := concerned(s, subjects); fmt.Sprint(nodes) != "[pi]" {
		t.Errorf("the new template concerns the nodes %v", nodes)
	}
	old = d.DeepCopy()
	d.Annotations = nil
	s, _ = state.Apply(s, []state.Change{{Object: d}})
	if got := Desired(s, "pi"); got.Images != nil {
		t.Errorf("without the annotation: images %+v", got.Images)
	}
	if len(Deliver{}.Touches(state.Applied{Key: state.KeyOf(d), Old: old, New: d})) == 0 {
		t.Error("the end of the annotation concerns no node")
	}
}

func TestDevicesOfASiteThatSharesImagesHaveItsKey(t *testing.T) {
	v := Deliver{signing: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), images: &wire.Images{Mirrors: []string{"m"}}}
	s := state.Empty("test", time.Unix(0, 0))
	keys := map[string]bool{}
	for _, name := range []string{"oslo", "bergen", "off"} {
		site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.SiteSpec{ShareImages: name != "off"}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: name}}}
		s, _ = state.Apply(s, []state.Change{{Object: site}, {Object: node}})
		d := v.wantedOf(s, name, profiles{})
		if shares := d.Images.PeerKey != nil; shares != site.Spec.ShareImages || len(d.Images.Mirrors) != 1 {
			t.Errorf("%s: %+v", name, d.Images)
		}
		keys[string(d.Images.PeerKey)] = true
	}
	if len(keys) != 3 {
		t.Error("two sites have the same key")
	}
	off, on := &fleet.Site{}, &fleet.Site{Spec: fleet.SiteSpec{ShareImages: true}}
	if len(v.Touches(state.Applied{Key: state.Key{Kind: state.Sites, Name: "oslo"}, Old: off, New: on})) != 1 {
		t.Error("the setting concerns no node")
	}
}
