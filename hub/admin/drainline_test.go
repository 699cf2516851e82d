package admin

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

// A node's page says how far its drain is: in the first line, in its row, and with what it waits
// for.
func TestANodeSaysHowFarItsDrainIs(t *testing.T) {
	m := admintest.Drained(t)
	srv := acting(t, m)
	at := metav1.NewTime(time.Now().Add(25 * time.Second))
	n := m.Snapshot().Node("pi-a").DeepCopy()
	n.Spec.Unschedulable = true
	n.Annotations = map[string]string{state.DrainAnnotation: "true", state.DrainStatusAnnotation: state.DrainStatus{
		State: state.Draining, By: "ann", Began: time.Now().Add(-time.Minute), Until: time.Now().Add(14 * time.Minute), Pods: 11, Left: 3,
		Held: []state.DrainHeld{{Pod: "default/shop-9", Why: "The disruption budget shop needs 2 healthy pods and has 2 currently"}}}.String()}
	p := m.Snapshot().Pod("default", "shop-on-pi-a").DeepCopy()
	p.DeletionTimestamp = &at
	m.Put(t, n, p)
	line := "Being drained: 1 of 11 pods left to go." // 11 is the number of pods at the beginning
	for _, path := range []string{"/nodes", "/nodes/pi-a"} {
		if _, body := srv.ask(t, "viewer", "GET", path, nil); !strings.Contains(body, line) {
			t.Errorf("%s does not say %q: %.600s", path, line, mainOf(body))
		}
	}
	_, body := srv.ask(t, "operator", "GET", "/nodes/pi-a", nil)
	words := wordsOf(body)
	for _, want := range []string{"10 of 11 pods gone.", "Given up in 1", "shop-on-pi-a : was told to leave, and has 2", "Stop…"} {
		if !strings.Contains(words, want) {
			t.Errorf("the node's page does not say %q: %.900s", want, words)
		}
	}
}
