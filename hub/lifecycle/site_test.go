package lifecycle_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
)

// A site whose last node is deleted and comes back has its rate as if it had never
// been gone, and nothing of it is kept for longer than that takes.
func TestASiteThatIsEmptiedAndFilledAgainKeepsItsRate(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("other", "bergen", up), node("pi", "oslo", up))
	w.put(node("pi", "oslo", corev1.ConditionFalse))
	if state.NoExecuteOf(w.s.Node("pi")) == nil {
		t.Fatal("the first one of a quiet site does not go at once")
	}
	w.wait(time.Second, "other")
	w.apply([]state.Change{state.Remove(w.s.Node("pi"), "")})
	w.put(node("pi", "oslo", corev1.ConditionFalse))
	if state.NoExecuteOf(w.s.Node("pi")) != nil {
		t.Error("the next one goes after a second, and one in ten is allowed")
	}
	w.wait(8*time.Second, "other", "pi")
	if len(w.expel()) > 0 {
		t.Error("it goes too early")
	}
	w.wait(time.Second, "other", "pi")
	if len(w.expel()) != 1 {
		t.Error("it does not go when it is its turn")
	}
	w.apply([]state.Change{state.Remove(w.s.Node("pi"), "")})
	if w.s.Site("oslo") == nil {
		t.Fatal("the site is forgotten before its time")
	}
	w.wait(10*time.Second, "other")
	if w.s.Site("oslo") != nil {
		t.Error("the empty site stays")
	}
}
