package nodes

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

func TestWhatADrainWaitsFor(t *testing.T) {
	m := admintest.Drained(t)
	at := metav1.NewTime(time.Now().Add(25 * time.Second))
	n := m.Snapshot().Node("pi-a").DeepCopy()
	n.Annotations = map[string]string{state.DrainAnnotation: "true", state.DrainStatusAnnotation: state.DrainStatus{
		State: state.Draining, By: "ann", Began: time.Now().Add(-time.Minute), Until: time.Now().Add(14 * time.Minute),
		Pods: 11, Left: 3,
		Held: []state.DrainHeld{{Pod: "default/shop-9",
			Why: "The disruption budget shop needs 2 healthy pods and has 2 currently"}}}.String()}
	p := m.Snapshot().Pod("default", "shop-on-pi-a").DeepCopy()
	p.DeletionTimestamp = &at
	m.Put(t, n, p)
	a := admintest.Ask(m.Snapshot(), at.Add(time.Second), nil)
	waits := waitsOf(a, n, state.DrainStatusOf(n), 5)
	if len(waits) != 2 || waits[0].Until != nil ||
		!strings.Contains(waits[0].Text, "has not said that it has stopped") || waits[1].Pod != "shop-9" ||
		!strings.Contains(waits[1].Text, "budget shop needs 2") {
		t.Errorf("after its grace period it waits for %+v", waits)
	}
	if waits := waitsOf(a, n, state.DrainStatusOf(n), 1); len(waits) != 1 {
		t.Errorf("asked for one pod, it names %d", len(waits))
	}
}
