package rollout

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A payload is what a kind of rollout brings to nodes.
type payload interface {
	kind() state.Kind
	words() words
	// disrupts tells whether a turn stops the node's pods: then it is drained first, and other
	// unavailable nodes of its site count.
	disrupts() bool
	// report returns what a device has reported; turn returns the node's part in its rollout.
	report(*state.Record) *state.FirmwareReport
	turn(*state.Record) **state.FirmwareAssignment
	// selects tells whether a rollout is for a node, without regard to its selector.
	selects(*fleet.Rollout, *corev1.Node) bool
	// content returns what a rollout brings now, as its digest and document, or why it cannot.
	content(state.Snapshot, *fleet.Rollout) (digest, document, problem string)
	// reported returns the state that a device reports, without regard to turns.
	reported(*state.Record, *fleet.Rollout) (fleet.FirmwareNodeState, string)
	// trial returns the time for a device to report how its turn ended.
	trial(*fleet.Rollout) time.Duration
	// stray tells whether a device may try something without a turn.
	stray(*state.Record) bool
	// published updates the record of a device that gets another content.
	published(*state.Record, time.Time)
}

// words are what the sentences and events of a payload say.
type words struct {
	rollout  string // the kind of rollout
	kept     string // what a node that is finished has done
	notKept  string
	mend     string // what to do about failed nodes
	notAgain string // why a finished node is Bad that does not have it any more
	again    string // why an undone node is Bad that has it again
	changed  string // why running turns end
	done     string // why a turn ended
	notDone  string
	previous string // what a node goes back to
	may      string // what a node with its turn may do
	mayUndo  string
	none     string // no node is selected

	turn, ended, allowed, overdue, batch, stopped, complete string // reasons of events
}

// payloads are all kinds of rollouts.
var payloads = []payload{firmware{}, agents{}}
