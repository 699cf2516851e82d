package state

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/shared/fleet"
)

// A Record is what the hub must remember of a node beside its Node object, and
// shows to nobody as it is. Its name is the node's.
type Record struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	MachineID    string   `json:"machineID,omitempty"`    // of the device that is this node
	Boot         string   `json:"boot,omitempty"`         // the current boot
	PastBoots    []string `json:"pastBoots,omitempty"`    // the last 8; they never become current again
	AgentVersion string   `json:"agentVersion,omitempty"` //
	Conflict     string   `json:"conflict,omitempty"`     // machine id of a second device that claims to be this node

	// Enrolled: a device has joined with a token, and may use TLS. Key is the hash of
	// its public key, and the only one that speaks for the node; Expires is the end of
	// its newest certificate. Site and Labels are those of Token, named by its id.
	Enrolled metav1.Time       `json:"enrolled,omitempty"`
	Key      string            `json:"key,omitempty"` // sha256 (SPKI), hex; empty: nobody has joined, the development listener may speak
	Expires  metav1.Time       `json:"expires,omitempty"`
	Token    string            `json:"token,omitempty"`
	Site     string            `json:"site,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`

	// Extended are the extended resources that the device reports itself: all others in the
	// Node's status are an administrator's.
	Extended []string `json:"extended,omitempty"`
	// Conditions are the types of the conditions that the device reports beside those that are known: all others of
	// the Node that are not known are somebody else's.
	Conditions []string `json:"conditions,omitempty"`

	// Labels and taints that the board profile has given the node, and may take again: all others are an
	// administrator's. Nil: not known, as of a node from before they were noted.
	Given *Given `json:"given,omitempty"`

	// Firmware is what the device has said of its boot configuration, nil if nothing; Assigned
	// is the rollout that the node is part of, with its turn. FirmwareGeneration grows with
	// every other configuration that it is told, also over the end of this record.
	Firmware           *FirmwareReport `json:"firmware,omitempty"`
	Assigned           *FirmwareTurn   `json:"assigned,omitempty"`
	FirmwareGeneration int64           `json:"firmwareGeneration,omitempty"`

	// Generation counts the node's desired states; Digest is the sha256 of the
	// newest one's content.
	Generation int64  `json:"generation,omitempty"`
	Digest     string `json:"digest,omitempty"`
	// LeaseSeconds is the longest lease interval by which the device may live: until it
	// says that it has stored a shorter one, the longer one. 0: the hub's own.
	LeaseSeconds int32 `json:"leaseSeconds,omitempty"`
	// Unmet: a device has reported for the first time, and has not said yet which
	// desired state it has stored. Nothing is published to it until it has.
	Unmet bool `json:"unmet,omitempty"`
	// Paused: the device has stored a newer generation than ours, as after a
	// restore from a backup, or with another hub. Nothing is published until an administrator resumes.
	Paused bool  `json:"paused,omitempty"`
	Stored int64 `json:"stored,omitempty"` // the device's generation, while Paused

	// Transitions are the newest changes of Ready, oldest first, for Flapping.
	Transitions []metav1.MicroTime `json:"transitions,omitempty"`

	// History are the moments at which the node's health changed, and Evicted the pods that
	// had to leave it, oldest first: those of the last HistoryAge, with the last turn before,
	// so far as there are not too many. They are no events: a night in which everybody has
	// something to say pushes none of them out.
	History []Turn    `json:"history,omitempty"`
	Evicted []Evicted `json:"evicted,omitempty"`
}

// Withheld says why nothing is published to a device, and nothing that concerns it may begin; "" where
// it is told what is wanted of it.
func (r *Record) Withheld() string {
	switch {
	case r.Paused:
		return "nothing is sent to its device until `flotilla-hub resume`: it has stored a newer desired state than this hub's"
	case r.Unmet:
		return "its device has not said yet which desired state it has stored"
	}
	return ""
}

// Given is what a board profile has given a node.
type Given struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
}

// A Turn is a moment at which a node's health changed, and what it was from then on.
type Turn struct {
	At    metav1.MicroTime       `json:"at"`            // to the second
	Ready corev1.ConditionStatus `json:"ready"`         // as its condition of that name
	Out   bool                   `json:"out,omitempty"` // it had the lifecycle's NoExecute taint: its pods had to leave
}

// An Evicted is a pod that had to leave its node, and why.
type Evicted struct {
	At     metav1.MicroTime `json:"at"`
	Pod    string           `json:"pod"`            // namespace/name
	Reason string           `json:"reason"`         // of its condition DisruptionTarget
	Text   string           `json:"text,omitempty"` // for people: the condition's message, cut to historyText bytes
}

// How much of a node's history is kept. It is written with the node's record, so its bounds
// are those of a row: some 60 KiB of a node that flaps and loses pods all month.
const (
	HistoryAge     = 30 * 24 * time.Hour
	historyTurns   = 200
	historyEvicted = 250 // more than twice the pods that a node can have
	historyText    = 160
)

// Evict adds an eviction to the history and forgets what is too old.
func (r *Record) Evict(e Evicted) {
	if len(e.Text) > historyText {
		e.Text = strings.ToValidUTF8(e.Text[:historyText], "")
	}
	r.Evicted = append(r.Evicted, e)
	for len(r.Evicted) > historyEvicted || e.At.Sub(r.Evicted[0].At.Time) >= HistoryAge {
		r.Evicted = r.Evicted[1:]
	}
}

// Turn adds a turn to the history and forgets what is too old. One that is earlier than
// the last says nothing new; of those at one moment the last counts.
func (r *Record) Turn(t Turn) {
	if n := len(r.History); n > 0 && r.History[n-1].At.Time.Equal(t.At.Time) {
		r.History = r.History[:n-1]
	}
	if n := len(r.History); n > 0 {
		last := r.History[n-1]
		if t.At.Before(&last.At) || last.Ready == t.Ready && last.Out == t.Out {
			return
		}
	}
	r.History = append(r.History, t)
	r.History = fleet.Recent(r.History, func(t Turn) time.Time { return t.At.Time }, historyTurns, HistoryAge)
}

// DeepCopy returns a copy that shares nothing that anyone changes.
func (r *Record) DeepCopy() *Record {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.PastBoots = slices.Clone(r.PastBoots)
	out.Labels = maps.Clone(r.Labels)
	out.Extended, out.Conditions = slices.Clone(r.Extended), slices.Clone(r.Conditions)
	out.Transitions = slices.Clone(r.Transitions)
	out.History = slices.Clone(r.History)
	out.Evicted = slices.Clone(r.Evicted)
	if r.Firmware != nil {
		f := *r.Firmware
		f.Bad = slices.Clone(f.Bad)
		out.Firmware = &f
	}
	if r.Assigned != nil {
		a := *r.Assigned
		out.Assigned = &a
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *Record) DeepCopyObject() runtime.Object { return r.DeepCopy() }
