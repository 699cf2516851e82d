package state

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// A FirmwareReport is what a device says of its boot configuration. Its texts are bounded
// where they come in (package wire).
type FirmwareReport struct {
	Digest    string   `json:"digest,omitempty"`    // of what is kept now
	Candidate string   `json:"candidate,omitempty"` // of what is staged or tried
	State     string   `json:"state,omitempty"`     // as the reasons of the condition FirmwareReady
	Backend   string   `json:"backend,omitempty"`
	Trial     string   `json:"trial,omitempty"` // how it would try
	Message   string   `json:"message,omitempty"`
	Diff      string   `json:"diff,omitempty"` // the lines that would change
	Bad       []string `json:"bad,omitempty"`  // digests that it went back from
}

// A FirmwareTurn is a node's part in a FirmwareRollout.
type FirmwareTurn struct {
	Rollout string `json:"rollout"`
	Digest  string `json:"digest,omitempty"` // of the rollout's document that the node has been told
	// Step is where its turn is: Draining, Trying or Overdue; empty: it has none.
	Step  fleet.FirmwareNodeState `json:"step,omitempty"`
	Since metav1.Time             `json:"since,omitempty"` // of Step
	// NotBefore: its last turn ended before it began, because of Why; it is not tried again before.
	NotBefore metav1.Time `json:"notBefore,omitempty"`
	Why       string      `json:"why,omitempty"`
	// Failed is why the hub itself gave the node up: its device never began. It counts until
	// the rollout's retry is above Retry.
	Failed string `json:"failed,omitempty"`
	// Done: a turn of it ended as it should. A device that says afterwards that it is where it began
	// has lost what it kept, and has no other turn until the rollout's retry is above Retry.
	Done  bool  `json:"done,omitempty"`
	Retry int64 `json:"retry,omitempty"`
}

// Rollout returns a FirmwareRollout, nil for none.
func (s Snapshot) Rollout(name string) *fleet.FirmwareRollout {
	return get[*fleet.FirmwareRollout](s, Key{Kind: FirmwareRollouts, Name: name})
}
