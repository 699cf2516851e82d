package workload

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// The pods of a workload of thousands are created in bursts until all exist.
func TestALargeWorkloadIsCreatedInBursts(t *testing.T) {
	const many = burst + 300
	for _, c := range []struct {
		kind  string
		begin func(f *fleet)
	}{
		{"a ReplicaSet", func(f *fleet) { f.put(replicaSet("kiosk", many)) }},
		{"a DaemonSet", func(f *fleet) {
			for i := range many {
				f.put(node(fmt.Sprintf("n-%05d", i)))
			}
			f.settle().put(daemonSet())
		}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			f := newFleet(t)
			c.begin(f)
			f.settle()
			if n := f.s.Len(state.Pods); n != burst {
				t.Errorf("the first burst creates %d pods", n)
			}
			f.pass(5 * time.Second).quiet()
			if n := f.s.Len(state.Pods); n != many {
				t.Errorf("after all bursts there are %d pods, want %d", n, many)
			}
		})
	}
}

// The pods of a large workload are checked once a second, but a change of its spec applies at once.
func TestALargeWorkloadIsCheckedOnceASecond(t *testing.T) {
	const many = burst + 200
	set := aSet(many, parallel)
	set.Name = "kiosk"
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "default", Generation: 1},
		Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(many)), Selector: selector.MatchLabels,
			Template: new(template("kiosk:1"))},
	}
	job := func(change ...func(*batchv1.JobSpec)) *batchv1.Job {
		j := aJob(append(change, func(s *batchv1.JobSpec) {
			s.Completions, s.Parallelism = new(int32(3*many)),
				new(int32(many))
		})...)
		j.Name, j.Generation = "kiosk", 1
		return j
	}
	fewerOfJob := func(o state.Object) { o.(*batchv1.Job).Spec.Parallelism = new(int32(many - 100)) }
	for _, c := range []struct {
		kind  string
		o     state.Object
		fewer func(state.Object)
	}{
		{"ReplicaSet", replicaSet("kiosk", many), func(o state.Object) { o.(*appsv1.ReplicaSet).Spec.Replicas = new(int32(many - 100)) }},
		{"ReplicationController", rc, func(o state.Object) { o.(*corev1.ReplicationController).Spec.Replicas = new(int32(many - 100)) }},
		{"StatefulSet", set, func(o state.Object) { o.(*appsv1.StatefulSet).Spec.Replicas = new(int32(many - 100)) }},
		{"Job", job(), fewerOfJob},
		{"indexed Job", job(func(s *batchv1.JobSpec) { s.CompletionMode = new(batchv1.IndexedCompletion) }), fewerOfJob},
	} {
		t.Run(c.kind, func(t *testing.T) {
			key := state.KeyOf(c.o)
			f := newFleet(t)
			f.put(c.o).settle().pass(5 * time.Second).quiet()
			if n := len(f.livePods()); n != many {
				t.Fatalf("there are %d pods, want %d", n, many)
			}
			f.pass(300 * time.Millisecond)
			for range 3 {
				f.remove(state.KeyOf(f.livePods()[0])).settle()
				f.pass(100 * time.Millisecond)
			}
			if n := len(f.livePods()); n != many-3 {
				t.Errorf("within the same second %d pods are created, want none", n-many+3)
			}
			f.pass(time.Second).quiet()
			if n := len(f.livePods()); n != many {
				t.Errorf("a second later there are %d pods, want %d", n, many)
			}
			f.pass(300 * time.Millisecond)
			f.remove(state.KeyOf(f.livePods()[0]))
			f.recent, f.alarms = nil, map[state.Subject]time.Time{} // restart the hub
			f.carry(f.d.Decide(f.s, f.d.Subjects(f.s), f.now))
			if n := len(f.livePods()); n != many {
				t.Errorf("after a restart there are %d pods, want %d", n, many)
			}
			f.settle().pass(100 * time.Millisecond)
			f.edit(key, func(o state.Object) {
				o.SetGeneration(o.GetGeneration() + 1)
				c.fewer(o)
			}).settle()
			if n := len(f.livePods()); n != many-100 {
				t.Errorf("after scaling down there are %d pods, want %d", n, many-100)
			}
			f.remove(key).settle()
			if n := f.s.Len(state.Pods); n != 0 {
				t.Errorf("%d pods remain after the workload's deletion", n)
			}
		})
	}
}

// A ReplicaSet creates more pods only while the number of its unplaced pods is below a limit.
func TestUnplacedReplicasAreLimited(t *testing.T) {
	f := newFleet(t)
	f.put(replicaSet("kiosk", 2147483647))
	f.settle()
	for range 20 {
		f.pass(time.Second)
	}
	f.quiet()
	if n := f.s.Len(state.Pods); n != maxUnplaced {
		t.Fatalf("there are %d pods, want %d", n, maxUnplaced)
	}
	get := func() *appsv1.ReplicaSet {
		return f.s.Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "kiosk"}).(*appsv1.ReplicaSet)
	}
	if c := get().Status.Conditions; len(c) != 1 || c[0].Type != appsv1.ReplicaSetReplicaFailure ||
		!strings.Contains(c[0].Message, "have no node yet") {
		t.Errorf("the conditions are %+v, want one about the unplaced pods", c)
	}
	placed := 0
	for pod := range f.s.PodsOn("") {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = "n-1"
		f.put(pod)
		if placed++; placed == 100 {
			break
		}
	}
	f.settle()
	for range 5 {
		f.pass(time.Second)
	}
	if n := f.s.Len(state.Pods); n != maxUnplaced+100 {
		t.Errorf("there are %d pods after 100 were bound", n)
	}
	rs := get().DeepCopy()
	rs.Spec.Replicas = new(int32(10))
	f.put(rs)
	f.settle()
	for range 5 {
		f.pass(time.Second)
	}
	if c := get().Status.Conditions; len(c) != 0 {
		t.Errorf("with ten replicas the conditions are %+v, want none", c)
	}
}

// Some of ten thousand generated names collide. Even then two pods never get the same name.
func TestPodsOfOnePassHaveDifferentNames(t *testing.T) {
	p := &pass{s: state.Empty("x", start), base: state.Empty("x", start)}
	seen := map[string]bool{}
	for range 20_000 {
		name := p.freeName(state.Pods, "default", "probe", "u")
		if seen[name] {
			t.Fatalf("two pods get the name %s", name)
		}
		seen[name] = true
	}
}
