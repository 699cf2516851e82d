package state_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func TestEveryKindKnowsItsObject(t *testing.T) {
	for _, k := range state.Kinds() {
		o, err := state.New(k)
		if err != nil {
			t.Fatal(err)
		}
		if got := state.KindOf(o); got != k {
			t.Errorf("KindOf(New(%s)) = %s", k, got)
		}
	}
}

func TestApplyLeavesTheOldSnapshotAsItWas(t *testing.T) {
	pod := func(node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: corev1.PodSpec{NodeName: node}}
	}
	before, _ := state.Apply(state.Empty("x", noon), []state.Change{state.Put(pod("pi-1"), "")})
	after, done := state.Apply(before, []state.Change{state.Put(pod("pi-2"), "")})
	if got := count(before.PodsOn("pi-1")); got != 1 {
		t.Errorf("before: %d pods on pi-1", got)
	}
	if count(after.PodsOn("pi-1")) != 0 || count(after.PodsOn("pi-2")) != 1 || after.Usage("pi-1").Pods != 0 || after.Usage("pi-2").Pods != 1 {
		t.Errorf("after: the pod did not move in the indexes")
	}
	if done[0].Rev != before.Revision+1 || after.Revision != done[0].Rev || done[0].Old.GetResourceVersion() != "1" || done[0].New.GetResourceVersion() != "2" {
		t.Errorf("revisions %+v", done[0])
	}
	gone, done := state.Apply(after, []state.Change{state.Remove(pod(""), ""), state.Remove(pod(""), "")})
	if gone.Pod("default", "a") != nil || len(done) != 1 || done[0].Old.GetResourceVersion() != "3" || after.Pod("default", "a").ResourceVersion != "2" {
		t.Errorf("a removal has its own revision, and a second one is nothing: %+v", done)
	}
}

func count[T any](seq func(func(T) bool)) (n int) {
	for range seq {
		n++
	}
	return n
}

func TestUIDsAreUniqueAmongHubs(t *testing.T) {
	seen := map[types.UID]bool{}
	for _, salt := range []string{"a", "b"} {
		s := state.Empty(salt, noon)
		for i := range 100 {
			var done []state.Applied
			s, done = state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}, "")})
			if uid := done[0].New.GetUID(); len(uid) != 36 || seen[uid] {
				t.Fatalf("uid %q", uid)
			} else {
				seen[uid] = true
			}
		}
	}
}

func TestWalksAreInOrderOfNamespaceAndName(t *testing.T) {
	s := state.Empty("x", noon)
	for _, k := range [][2]string{{"a-b", "x"}, {"a", "z"}, {"a", "b"}, {"a.b", "c"}} {
		s, _ = state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k[0], Name: k[1]}}, "")})
	}
	var got []string
	for p := range s.Pods("") {
		got = append(got, p.Namespace+"/"+p.Name)
	}
	if want := "[a/b a/z a-b/x a.b/c]"; fmt.Sprint(got) != want {
		t.Errorf("walk %v, want %s", got, want)
	}
	got = nil
	for o := range s.From(state.Pods, "", "a", "z") {
		got = append(got, o.GetNamespace()+"/"+o.GetName())
	}
	if want := "[a-b/x a.b/c]"; fmt.Sprint(got) != want {
		t.Errorf("from a/z %v, want %s", got, want)
	}
	if count(s.Pods("a")) != 2 {
		t.Errorf("namespace a has %d", count(s.Pods("a")))
	}
}

// FuzzIndexes holds every index against a full count after random changes.
func FuzzIndexes(f *testing.F) {
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		s := state.Empty("x", noon)
		for range 60 {
			s, _ = state.Apply(s, []state.Change{anything(r)})
		}
		pods, ready, waiting := map[string]int64{}, map[string]int{}, map[string]int{}
		cpu := map[string]int64{}
		for p := range s.Pods("") {
			if p.Spec.NodeName != "" && !state.Terminated(p) {
				pods[p.Spec.NodeName]++
				cpu[p.Spec.NodeName] += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			}
		}
		for n := range s.Nodes() {
			site := state.SiteOf(n)
			if state.ReadyOf(n) == corev1.ConditionTrue {
				ready[site]++
			}
			if state.Waits(n) {
				waiting[site]++
			}
		}
		var tally state.SiteTally
		for _, c := range s.Counts() {
			if c.Ready+c.NotReady > 0 {
				tally.Counting++
			}
			if c.Full() {
				tally.Full++
			}
		}
		if s.Sites() != tally {
			t.Errorf("tally %+v, want %+v", s.Sites(), tally)
		}
		for i := range 4 {
			node, site := fmt.Sprint("n", i), fmt.Sprint("s", i)
			u := s.Usage(node)
			if u.Pods != pods[node] || u.Requests.Cpu().MilliValue() != cpu[node] {
				t.Errorf("usage of %s: %+v, want %d pods, %dm", node, u, pods[node], cpu[node])
			}
			if c := s.Count(site); c.Ready != ready[site] || c.Waiting != waiting[site] || count(s.Waiting(site)) != waiting[site] || count(s.NodesIn(site)) != c.Nodes {
				t.Errorf("count of %s: %+v, want %d ready, %d waiting", site, c, ready[site], waiting[site])
			}
		}
	})
}

func anything(r *rand.Rand) state.Change {
	i, j := r.Intn(4), r.Intn(4)
	if r.Intn(2) == 0 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("s", j)}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: []corev1.ConditionStatus{"True", "False", "Unknown"}[r.Intn(3)], LastTransitionTime: metav1.NewTime(noon.Add(time.Duration(r.Intn(9)) * time.Second))}}
		if r.Intn(3) == 0 {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
		}
		if r.Intn(5) == 0 {
			return state.Remove(n, "")
		}
		return state.Put(n, "")
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", r.Intn(8))}}
	if j > 0 {
		p.Spec.NodeName = fmt.Sprint("n", i)
	}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(r.Intn(500)), resource.DecimalSI)}}}}
	if r.Intn(4) == 0 {
		p.Status.Phase = corev1.PodSucceeded
	}
	if r.Intn(5) == 0 {
		return state.Remove(p, "")
	}
	return state.Put(p, "")
}
