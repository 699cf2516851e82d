package state

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

	// Enrolled: a device has joined with a token, and may use TLS. Site and Labels
	// are the token's.
	Enrolled metav1.Time       `json:"enrolled,omitempty"`
	Site     string            `json:"site,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`

	// Generation counts the node's desired states; Digest is the sha256 of the
	// newest one's content.
	Generation int64  `json:"generation,omitempty"`
	Digest     string `json:"digest,omitempty"`
	// Unmet: a device has reported for the first time, and has not said yet which
	// desired state it has stored. Nothing is published to it until it has.
	Unmet bool `json:"unmet,omitempty"`
	// Paused: the device has stored a newer generation than ours, as after a
	// restore from a backup, or with another hub. Nothing is published until an administrator resumes.
	Paused bool  `json:"paused,omitempty"`
	Stored int64 `json:"stored,omitempty"` // the device's generation, while Paused

	// Transitions are the newest changes of Ready, oldest first, for Flapping.
	Transitions []metav1.MicroTime `json:"transitions,omitempty"`

	// History are the moments at which the node's health changed, oldest first: those
	// of the last HistoryAge, and the last one before, so far as there are not too many.
	History []Turn `json:"history,omitempty"`

	Hardware json.RawMessage `json:"hardware,omitempty"` // the device's report, as sent
}

// A Turn is a moment at which a node's health changed, and what it was from then on.
type Turn struct {
	At    metav1.MicroTime       `json:"at"`            // to the second
	Ready corev1.ConditionStatus `json:"ready"`         // as its condition of that name
	Out   bool                   `json:"out,omitempty"` // it had the lifecycle's NoExecute taint: its pods had to leave
}

// How much of a node's history is kept.
const (
	HistoryAge   = 7 * 24 * time.Hour
	historyTurns = 100
)

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
	for len(r.History) > 1 && (len(r.History) > historyTurns || t.At.Sub(r.History[1].At.Time) >= HistoryAge) {
		r.History = r.History[1:]
	}
}

// DeepCopy returns a copy that shares nothing that anyone changes.
func (r *Record) DeepCopy() *Record {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.PastBoots = slices.Clone(r.PastBoots)
	out.Labels = maps.Clone(r.Labels)
	out.Transitions = slices.Clone(r.Transitions)
	out.History = slices.Clone(r.History)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *Record) DeepCopyObject() runtime.Object { return r.DeepCopy() }
