package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// agents is the payload of AgentRollouts: a version of the agent. Its turns stop no pod.
type agents struct{}

// agentTrial is longer than a device needs to try a version and to go back: two trials of 5 min.
const agentTrial = 15 * time.Minute

func (agents) kind() state.Kind { return state.AgentRollouts }
func (agents) disrupts() bool   { return false }

func (agents) words() words {
	return words{
		rollout: "agent rollout", kept: "run the version", notKept: "did not keep the version",
		mend:     "roll out another version",
		notAgain: "its device ran the version and now runs another one",
		again:    "its device went back to the version before and runs it again",
		changed:  "the version has changed", none: "no node is selected for %s",
		done: "its device runs the version", notDone: "its device does not keep the version",
		previous: "its previous version", may: "may try the version of",
		mayUndo: "may restore its previous version for",
		turn:    "AgentTurn", ended: "AgentTurnEnded", allowed: "AgentTurn", overdue: "AgentOverdue",
		batch: "AgentBatch", stopped: "AgentRolloutStopped", complete: "AgentRolloutComplete",
	}
}

func (agents) report(rec *state.Record) *state.FirmwareReport    { return rec.Upgrade }
func (agents) turn(rec *state.Record) **state.FirmwareAssignment { return &rec.Upgrading }
func (agents) selects(*fleet.Rollout, *corev1.Node) bool         { return true }

// content returns the builds of the version that the hub hands out. A rollout keeps those that it
// began with when the hub has another version now: most devices have downloaded them.
func (agents) content(s state.Snapshot, r *fleet.Rollout) (digest, document, problem string) {
	version := r.Object.(*fleet.AgentRollout).Spec.Version
	var builds []fleet.AgentBuild
	var have []string
	if hub := s.Advertisement(); hub != nil {
		for _, b := range hub.Agents {
			if b.Version == version {
				builds = append(builds, b)
			}
			have = append(have, b.Version+" for "+b.Arch)
		}
	}
	switch {
	case len(builds) > 0:
		text, err := json.Marshal(builds)
		if err != nil {
			return "", "", err.Error()
		}
		return version, string(text), ""
	case r.Status.Digest == version:
		return version, r.Status.Document, ""
	case len(have) == 0:
		return "", "", fmt.Sprintf("the hub has no agents with their .json files: put those of version %s into its "+
			"--agents-dir, as `make agents` builds them", version)
	}
	slices.Sort(have)
	return "", "", fmt.Sprintf("the hub has no agent of version %s: put it into its --agents-dir, which has %s", version,
		strings.Join(have, ", "))
}

func (agents) reported(rec *state.Record, r *fleet.Rollout) (fleet.FirmwareNodeState, string) {
	f, version := rec.Upgrade, r.Status.Digest
	switch {
	case f == nil && rec.AgentVersion == "":
		return fleet.FirmwareWaiting, "its device has not reported yet"
	case f == nil && rec.AgentVersion != version:
		return fleet.FirmwareUnsupported, fmt.Sprintf("its agent %s is too old to upgrade itself: install the new one "+
			"once by the hub's line or package", rec.AgentVersion)
	case f == nil: // it was installed by hand
		f = &state.FirmwareReport{Digest: version, State: "Unsupported"}
	}
	if f.Digest != version && !r.Status.Undoing && !strings.Contains(r.Status.Document, `"arch":"`+f.Backend+`"`) {
		return fleet.FirmwareUnsupported, fmt.Sprintf("the hub has no agent %s for its processor, %s: put it into the hub's "+
			"--agents-dir", version, f.Backend)
	}
	if busy(f) { // it may run the version, and is not done with it
		return fleet.FirmwareWaiting, "its device tries a version of the agent: " + f.Message
	}
	if r.Status.Undoing && f.Digest == version && f.State == "Unsupported" {
		return fleet.FirmwareUnsupported, f.Message
	}
	return reported(f, r)
}

func (agents) trial(*fleet.Rollout) time.Duration         { return agentTrial }
func (agents) stray(*state.Record) bool                   { return false }
func (agents) published(rec *state.Record, now time.Time) {}
