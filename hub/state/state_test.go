package state_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func TestNewReturnsAnObjectOfTheKind(t *testing.T) {
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

func TestApplyDoesNotChangeTheOldSnapshot(t *testing.T) {
	pod := func(node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: corev1.PodSpec{NodeName: node},
		}
	}
	before, _ := state.Apply(state.Empty("x", noon), []state.Change{state.Put(pod("pi-1"), "")})
	after, done := state.Apply(before, []state.Change{state.Put(pod("pi-2"), "")})
	if got := count(before.PodsOn("pi-1")); got != 1 {
		t.Errorf("before: %d pods on pi-1, want 1", got)
	}
	if count(after.PodsOn("pi-1")) != 0 || count(after.PodsOn("pi-2")) != 1 || after.Usage("pi-1").Pods != 0 ||
		after.Usage("pi-2").Pods != 1 {
		t.Errorf("after: the pod has not moved to pi-2 in the indexes")
	}
	if done[0].Rev != before.Revision+1 || after.Revision != done[0].Rev || done[0].Old.GetResourceVersion() != "1" ||
		done[0].New.GetResourceVersion() != "2" {
		t.Errorf("the change has other revisions than 1 and 2: %+v", done[0])
	}
	gone, done := state.Apply(after, []state.Change{state.Remove(pod(""), ""), state.Remove(pod(""), "")})
	if gone.Pod("default", "a") != nil || len(done) != 1 || done[0].Old.GetResourceVersion() != "3" ||
		after.Pod("default", "a").ResourceVersion != "2" {
		t.Errorf("the first removal must have revision 3 and the second none: %+v", done)
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
			s, done = state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}},
				"")})
			if uid := done[0].New.GetUID(); len(uid) != 36 || seen[uid] {
				t.Fatalf("uid %q is invalid or not unique", uid)
			} else {
				seen[uid] = true
			}
		}
	}
}

func TestWalksAreInOrderOfNamespaceAndName(t *testing.T) {
	s := state.Empty("x", noon)
	for _, k := range [][2]string{{"a-b", "x"}, {"a", "z"}, {"a", "b"}, {"a.b", "c"}} {
		s, _ = state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k[0],
			Name: k[1]}}, "")})
	}
	var got []string
	for p := range s.Pods("") {
		got = append(got, p.Namespace+"/"+p.Name)
	}
	if want := "[a/b a/z a-b/x a.b/c]"; fmt.Sprint(got) != want {
		t.Errorf("Pods walks %v, want %s", got, want)
	}
	got = nil
	for o := range s.From(state.Pods, "", "a", "z") {
		got = append(got, o.GetNamespace()+"/"+o.GetName())
	}
	if want := "[a-b/x a.b/c]"; fmt.Sprint(got) != want {
		t.Errorf("From a/z walks %v, want %s", got, want)
	}
	if count(s.Pods("a")) != 2 {
		t.Errorf("namespace a has %d pods, want 2", count(s.Pods("a")))
	}
}

func TestAHistoryIsBounded(t *testing.T) {
	var r state.Record
	begin := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	at := func(after time.Duration, ready corev1.ConditionStatus) state.HealthChange {
		return state.HealthChange{At: metav1.NewMicroTime(begin.Add(after)), Ready: ready}
	}
	r.AddHealthChange(at(0, "True"))
	r.AddHealthChange(at(time.Hour, "True")) // the same state again is not a change
	r.AddHealthChange(at(time.Hour, "False"))
	r.AddHealthChange(at(time.Minute, "True"))     // earlier than the last entry, so it is ignored
	r.AddHealthChange(at(32*24*time.Hour, "True")) // the entry before shows the state a month ago, so it stays
	if len(r.History) != 2 || r.History[0].Ready != "False" || r.History[1].Ready != "True" {
		t.Errorf("the history is %v, want False, then True", r.History)
	}
	for i := range 300 {
		r.AddHealthChange(at(32*24*time.Hour+time.Duration(i)*time.Second, []corev1.ConditionStatus{"False", "True"}[i%2]))
	}
	if len(r.History) != 200 {
		t.Errorf("the history of a flapping node has %d changes, want %d", len(r.History), 200)
	}
	for i := range 300 {
		r.Evict(state.Evicted{
			At: metav1.NewMicroTime(begin.Add(time.Duration(i) * time.Hour)), Pod: fmt.Sprint("default/p-", i),
			Text: strings.Repeat("ø", 100),
		})
	}
	if n := len(r.Evicted); n != 250 || r.Evicted[n-1].Pod != "default/p-299" ||
		r.Evicted[0].Text != strings.Repeat("ø", 80) {
		t.Errorf("%d evicted pods are stored, want 250; the last is %v", n, r.Evicted[n-1])
	}
	r.Evict(state.Evicted{At: metav1.NewMicroTime(begin.Add(36 * 24 * time.Hour)), Pod: "default/last"})
	if n := len(r.Evicted); n == 0 || begin.Add(6*24*time.Hour).After(r.Evicted[0].At.Time) {
		t.Errorf("an entry older than 30 days is stored: %v", r.Evicted[0])
	}
}
