package incident_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A rollout that has stopped has one incident, however many boards have failed and however its
// message changes. A paused rollout has none.
func TestARolloutThatHasStoppedIsOneIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 3)
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "cgroup", UID: "r"}}
	report := func(phase fleet.RolloutPhase, sentence string, bad ...string) {
		next := r.DeepCopy()
		next.Status = fleet.FirmwareRolloutStatus{Phase: phase, Sentence: sentence, Bad: int32(len(bad))}
		for _, n := range bad {
			next.Status.NodeStates = append(next.Status.NodeStates, fleet.FirmwareNode{Name: n, State: fleet.FirmwareBad})
		}
		w.put(next)
		w.wait(2 * time.Second)
	}
	report(fleet.RolloutProgressing, "going on")
	w.shows("a running rollout is not an incident")
	report(fleet.RolloutPaused, "paused")
	w.shows("a paused rollout is not an incident")
	report(fleet.RolloutStopped, "oslo-1 went back", "oslo-1")
	w.shows("a stopped rollout is an incident", "FirmwareRolloutStopped cgroup 1 0 0")
	name := w.open()[0].Name
	report(fleet.RolloutStopped, "oslo-1 and oslo-2 went back", "oslo-1", "oslo-2")
	w.shows("the incident continues with two boards", "FirmwareRolloutStopped cgroup 2 0 0")
	i := w.open()[0]
	if i.Name != name || i.About != (fleet.IncidentObject{Kind: "FirmwareRollout", Name: "cgroup"}) ||
		len(i.Examples) != 2 || i.Message != "Rollout cgroup of a boot configuration has stopped: oslo-1 and oslo-2 went back" {
		t.Errorf("the incident is %+v", i)
	}
	report(fleet.RolloutProgressing, "going on again")
	w.shows("the incident ends when the rollout continues")
	report(fleet.RolloutStopped, "oslo-1 went back", "oslo-1")
	w.remove(w.s.Rollout("cgroup"))
	w.wait(2 * time.Second)
	w.shows("the incident ends when the rollout is deleted")
	if i := w.s.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident); i.Closed == nil || i.Most.Nodes != 2 {
		t.Errorf("the closed incident is %+v", i)
	}
}
