package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// TestAFollowingSnapshotEqualsTheLeaders compares a snapshot that follows another hub with the other
// hub's snapshot, after any number of changes.
func TestAFollowingSnapshotEqualsTheLeaders(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	leads := state.Empty("salt", time.Unix(0, 0))
	follows := leads
	pod := func(i int) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)},
			Spec:       corev1.PodSpec{NodeName: fmt.Sprint("n", r.IntN(3))},
		}
	}
	again := 0
	for range 500 {
		touched := map[state.Key]bool{}
		for range 1 + r.IntN(6) {
			p := pod(r.IntN(8))
			change := state.Put(p, "")
			if have := leads.Pod("default", p.Name); have != nil && r.IntN(2) == 0 {
				change = state.Remove(have, "")
			} else if have != nil && r.IntN(2) == 0 {
				p.UID = have.UID
			}
			var done []state.Applied
			leads, done = state.Apply(leads, []state.Change{change})
			for _, a := range done {
				touched[a.Key] = true
			}
		}
		var objects []state.Object
		var gone []state.Key
		for k := range touched {
			if o := leads.Get(k); o != nil {
				if old := follows.Get(k); old != nil && old.GetUID() != o.GetUID() {
					again++
				}
				objects = append(objects, o.DeepCopyObject().(state.Object))
			} else {
				gone = append(gone, k)
			}
		}
		follows = follows.Follow(objects, gone, leads.Revision)
		if follows.Revision != leads.Revision || follows.Len(state.Pods) != leads.Len(state.Pods) {
			t.Fatalf("the follower has revision %d and %d pods, want %d and %d", follows.Revision, follows.Len(state.Pods),
				leads.Revision,
				leads.Len(state.Pods))
		}
		for o := range leads.All(state.Pods, "") {
			k := state.KeyOf(o)
			if have := follows.Get(k); have == nil || have.GetUID() != o.GetUID() ||
				have.GetResourceVersion() != o.GetResourceVersion() {
				t.Fatalf("%s differs from the original", k)
			}
		}
		for n := range 3 {
			var a, b []string
			for p := range leads.PodsOn(fmt.Sprint("n", n)) {
				a = append(a, p.Name)
			}
			for p := range follows.PodsOn(fmt.Sprint("n", n)) {
				b = append(b, p.Name)
			}
			if !slices.Equal(a, b) {
				t.Fatalf("pods on n%d: %v, want %v", n, b, a)
			}
		}
	}
	if again == 0 {
		t.Error("no object was deleted and recreated: change the seed")
	}
}
