package rollout

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestStateOfANodeFromItsReport(t *testing.T) {
	const d, other = "sha256:d", "sha256:other"
	for _, c := range []struct {
		rule string
		said *state.FirmwareReport
		want fleet.FirmwareNodeState
	}{
		{"an old agent reports nothing", nil, fleet.FirmwareWaiting},
		{"it has something else", &state.FirmwareReport{Digest: other, State: "UpToDate"}, fleet.FirmwareWaiting},
		{"it has staged it", &state.FirmwareReport{Digest: other, Candidate: d, State: "Staged"}, fleet.FirmwareStaged},
		{"it has kept it", &state.FirmwareReport{Digest: d, State: "UpToDate"}, fleet.FirmwareKept},
		{"it rolled back", &state.FirmwareReport{Candidate: d, State: "RolledBack", Bad: []string{other, d}}, fleet.FirmwareBad},
		{"it rolled back, and has nothing staged", &state.FirmwareReport{State: "UpToDate", Bad: []string{d}}, fleet.FirmwareBad},
		{"it rolled another one back", &state.FirmwareReport{Candidate: d, State: "Staged", Bad: []string{other}}, fleet.FirmwareStaged},
		{"it has staged it again after a retry", &state.FirmwareReport{Candidate: d, State: "Staged", Bad: []string{d}}, fleet.FirmwareStaged},
		{"it could not stage it", &state.FirmwareReport{Candidate: d, State: "Failed"}, fleet.FirmwareBad},
		{"it could not stage another one", &state.FirmwareReport{Candidate: other, State: "Failed"}, fleet.FirmwareWaiting},
		{"it does not support it", &state.FirmwareReport{State: "Unsupported"}, fleet.FirmwareUnsupported},
		{"it tries it without a turn", &state.FirmwareReport{Candidate: d, State: "Trial"}, fleet.FirmwareWaiting},
	} {
		if got, _ := reported(c.said, fleet.RolloutOf(&fleet.FirmwareRollout{Status: fleet.FirmwareRolloutStatus{Digest: d}})); got != c.want {
			t.Errorf("%s: %s; want %s", c.rule, got, c.want)
		}
	}
}

func TestStateOfANodeDuringAnUndo(t *testing.T) {
	const d, other = "sha256:d", "sha256:other"
	for _, c := range []struct {
		rule string
		said *state.FirmwareReport
		want fleet.FirmwareNodeState
	}{
		{"an old agent reports nothing", nil, fleet.FirmwareWaiting},
		{"it has it", &state.FirmwareReport{Digest: d, State: "UpToDate"}, fleet.FirmwareKept},
		{"it has it, and failed with another one", &state.FirmwareReport{Digest: d, Candidate: other, State: "Failed"}, fleet.FirmwareKept},
		{"it could not be undone", &state.FirmwareReport{Digest: d, State: "Failed"}, fleet.FirmwareBad},
		{"the undo is pending", &state.FirmwareReport{Digest: d, State: "Trial"}, fleet.FirmwareKept},
		{"its files are restored, before the reboot", &state.FirmwareReport{State: "Trial"}, fleet.FirmwareWaiting},
		{"it has its previous configuration", &state.FirmwareReport{Digest: other, State: "UpToDate"}, fleet.FirmwareUndone},
		{"it has its previous configuration and stages it again", &state.FirmwareReport{Candidate: d, State: "Staged"}, fleet.FirmwareUndone},
		{"it rolled back by itself", &state.FirmwareReport{Candidate: d, State: "RolledBack", Bad: []string{d}}, fleet.FirmwareUndone},
		{"its boot helper cannot be asked", &state.FirmwareReport{State: "Unsupported"}, fleet.FirmwareUnsupported},
	} {
		if got, _ := reported(c.said, fleet.RolloutOf(&fleet.FirmwareRollout{Status: fleet.FirmwareRolloutStatus{Digest: d, Undoing: true}})); got != c.want {
			t.Errorf("%s: %s; want %s", c.rule, got, c.want)
		}
	}
}

// During its turn, a node's state comes from its device's report.
func TestStateOfANodeWithItsTurn(t *testing.T) {
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
		if at, why := (&pass{s: s, load: firmware{}, words: firmware{}.words()}).stateOf(fleet.RolloutOf(r), "pi"); at != c.at || why != c.why {
			t.Errorf("%s: %s, %q; want %s, %q", c.rule, at, why, c.at, c.why)
		}
	}
}
