package snapshot

import (
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

func aNode(name string) *corev1.Node {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "u", ResourceVersion: "1", CreationTimestamp: at,
		Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelTopologyZone: "oslo",
		},
	}}
	n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute, TimeAdded: &at}}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("3884Mi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Allocatable = n.Status.Capacity
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure, corev1.NodeReady} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: t, Status: corev1.ConditionTrue, Reason: "Reason", Message: "it is so", LastHeartbeatTime: at,
			LastTransitionTime: at,
		})
	}
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: "m", BootID: "b", KernelVersion: "6.12", OSImage: "Debian", Architecture: "arm64",
	}
	return n
}

// A Node in protobuf decodes to the same Node. Errors name the Node.
func TestNodesAreStoredInProtobuf(t *testing.T) {
	want := aNode("pi-1")
	data, err := state.Encode(want)
	if err != nil || !state.InProto(data) {
		t.Fatal(err)
	}
	got, repaired, err := new(Decoder).Decode(store.Row{Kind: "nodes", Name: "pi-1", Object: data})
	if err != nil || repaired != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v: the node is\n%+v, want\n%+v", err, repaired, got, want)
	}
	bad := []byte(strings.Replace(string(data), "3884Mi", "1e9999", 1))
	for what, data := range map[string][]byte{"cut off": data[:len(data)/2], "too large a quantity": bad,
		"nothing": data[:4]} {
		if _, _, err := new(Decoder).Decode(store.Row{Kind: "nodes", Name: "pi-1", Object: data}); err == nil ||
			!strings.Contains(err.Error(), "pi-1") {
			t.Errorf("%s: %v, want an error with the node's name", what, err)
		}
	}
	if _, _, err := new(Decoder).Decode(store.Row{Kind: "records", Name: "pi-1", Object: data}); err == nil {
		t.Error("a record is read from protobuf")
	}
}

// BenchmarkDecode measures the decoding of one row at a start.
func BenchmarkDecode(b *testing.B) {
	cpu := func() float64 {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return float64(u.Utime.Nano() + u.Stime.Nano())
	}
	record := &state.Record{
		ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: strings.Repeat("0", 64), Boot: "b", Site: "oslo",
		Enrolled: metav1.Now(),
	}
	for _, o := range []state.Object{aNode("pi-1"), record} {
		b.Run(string(state.KindOf(o)), func(b *testing.B) {
			data, err := state.Encode(o)
			if err != nil {
				b.Fatal(err)
			}
			r := store.Row{Kind: string(state.KindOf(o)), Name: "pi-1", Object: data}
			var d Decoder
			began := cpu()
			for b.Loop() {
				if _, _, err := d.Decode(r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu()-began)/float64(b.N)/1000, "us-cpu/op")
		})
	}
}
