package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// firmware is the payload of FirmwareRollouts: the boot configuration of a board profile.
type firmware struct{}

func (firmware) kind() state.Kind { return state.FirmwareRollouts }
func (firmware) disrupts() bool   { return true }

func (firmware) words() words {
	return words{
		rollout: "firmware rollout", kept: "kept the configuration", notKept: "did not keep the configuration",
		mend:     "fix the profile",
		notAgain: "its device kept the configuration but has lost it: its card may be faulty",
		again:    "its device rolled the configuration back and has it again",
		changed:  "the board profile has changed", none: "no node with the board %s is selected",
		done: "its device has kept the configuration", notDone: "its device does not keep the configuration",
		previous: "its previous configuration", may: "may try the configuration of",
		mayUndo: "may restore its previous configuration for",
		turn:    "FirmwareTurn", ended: "FirmwareTurnEnded", allowed: "FirmwareTrialAllowed", overdue: "FirmwareOverdue",
		batch: "FirmwareBatch", stopped: "FirmwareRolloutStopped", complete: "FirmwareRolloutComplete",
	}
}

func (firmware) report(rec *state.Record) *state.FirmwareReport    { return rec.Firmware }
func (firmware) turn(rec *state.Record) **state.FirmwareAssignment { return &rec.Assigned }

func (firmware) selects(r *fleet.Rollout, n *corev1.Node) bool {
	return n.Labels[fleet.LabelProfile] == r.Object.(*fleet.FirmwareRollout).Spec.Profile
}

func (firmware) content(s state.Snapshot, r *fleet.Rollout) (digest, document, problem string) {
	name := r.Object.(*fleet.FirmwareRollout).Spec.Profile
	profile, _ := s.Get(state.Key{Kind: state.BoardProfiles, Name: name}).(*fleet.BoardProfile)
	if profile == nil {
		return "", "", fmt.Sprintf("board profile %s not found", name)
	}
	text, _, err := firmwareconfigs.Render(profile)
	if err != nil {
		return "", "", fmt.Sprintf("board profile %s: %v", name, err)
	}
	return digestOf(text), string(text), ""
}

// digestOf returns the digest of a document, as package wire computes it.
func digestOf(document []byte) string {
	sum := sha256.Sum256(document)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (firmware) reported(rec *state.Record, r *fleet.Rollout) (fleet.FirmwareNodeState, string) {
	return reported(rec.Firmware, r)
}

func (firmware) trial(r *fleet.Rollout) time.Duration {
	if c, err := fleet.ParseBootConfig([]byte(r.Status.Document)); err == nil {
		return c.Deadline() + afterDeadline
	}
	return fleet.DefaultBootDeadline + afterDeadline
}

// stray: a deleted rollout may have started a trial. A device that never received a configuration
// tries none.
func (firmware) stray(rec *state.Record) bool {
	return rec.FirmwareGeneration != 0 && busy(rec.Firmware)
}

func (firmware) published(rec *state.Record, now time.Time) {
	rec.FirmwareGeneration = max(rec.FirmwareGeneration+1, now.Unix())
}
