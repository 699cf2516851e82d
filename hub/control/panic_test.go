package control_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
)

// A panickingDecider panics while a pod with a certain name exists.
type panickingDecider struct {
	concerned
	name string
}

func (b panickingDecider) Decide(s state.Snapshot, _ []state.Subject, _ time.Time) state.Plan {
	if s.Pod("default", b.name) != nil {
		panic("ouch")
	}
	return state.Plan{}
}

func TestADeciderThatPanicsIsAskedAgainLater(t *testing.T) {
	s, now := state.Empty("x", time.Unix(0, 0)), time.Unix(100, 0)
	h := recorder{map[string]bool{}, map[string]bool{}}
	asks := 0
	settler := control.NewSettler(nil, panickingDecider{name: "bad"}, endlessBinder{asks: &asks}, h)
	s, log := state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
		Name: "bad"}}, "")})
	s, _, settled := settler.Settle(s, log, now)
	if settled || !h.seen["bad on "] {
		t.Errorf("settled %v, deciders that saw it: %v", settled, h.seen)
	}
	if at := settler.Wake(); !at.Equal(now.Add(time.Second)) {
		t.Errorf("the settler wakes at %s, want a second later", at)
	}
	s, log = state.Apply(s, []state.Change{state.Remove(s.Pod("default", "bad"), "")})
	if _, _, settled = settler.Settle(s, log, now.Add(time.Second)); !settled {
		t.Error("the settler does not recover")
	}
}
