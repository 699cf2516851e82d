package control_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

var sizes = []int{100, 1_000, 10_000, 100_000}

// bigDeciders are the hub's deciders with an address range that has a block for every node.
func bigDeciders() []control.Decider {
	return decidersWith("10.0.0.0/8", 26)
}

// bigFleet returns n nodes on n/50 sites, each with one pod like a DaemonSet's.
func bigFleet(n int, now time.Time) state.Snapshot {
	var objects []state.Object
	for i := range n {
		objects = append(objects, bigNode(i, now, corev1.ConditionTrue),
			&state.Record{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pi-%06d", i)}, Boot: "b"})
	}
	return state.Load(state.Empty("bench", now), objects, uint64(2*n))
}

func bigNode(i int, now time.Time, ready corev1.ConditionStatus) *corev1.Node {
	name, site := fmt.Sprintf("pi-%06d", i), fmt.Sprintf("site-%04d", i/50)
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("110")}
	conditions := []corev1.NodeCondition{}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure} {
		conditions = append(conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse,
			LastTransitionTime: metav1.NewTime(now), LastHeartbeatTime: metav1.NewTime(now),
			Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"})
	}
	conditions = append(conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: ready,
		LastTransitionTime: metav1.NewTime(now), LastHeartbeatTime: metav1.NewTime(now), Reason: "KubeletReady",
		Message: "kubelet is posting ready status"})
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now),
			Labels: map[string]string{corev1.LabelTopologyZone: site, corev1.LabelHostname: name, corev1.LabelOSStable: "linux",
				corev1.LabelArchStable: "arm64"}},
		Status: corev1.NodeStatus{Capacity: list, Allocatable: list, Conditions: conditions,
			NodeInfo: corev1.NodeSystemInfo{MachineID: name, KernelVersion: "6.12.34",
				OSImage: "Debian GNU/Linux 12 (bookworm)"}},
	}
}

// BenchmarkPassAfterOneChange is a whole pass after one node's report. Its cost must depend on the
// change, not on the size of the fleet. MB-heap is the heap of the fleet without connections,
// MB-peak the peak of the process. FLOTILLA_BENCH_LARGE=1000000 adds a fleet of that size, which
// takes half a minute to make and some 8 GB.
func BenchmarkPassAfterOneChange(b *testing.B) {
	sizes := sizes
	if n, err := strconv.Atoi(os.Getenv("FLOTILLA_BENCH_LARGE")); err == nil {
		sizes = append(slices.Clone(sizes), n)
	}
	for _, n := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			now := time.Now()
			settler := control.NewSettler(node.Ended, append(decidersWith("10.0.0.0/8", 28), node.Deliver{})...)
			var before, m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			s, _, _ := settler.Settle(bigFleet(n, now), nil, now)
			runtime.GC()
			runtime.ReadMemStats(&m)
			status := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				node := s.Node(fmt.Sprintf("pi-%06d", n/2)).DeepCopy()
				state.NodeCondition(node, corev1.NodeMemoryPressure).Status = status[i%2]
				i++
				var done []state.Applied
				s, done = state.Apply(s, []state.Change{state.Put(node, "")})
				s, _, _ = settler.Settle(s, done, now)
			}
			b.ReportMetric(float64(m.HeapAlloc-before.HeapAlloc)/1e6, "MB-heap")
			var u syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(u.Maxrss)/1e3, "MB-peak")
		})
	}
}

// BenchmarkOneSilentAmongAll is the pass one grace period after the hub's start: every node is due,
// and all but one have sent a heartbeat.
func BenchmarkOneSilentAmongAll(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			now := time.Now()
			fleet, heard := bigFleet(n, now), now.Add(lifecycle.Defaults.Grace/2)
			later := now.Add(lifecycle.Defaults.Grace + 1)
			for b.Loop() {
				b.StopTimer()
				settler := control.NewSettler(node.Ended, append(bigDeciders(), node.Deliver{})...)
				s, _, _ := settler.Settle(fleet, nil, now)
				b.StartTimer()
				due := settler.DueNodes(later)
				s = s.WithAllSeen(func(yield func(string, time.Time) bool) {
					for _, name := range due[1:] {
						yield(name, heard)
					}
				})
				if _, made, settled := settler.Settle(s, nil, later); !settled || len(due) != n || len(made) == 0 {
					b.Fatal(settled, len(due), len(made))
				}
			}
		})
	}
}

// BenchmarkManySilentAtOnce is a pass in which 5,000 of 10,000 nodes become Unknown and are
// tainted, with an instant store.
func BenchmarkManySilentAtOnce(b *testing.B) {
	now := time.Now()
	fleet := bigFleet(10_000, now)
	for b.Loop() {
		b.StopTimer()
		settler := control.NewSettler(node.Ended, append(bigDeciders(), node.Deliver{})...)
		s, _, _ := settler.Settle(fleet, nil, now)
		later := now.Add(lifecycle.Defaults.Grace + time.Second)
		for i := range 5_000 {
			s = s.WithSeen(fmt.Sprintf("pi-%06d", 2*i), later)
		}
		b.StartTimer()
		_, made, settled := settler.Settle(s, nil, later)
		if !settled || len(made) < 5_000 {
			b.Fatal(settled, len(made))
		}
	}
}

// BenchmarkLease is the hub's cost of a lease, without the broker.
func BenchmarkLease(b *testing.B) {
	for _, n := range sizes[:3] {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			book := nodetest.NewNotebook()
			l := node.New(node.Config{Broker: book, Grace: 40 * time.Second},
				control.Config{Store: book, Start: bigFleet(n, time.Now())})
			names := make([]string, n)
			for i := range names {
				names[i] = fmt.Sprintf("pi-%06d", i)
			}
			b.ReportAllocs()
			seq := 0
			for b.Loop() {
				seq++
				l.Lease(node.Caller{Node: names[seq%n]}, wire.Lease{Boot: "b", Seq: uint64(seq)})
			}
		})
	}
}

// BenchmarkMemoryPerIdleNode reports the loop's heap per node.
func BenchmarkMemoryPerIdleNode(b *testing.B) {
	const n = 10_000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		book := nodetest.NewNotebook()
		l := node.New(node.Config{Broker: book, Grace: 40 * time.Second},
			control.Config{Store: book, Start: bigFleet(n, time.Now()), Deciders: bigDeciders()})
		ctx, stop := context.WithCancel(b.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) { return nil, nil }); err != nil {
			b.Fatal(err)
		}
		book.Forget()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/node")
		stop()
		<-over
		runtime.KeepAlive(l)
	}
}
