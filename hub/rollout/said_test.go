package rollout

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestWhereANodeIsByWhatItsDeviceSays(t *testing.T) {
	const d, other = "sha256:d", "sha256:other"
	for _, c := range []struct {
		rule string
		said *state.FirmwareReport
		want fleet.FirmwareNodeState
	}{
		{"an old agent says nothing", nil, fleet.FirmwareWaiting},
		{"it has something else", &state.FirmwareReport{Digest: other, State: "UpToDate"}, fleet.FirmwareWaiting},
		{"it has staged it", &state.FirmwareReport{Digest: other, Candidate: d, State: "Staged"}, fleet.FirmwareStaged},
		{"it keeps it", &state.FirmwareReport{Digest: d, State: "UpToDate"}, fleet.FirmwareKept},
		{"it went back", &state.FirmwareReport{Candidate: d, State: "RolledBack", Bad: []string{other, d}}, fleet.FirmwareBad},
		{"it went back, and has nothing staged", &state.FirmwareReport{State: "UpToDate", Bad: []string{d}}, fleet.FirmwareBad},
		{"it went back from another one", &state.FirmwareReport{Candidate: d, State: "Staged", Bad: []string{other}}, fleet.FirmwareStaged},
		{"it has staged it again, for the retry was raised", &state.FirmwareReport{Candidate: d, State: "Staged", Bad: []string{d}}, fleet.FirmwareStaged},
		{"it could not stage it", &state.FirmwareReport{Candidate: d, State: "Failed"}, fleet.FirmwareBad},
		{"it could not stage another one", &state.FirmwareReport{Candidate: other, State: "Failed"}, fleet.FirmwareWaiting},
		{"it cannot do it", &state.FirmwareReport{State: "Unsupported"}, fleet.FirmwareUnsupported},
		{"it tries it without a turn", &state.FirmwareReport{Candidate: d, State: "Trial"}, fleet.FirmwareWaiting},
	} {
		if got, _ := reported(c.said, &fleet.FirmwareRollout{Status: fleet.FirmwareRolloutStatus{Digest: d}}); got != c.want {
			t.Errorf("%s: %s; want %s", c.rule, got, c.want)
		}
	}
}

func TestWhereANodeIsThatGoesBack(t *testing.T) {
	const d, other = "sha256:d", "sha256:other"
	for _, c := range []struct {
		rule string
		said *state.FirmwareReport
		want fleet.FirmwareNodeState
	}{
		{"nothing is known of an old agent's board", nil, fleet.FirmwareWaiting},
		{"it has it", &state.FirmwareReport{Digest: d, State: "UpToDate"}, fleet.FirmwareKept},
		{"it has it, and failed at another one", &state.FirmwareReport{Digest: d, Candidate: other, State: "Failed"}, fleet.FirmwareKept},
		{"it could not go back", &state.FirmwareReport{Digest: d, State: "Failed"}, fleet.FirmwareBad},
		{"it is about to go back", &state.FirmwareReport{Digest: d, State: "Trial"}, fleet.FirmwareKept},
		{"its files are back, and it has not rebooted", &state.FirmwareReport{State: "Trial"}, fleet.FirmwareWaiting},
		{"it has what it had", &state.FirmwareReport{Digest: other, State: "UpToDate"}, fleet.FirmwareUndone},
		{"it has what it had, and stages it anew", &state.FirmwareReport{Candidate: d, State: "Staged"}, fleet.FirmwareUndone},
		{"it went back by itself", &state.FirmwareReport{Candidate: d, State: "RolledBack", Bad: []string{d}}, fleet.FirmwareUndone},
		{"nobody can ask its boot helper", &state.FirmwareReport{State: "Unsupported"}, fleet.FirmwareUnsupported},
	} {
		if got, _ := reported(c.said, &fleet.FirmwareRollout{Status: fleet.FirmwareRolloutStatus{Digest: d, Undoing: true}}); got != c.want {
			t.Errorf("%s: %s; want %s", c.rule, got, c.want)
		}
	}
}

// While it has its turn, what a device does is what it says itself.
func TestWhatANodeSaysThatHasItsTurn(t *testing.T) {
	const d = "sha256:d"
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Status: fleet.FirmwareRolloutStatus{Digest: d}}
	for _, c := range []struct {
		rule string
		turn state.FirmwareAssignment
		said state.FirmwareReport
		at   fleet.FirmwareNodeState
		why  string
	}{
		{"it tries", state.FirmwareAssignment{Rollout: "r", Digest: d, Step: fleet.FirmwareTrying}, state.FirmwareReport{Candidate: d, State: "Trial", Message: "boots"}, fleet.FirmwareTrying, "boots"},
		{"it tries, and has no turn", state.FirmwareAssignment{Rollout: "r", Digest: d}, state.FirmwareReport{Candidate: d, State: "Trial", Message: "boots"}, fleet.FirmwareWaiting,
			"its device tries a configuration without a turn: a deleted rollout started it"},
	} {
		s, _ := state.Apply(state.Empty("x", time.Time{}), []state.Change{state.Put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi"}, Firmware: &c.said, Assigned: &c.turn}, "")})
		if at, why := (&pass{s: s}).stateOf(r, "pi"); at != c.at || why != c.why {
			t.Errorf("%s: %s, %q; want %s, %q", c.rule, at, why, c.at, c.why)
		}
	}
}
