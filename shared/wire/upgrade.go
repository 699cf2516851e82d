package wire

import (
	"fmt"
	"slices"
	"time"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// An Upgrade is the version of the agent that a device should run.
type Upgrade struct {
	fleet.AgentBuild
	Try   bool  `json:"try,omitempty"`  // the hub's permission: it is the device's turn
	Undo  bool  `json:"undo,omitempty"` // it is the device's turn to go back to the version before this one
	Retry int64 `json:"retry,omitempty"`
}

// sanitizeUpgrade drops an upgrade that cannot be carried out.
func (d *Desired) sanitizeUpgrade() {
	if u := d.Upgrade; u != nil && !u.Valid() {
		d.Upgrade = nil
	}
}

// An UpgradeStatus is a device's state between two versions of its agent.
type UpgradeStatus struct {
	Arch string `json:"arch"`
	// one of the Firmware… constants; Downloading; Unsupported: this device cannot do it
	State     string    `json:"state"`
	Candidate string    `json:"candidate,omitempty"` // the staged or tried version
	Previous  string    `json:"previous,omitempty"`  // the version to which an undo goes back
	Message   string    `json:"message,omitempty"`   // at most MaxFirmwareMessage bytes
	Bad       []string  `json:"bad,omitempty"`       // versions that failed here, at most MaxFirmwareBad
	Since     time.Time `json:"since,omitzero"`      // by the device's clock
}

// UpgradeDownloading is the state of a device that downloads an agent.
const UpgradeDownloading = "Downloading"

// sanitizeUpgrade keeps what the hub shows and uses; an unknown state counts as none.
func (s *Status) sanitizeUpgrade() {
	u := s.Upgrade
	if u == nil {
		return
	}
	if !firmwareStates[u.State] && u.State != UpgradeDownloading || !fleet.ValidAgentArch(u.Arch) {
		s.Upgrade, s.TooMuch = nil, fmt.Sprintf("it says that its agent for %.20q is %.40q, which is not a state", u.Arch,
			u.State)
		return
	}
	u.Bad = slices.DeleteFunc(u.Bad[:min(len(u.Bad), MaxFirmwareBad)], func(v string) bool {
		return !fleet.ValidAgentVersion(v)
	})
	for _, v := range []*string{&u.Candidate, &u.Previous} {
		if !fleet.ValidAgentVersion(*v) {
			*v = ""
		}
	}
	u.Message = bound.Text(u.Message, MaxFirmwareMessage)
}
