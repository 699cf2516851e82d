package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// yamlOnly are the kinds of which the page shows the YAML alone, by choice.
var yamlOnly = []state.Kind{
	state.ConfigMaps, state.ControllerRevisions, state.DeviceReports, state.Endpoints, state.EndpointSlices, state.Leases, state.LimitRanges, state.Namespaces,
	state.PodDisruptionBudgets, state.PodTemplates, state.PriorityClasses, state.Claims, state.Volumes, state.ResourceQuotas, state.RuntimeClasses, state.Secrets,
	state.ServiceAccounts, state.Services, state.StorageClasses,
}

func TestThePageForgetsNoKindThatTheAPIServes(t *testing.T) {
	for _, k := range state.Kinds() {
		row, how := k.Row(), shownAs(k)
		if row.Group == nil {
			continue
		}
		if (how.topic == "") != slices.Contains(yamlOnly, k) {
			t.Errorf("%s: the page watches %q for it; is it shown as YAML alone by choice: %v", k, how.topic, slices.Contains(yamlOnly, k))
		}
		if (how.list == "") != (how.statuses == nil) || how.found != nil && (how.href == nil || how.pill == nil) {
			t.Errorf("%s: its row lacks a part", k)
		}
		if !diagnose.IsWork(k) {
			continue
		}
		if how.list != search.Workloads || how.found == nil || how.href(item{Namespace: "a", Name: "b"}) == "" {
			t.Errorf("%s makes pods, and is not among the workloads", k)
		}
		n := 0
		for _, l := range listedWorkloads {
			if l.kind == k {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is %d times in the list of workloads", k, n)
		}
	}
}

// Whatever keeps its pods running is listed and counted, each once: of a Deployment's ReplicaSet the Deployment tells.
func TestEveryKindOfWorkloadIsListedAndCounted(t *testing.T) {
	one := int32(1)
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/x:1"}}}}
	rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old-rc", Namespace: "default"}, Spec: corev1.ReplicationControllerSpec{Replicas: &one, Template: &template}}
	rc.Status = corev1.ReplicationControllerStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	bare := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "bare-rs", Namespace: "default"}, Spec: appsv1.ReplicaSetSpec{Replicas: &one, Template: template}}
	owned := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "owned-rs", Namespace: "default", OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "x", UID: "x", Controller: new(true)}}}, Spec: bare.Spec}
	m := newMemory(testNode("pi-1", "oslo", nil), rc, bare, owned)
	srv := start(t, configOf(m))
	_, body := srv.ask(t, "viewer", "GET", "/workloads", nil)
	for text, want := range map[string]bool{">old-rc<": true, ">bare-rs<": true, ">owned-rs<": false, "Nothing is to run yet": false, "0 of 1 pods are available.": true} {
		if strings.Contains(body, text) != want {
			t.Errorf("the list says %q: %v", text, !want)
		}
	}
	if got := fmt.Sprint(workloadTile(pictureRequest(m)).Value); got != "1/2" {
		t.Errorf("the overview counts %s", got)
	}
	hit := map[string]bool{}
	if topics([]state.Applied{{Key: state.KeyOf(rc), New: rc}}, hit); !hit["workloads"] {
		t.Error("a page that lists workloads does not hear of a replication controller")
	}
}
