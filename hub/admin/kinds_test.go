package admin

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// Every workload that keeps pods running is listed and counted once; a Deployment counts for its
// ReplicaSets.
func TestEveryKindOfWorkloadIsListedAndCounted(t *testing.T) {
	one := int32(1)
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/x:1"}}}}
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old-rc", Namespace: "default"}, Spec: corev1.ReplicationControllerSpec{Replicas: &one, Template: &template}}
	rc.Status = corev1.ReplicationControllerStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	bare := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "bare-rs", Namespace: "default"}, Spec: appsv1.ReplicaSetSpec{Replicas: &one, Template: template}}
	owned := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "owned-rs", Namespace: "default", OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "x", UID: "x", Controller: new(true)}}}, Spec: bare.Spec}
	m := admintest.New(admintest.Node("pi-1", "oslo", nil), rc, bare, owned)
	srv := start(t, configOf(m))
	_, body := srv.ask(t, "viewer", "GET", "/workloads", nil)
	for text, want := range map[string]bool{">old-rc<": true, ">bare-rs<": true, ">owned-rs<": false, "No workload yet": false, "0 of 1 pods are available.": true} {
		if strings.Contains(body, text) != want {
			t.Errorf("the list says %q: %v", text, !want)
		}
	}
	if _, body := srv.ask(t, "viewer", "GET", "/", nil); !strings.Contains(wordsOf(body), "Workloads 1/2") {
		t.Errorf("the overview counts another number: %s", wordsOf(body))
	}
}

// Every listed object has a page and a status, and every kind that makes pods is in the list of
// workloads.
func TestEveryListShowsItsKindsInFull(t *testing.T) {
	all := listings()
	for _, k := range state.Kinds() {
		shows := all[k]
		if shows.Found != nil && (frame.ObjectHref(k, frame.Item{Namespace: "a", Name: "b"}) == "" || shows.Pill == nil) {
			t.Errorf("%s: its list lacks a part", k)
		}
		if diagnose.IsWork(k) && shows.Found == nil {
			t.Errorf("%s makes pods, but is not in the list of workloads", k)
		}
	}
}
