package state_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// Sharing does not change an object; equal strings are then one string in memory.
func TestObjectsShareEqualStrings(t *testing.T) {
	node := func(name string, cpu, memory string) *corev1.Node {
		of := strings.Clone
		list := func() corev1.ResourceList {
			return corev1.ResourceList{
				corev1.ResourceName(of("cpu")):    resource.MustParse(cpu),
				corev1.ResourceName(of("memory")): resource.MustParse(memory),
			}
		}
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{of("kubernetes.io/hostname"): of(name),
				of("zone"): of("oslo")}, Annotations: map[string]string{of("a"): of("b")}},
			Status: corev1.NodeStatus{Capacity: list(), Allocatable: list(),
				NodeInfo: corev1.NodeSystemInfo{OSImage: of("Debian"), MachineID: of(name)},
				Conditions: []corev1.NodeCondition{{
					Type: corev1.NodeConditionType(of("Ready")), Message: of("all is well"), Reason: of(strings.Repeat("long", 100)),
				}},
				Images: []corev1.ContainerImage{{Names: []string{of("docker.io/a:1")}}}},
		}
	}
	var k state.Interner
	a, b := node("pi-1", "4", "1Gi"), node("pi-2", "4", "1Gi")
	k.Share(a)
	k.Share(b)
	if want := node("pi-2", "4", "1Gi"); !reflect.DeepEqual(b, want) {
		t.Errorf("the shared node is %+v, want %+v", b, want)
	}
	same := func(x, y string) bool { return unsafe.StringData(x) == unsafe.StringData(y) }
	key := func(m map[string]string) string {
		for k := range m {
			if k == "zone" {
				return k
			}
		}
		return ""
	}
	if !same(a.Labels["zone"], b.Labels["zone"]) || !same(key(a.Labels), key(b.Labels)) ||
		!same(a.Status.NodeInfo.OSImage, b.Status.NodeInfo.OSImage) ||
		!same(a.Status.Conditions[0].Message, b.Status.Conditions[0].Message) ||
		!same(a.Status.Images[0].Names[0], b.Status.Images[0].Names[0]) {
		t.Error("the nodes do not share their strings")
	}
	at := func(l corev1.ResourceList) uintptr { return reflect.ValueOf(l).Pointer() }
	if at(a.Status.Capacity) != at(b.Status.Allocatable) {
		t.Error("the nodes do not share their resource lists")
	}
	for i := range 20_000 { // more than the limit
		n := node(fmt.Sprint("n-", i), fmt.Sprint(i), "1Gi")
		n.Labels["i"] = fmt.Sprint(i)
		if k.Share(n); n.Labels["i"] != fmt.Sprint(i) || n.Status.Capacity.Cpu().Value() != int64(i) {
			t.Fatalf("Share changes node %d to %v", i, n)
		}
	}
	var none corev1.Node
	if k.Share(&none); !reflect.DeepEqual(none, corev1.Node{}) {
		t.Errorf("Share changes an empty node to %+v", none)
	}
}
