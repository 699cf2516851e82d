package incident_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A rollout has one incident, however many boards went back and however its message changes. A
// paused rollout has none.
func TestARolloutThatHasStoppedIsOneIncident(t *testing.T) {
	w := newWorld(t)
	w.nodes("oslo", 3)
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "cgroup", UID: "r"}}
	said := func(phase fleet.RolloutPhase, sentence string, bad ...string) {
		next := r.DeepCopy()
		next.Status = fleet.FirmwareRolloutStatus{Phase: phase, Sentence: sentence, Bad: int32(len(bad))}
		for _, n := range bad {
			next.Status.NodeStates = append(next.Status.NodeStates, fleet.FirmwareNode{Name: n, State: fleet.FirmwareBad})
		}
		w.put(next)
		w.wait(2 * time.Second)
	}
	said(fleet.RolloutProgressing, "going on")
	w.shows("one that goes on is none")
	said(fleet.RolloutPaused, "paused")
	w.shows("one that somebody has paused is none")
	said(fleet.RolloutStopped, "oslo-1 went back", "oslo-1")
	w.shows("one that has stopped is one", "FirmwareRolloutStopped cgroup 1 0 0")
	name := w.open()[0].Name
	said(fleet.RolloutStopped, "oslo-1 and oslo-2 went back", "oslo-1", "oslo-2")
	w.shows("with two boards it is the same", "FirmwareRolloutStopped cgroup 2 0 0")
	i := w.open()[0]
	if i.Name != name || i.About != (fleet.IncidentObject{Kind: "FirmwareRollout", Name: "cgroup"}) || len(i.Examples) != 2 || i.Message != "Rollout cgroup of a boot configuration has stopped: oslo-1 and oslo-2 went back" {
		t.Errorf("it says %+v", i)
	}
	said(fleet.RolloutProgressing, "going on again")
	w.shows("it is over when it goes on")
	said(fleet.RolloutStopped, "oslo-1 went back", "oslo-1")
	w.remove(w.s.Rollout("cgroup"))
	w.wait(2 * time.Second)
	w.shows("and when it is gone")
	if i := w.s.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident); i.Closed == nil || i.Most.Nodes != 2 {
		t.Errorf("closed it is %+v", i)
	}
}
