package workload

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// bigFleet is a settled fleet. For each node it has one pod of a DaemonSet and two pods of
// ReplicaSets with ten replicas each.
func bigFleet(b *testing.B, nodes int) *fleet {
	f := newFleet(b)
	var objects []state.Object
	add := func(uid string, o state.Object) state.Object {
		o.SetUID(types.UID(uid))
		o.SetCreationTimestamp(metav1.NewTime(start))
		objects = append(objects, o)
		return o
	}
	ds := add("ds", daemonSet())
	var rs state.Object
	for i := range nodes {
		name := fmt.Sprintf("n-%06d", i)
		add(name, node(name))
		pod := bare("probe-"+name, running(name))
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ds, daemonSetKind)}
		add("probe-"+name, pod)
		if i%5 == 0 {
			rs = add(fmt.Sprintf("rs-%d", i), replicaSet(fmt.Sprintf("rs-%06d", i), 10))
		}
		for j := range 2 {
			pod := bare(fmt.Sprintf("run-%s-%d", name, j), running(name))
			pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, replicaSetKind)}
			add(pod.Name, pod)
		}
	}
	f.s = state.Load(f.s, objects, uint64(len(objects)))
	return f
}

func benchmark(b *testing.B, change func(f *fleet)) {
	for _, n := range []int{100, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			f := bigFleet(b, n)
			change(f)
			b.ReportAllocs()
			for b.Loop() {
				f.d.Decide(f.s, state.Touched(f.d.Touches, f.recent), f.now)
			}
		})
	}
}

func BenchmarkPodOfReplicaSetIsReady(b *testing.B) {
	benchmark(b, func(f *fleet) { f.ready("run-n-000050-0", "n-000050") })
}

func BenchmarkDaemonPodIsReady(b *testing.B) {
	benchmark(b, func(f *fleet) { f.ready("probe-n-000050", "n-000050") })
}

func BenchmarkNodeIsTainted(b *testing.B) {
	benchmark(b, func(f *fleet) {
		f.edit(state.Key{Kind: state.Nodes, Name: "n-000050"}, func(o state.Object) {
			o.(*corev1.Node).Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		})
	})
}

func BenchmarkNodeReports(b *testing.B) {
	benchmark(b, func(f *fleet) {
		f.edit(state.Key{Kind: state.Nodes, Name: "n-000050"}, func(o state.Object) {
			o.(*corev1.Node).Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(start)
		})
	})
}
