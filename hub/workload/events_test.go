package workload

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

func event(kind, name, reason string, at time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s.%s.%d", name, reason, at.UnixNano()),
			CreationTimestamp: metav1.NewTime(at)},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "default", Name: name}, Reason: reason,
		LastTimestamp: metav1.NewTime(at), FirstTimestamp: metav1.NewTime(at), Count: 1,
	}
}

// After an ordinary day, 3,000 nodes become silent and return. Within half an hour their pods cause
// 50,000 events with ordinary reasons.
func TestAStormOfEventsReplacesOnlyItself(t *testing.T) {
	f := newFleet(t)
	put := func(events ...*corev1.Event) {
		var changes []state.Change
		for _, e := range events {
			changes = append(changes, state.Put(e, ""))
		}
		f.s, _ = state.Apply(f.s, changes)
	}
	everyDay := []string{"Scheduled", "Pulling", "Pulled", "Created", "Started"}
	var quiet []state.Key
	for hour := range 20 {
		f.now = f.now.Add(time.Hour)
		for i := range 30 {
			for _, reason := range everyDay {
				put(event("Pod", fmt.Sprintf("daily-%d-%d", hour, i), reason, f.now.Add(time.Duration(i)*time.Second)))
			}
		}
		if hour == 1 {
			for i, reason := range everyDay {
				e := event("Pod", "quiet", reason, f.now.Add(time.Duration(i)*time.Second))
				put(e)
				quiet = append(quiet, state.KeyOf(e))
			}
		}
	}
	reasons := []string{"NodeNotReady", "NodeReady", "TaintManagerEviction", "Killing", "Scheduled", "Pulling", "Pulled",
		"Created", "Started", "Unhealthy"}
	began, most := f.now.Add(time.Hour), 0
	for batch := range 100 {
		f.now = began.Add(time.Duration(batch) * 18 * time.Second)
		var events []*corev1.Event
		for i := range 500 {
			n := batch*500 + i
			kind, reason := "Pod", reasons[n/3000%len(reasons)]
			if reason == "NodeNotReady" || reason == "NodeReady" {
				kind = "Node"
			}
			events = append(events, event(kind, fmt.Sprintf("pi-%06d", n%3000), reason, f.now.Add(time.Duration(i))))
		}
		put(events...)
		most = max(most, f.s.Len(state.Events))
		// A pass one second later trims the events; TestEvents checks that it runs.
		if f.s.Len(state.Events) > DefaultEventLimit+DefaultEventLimit/20 {
			f.s, _ = state.Apply(f.s, f.d.Decide(f.s, []state.Subject{allEvents}, f.now).Changes)
		}
	}
	if n := f.s.Len(state.Events); n > DefaultEventLimit+DefaultEventLimit/20 ||
		most > DefaultEventLimit+DefaultEventLimit/20+500 {
		t.Errorf("%d events of at most %d remain", n, most)
	}
	for _, k := range quiet {
		if f.s.Get(k) == nil {
			t.Errorf("the event %s of the day before is removed", k.Name)
		}
	}
	of := map[string]int{}
	daily := 0
	for e := range state.Each[*corev1.Event](f.s, state.Events, "") {
		if state.LastOccurred(e, f.now).Before(began) {
			daily++
			continue
		}
		of[e.Reason]++
	}
	if daily != 20*30*len(everyDay)+len(quiet) {
		t.Errorf("%d events of the day before remain, want all", daily)
	}
	for _, reason := range reasons {
		if of[reason] < 100 {
			t.Errorf("%d events of the storm with the reason %s remain", of[reason], reason)
		}
	}
}

// At most limit events remain, the newest of each bucket. A bucket loses events only if every other
// bucket keeps at most one event more. A second call removes nothing.
func TestEventsAreRemovedFairly(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var all []*corev1.Event
		at := time.Unix(1_800_000_000, 0)
		for i := range r.IntN(400) {
			at = at.Add(time.Duration(r.IntN(600)) * time.Second)
			all = append(all, event("Pod", fmt.Sprint("p", i), fmt.Sprint("R", int(r.ExpFloat64()*3)), at))
		}
		limit := 1 + r.IntN(300)
		gone := surplusEvents(all, limit, at)
		if want := max(0, len(all)-limit); len(gone) != want {
			t.Fatalf("seed %d: %d of %d events are removed, want %d", seed, len(gone), len(all), want)
		}
		kept, lost, newest := map[bucket]int{}, map[bucket]int{}, map[bucket]time.Time{}
		for _, e := range gone {
			lost[bucketOf(e, at)]++
			newest[bucketOf(e, at)] = state.LastOccurred(e, at)
		}
		var left []*corev1.Event
		for _, e := range all {
			if slices.Contains(gone, e) {
				continue
			}
			left = append(left, e)
			c := bucketOf(e, at)
			kept[c]++
			if lost[c] > 0 && state.LastOccurred(e, at).Before(newest[c]) {
				t.Fatalf("seed %d: bucket %v keeps an event older than a removed one", seed, c)
			}
		}
		for c := range lost {
			for other, n := range kept {
				if n > kept[c]+1 {
					t.Fatalf("seed %d: bucket %v keeps %d and loses %d events, while %v keeps %d", seed, c, kept[c], lost[c], other, n)
				}
			}
		}
		if more := surplusEvents(left, limit, at); len(more) != 0 {
			t.Fatalf("seed %d: a second call removes %d more events", seed, len(more))
		}
	}
}

func BenchmarkSurplusEvents(b *testing.B) {
	var all []*corev1.Event
	for i := range DefaultEventLimit + DefaultEventLimit/20 {
		all = append(all, event("Pod", fmt.Sprint("p", i), fmt.Sprint("R", i%20), time.Unix(1_800_000_000+int64(i)*8, 0)))
	}
	for b.Loop() {
		surplusEvents(all, DefaultEventLimit, time.Unix(1_900_000_000, 0))
	}
}
