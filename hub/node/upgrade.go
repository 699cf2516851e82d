package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// upgradeFor returns the agent of a node's rollout for its device's processor, so that the device
// can download it. During the node's turn it permits a trial. Nil: the device keeps its agent.
func upgradeFor(s state.Snapshot, node string) *wire.Upgrade {
	rec := s.Record(node)
	if rec == nil || rec.Upgrading == nil || rec.Upgrade == nil {
		return nil
	}
	r, _ := s.Get(state.Key{Kind: state.AgentRollouts, Name: rec.Upgrading.Rollout}).(*fleet.AgentRollout)
	if r == nil || r.Status.Digest == "" || r.Status.Digest != rec.Upgrading.Digest {
		return nil
	}
	var builds []fleet.AgentBuild
	if json.Unmarshal([]byte(r.Status.Document), &builds) != nil {
		return nil
	}
	i := slices.IndexFunc(builds, func(b fleet.AgentBuild) bool { return b.Arch == rec.Upgrade.Backend })
	if i < 0 || !builds[i].Valid() {
		return nil
	}
	turn := rec.Upgrading.Step == fleet.FirmwareTrying
	return &wire.Upgrade{AgentBuild: builds[i], Try: turn && !r.Status.Undoing, Undo: turn && r.Status.Undoing,
		Retry: r.Spec.Retry}
}

// upgradeMoved tells whether the agent for a device has changed.
func upgradeMoved(old *state.Record, now state.Object) bool {
	next, _ := now.(*state.Record)
	return old != nil && next != nil && (!apiequality.Semantic.DeepEqual(old.Upgrading, next.Upgrading) ||
		archOf(old) != archOf(next))
}

func archOf(rec *state.Record) string {
	if rec.Upgrade == nil {
		return ""
	}
	return rec.Upgrade.Backend
}

// upgradeChange stores a device's report of its agent.
func upgradeChange(rec *state.Record, st *wire.Status) {
	rec.Upgrade = nil
	if u := st.Upgrade; u != nil {
		rec.Upgrade = &state.FirmwareReport{Digest: st.AgentVersion, Candidate: u.Candidate, State: u.State,
			Backend: u.Arch, Trial: u.Previous, Message: u.Message, Bad: slices.Clone(u.Bad)}
	}
}

// upgradeEvent adds the event for the end of a trial.
func (d *Devices) upgradeEvent(s state.Snapshot, n *corev1.Node, old, rec *state.Record,
	now time.Time) []state.Change {
	if n == nil || rec.Upgrade == nil || old.Upgrade == nil || !d.nodes.get(n.Name).eventAllowed(d.Age()) {
		return nil
	}
	was, is := old.Upgrade, rec.Upgrade
	switch {
	case is.State == wire.FirmwareUpToDate && was.State == wire.FirmwareVerifying:
		return control.AddEvent(s, control.About(n), control.EventText{Type: corev1.EventTypeNormal, Reason: "AgentUpgraded",
			Message: fmt.Sprintf("the agent of %s is %s now", n.Name, is.Digest)}, now)
	case was.State != is.State && (is.State == wire.FirmwareRolledBack || is.State == wire.FirmwareFailed):
		return control.AddEvent(s, control.About(n), control.EventText{Type: corev1.EventTypeWarning,
			Reason: "AgentRolledBack", Message: fmt.Sprintf("agent %s did not take over on %s, which runs %s: %s",
				is.Candidate, n.Name, is.Digest, is.Message)}, now)
	}
	return nil
}
