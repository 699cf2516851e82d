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

// TestWhatIsFollowedIsWhatWasDone holds a snapshot that follows another one against it: any
// changes, looked at after any number of them.
func TestWhatIsFollowedIsWhatWasDone(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	leads := state.Empty("salt", time.Unix(0, 0))
	follows := leads
	pod := func(i int) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)}, Spec: corev1.PodSpec{NodeName: fmt.Sprint("n", r.IntN(3))}}
	}
	again := 0
	for range 500 {
		seen := leads.Revision
		touched := map[state.Key]uint64{}
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
				touched[a.Key] = a.Rev
			}
		}
		var objects []state.Object
		gone := map[state.Key]uint64{}
		for k, rev := range touched {
			if o := leads.Get(k); o != nil {
				objects = append(objects, o.DeepCopyObject().(state.Object))
			} else {
				gone[k] = rev
			}
		}
		before := follows
		var log []state.Applied
		follows, log = follows.Follow(objects, gone, leads.Revision)
		if follows.Revision != leads.Revision || follows.Len(state.Pods) != leads.Len(state.Pods) {
			t.Fatalf("revision %d with %d pods, want %d with %d", follows.Revision, follows.Len(state.Pods), leads.Revision, leads.Len(state.Pods))
		}
		told := map[state.Key]state.Object{} // as a watcher has it
		for o := range before.All(state.Pods, "") {
			told[state.KeyOf(o)] = o
		}
		last := seen
		for _, a := range log {
			if a.Rev < last || a.Rev <= seen || a.Rev > leads.Revision {
				t.Fatalf("a change has revision %d after %d, between %d and %d", a.Rev, last, seen, leads.Revision)
			}
			last = a.Rev
			if have := told[a.Key]; have != nil && a.New != nil && have.GetUID() != a.New.GetUID() {
				t.Fatalf("%s became another object, and its end was not told", a.Key)
			}
			if delete(told, a.Key); a.New != nil {
				told[a.Key] = a.New
			} else if leads.Get(a.Key) != nil {
				again++
			}
		}
		for o := range leads.All(state.Pods, "") {
			k := state.KeyOf(o)
			if have := follows.Get(k); have == nil || told[k] == nil || have.GetUID() != o.GetUID() || have.GetResourceVersion() != o.GetResourceVersion() || told[k].GetResourceVersion() != o.GetResourceVersion() {
				t.Fatalf("%s is not as it was made", k)
			}
			delete(told, k)
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
		if len(told) > 0 {
			t.Fatalf("a watcher still has %v", told)
		}
	}
	if again == 0 {
		t.Error("nothing was ever deleted and made again: the test tests less than it says")
	}
}
