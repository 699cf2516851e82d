package node

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStatusesAreEqualOnlyIfEveryFieldIs(t *testing.T) {
	node := func() *corev1.Node {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Status: corev1.NodeStatus{
			Capacity: list, Allocatable: list.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				Message: "it is", LastHeartbeatTime: metav1.Unix(100, 0), LastTransitionTime: metav1.Unix(50, 0)}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "pi-1"}},
		}}
	}
	for name, change := range map[string]func(*corev1.Node){
		"nothing": func(*corev1.Node) {},
		"only the heartbeat": func(n *corev1.Node) {
			n.Status.Conditions[0].LastHeartbeatTime = metav1.Unix(110, 0)
		},
		"only the notation of a quantity": func(n *corev1.Node) {
			n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("4000m")
		},
		"only another time zone": func(n *corev1.Node) {
			c := &n.Status.Conditions[0]
			c.LastTransitionTime = metav1.NewTime(c.LastTransitionTime.In(time.FixedZone("there", 3600)))
		},
		"an empty list instead of a missing one": func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{} },
	} {
		n := node()
		if change(n); !sameNode(node(), n) || !sameNode(n, node()) {
			t.Errorf("%s differs, and the status counts as changed", name)
		}
	}
	for name, change := range map[string]func(*corev1.Node){
		"a label":        func(n *corev1.Node) { n.Labels["a"] = "c" },
		"one more label": func(n *corev1.Node) { n.Labels["c"] = "" },
		"a resource":     func(n *corev1.Node) { n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("3") },
		"one more resource": func(n *corev1.Node) {
			n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("0")
		},
		"one condition less": func(n *corev1.Node) { n.Status.Conditions = nil },
		"the time of a condition": func(n *corev1.Node) {
			n.Status.Conditions[0].LastTransitionTime = metav1.Unix(51, 0)
		},
		"an address": func(n *corev1.Node) { n.Status.Addresses[0].Address = "pi-2" },
	} {
		n := node()
		if change(n); sameNode(node(), n) || sameNode(n, node()) {
			t.Errorf("%s differs, and the status counts as equal", name)
		}
	}
	for _, of := range []func(*corev1.Node) reflect.Value{
		func(n *corev1.Node) reflect.Value { return reflect.ValueOf(&n.Status).Elem() },
		func(n *corev1.Node) reflect.Value { return reflect.ValueOf(&n.Status.Conditions[0]).Elem() },
	} {
		for i := range of(node()).NumField() {
			n := node()
			field, name := of(n).Field(i), of(n).Type().Field(i).Name
			if name == "LastHeartbeatTime" {
				continue
			}
			other(field)
			if sameNode(node(), n) || sameNode(n, node()) {
				t.Errorf("%s differs, and the status counts as equal", name)
			}
		}
	}
}

// other sets v to another value.
func other(v reflect.Value) {
	if at, ok := v.Addr().Interface().(*metav1.Time); ok {
		*at = metav1.Unix(1, 0)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.Struct:
		other(v.Field(0))
	}
}
