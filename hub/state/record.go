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
	Enrolled metav1.Time `json:"enrolled,omitempty"`
	// sha256 (SPKI), hex; empty: nobody has joined, the development listener may speak
	Key     string            `json:"key,omitempty"`
	Expires metav1.Time       `json:"expires,omitempty"`
	Token   string            `json:"token,omitempty"`
	Site    string            `json:"site,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`

	// Extended are the extended resources that the device reports itself: all others in the
	// Node's status are an administrator's.
	Extended []string `json:"extended,omitempty"`
	// Conditions are the types of the conditions that the device reports beside those that are known: all others of
	// the Node that are not known are somebody else's.
	Conditions []string `json:"conditions,omitempty"`

	// Labels and taints that the board profile has given the node, and may take again: all others are an
	// administrator's. Nil: not known, as of a node from before they were noted.
	Granted *ProfileGrants `json:"given,omitempty"`

	// Firmware is what the device has said of its boot configuration, nil if nothing; Assigned
	// is the rollout that the node is part of, with its turn. FirmwareGeneration grows with
	// every other configuration that it is told, also over the end of this record.
	Firmware           *FirmwareReport     `json:"firmware,omitempty"`
	Assigned           *FirmwareAssignment `json:"assigned,omitempty"`
	FirmwareGeneration int64               `json:"firmwareGeneration,omitempty"`

	// Generation counts the node's desired states; Digest is the sha256 of the
	// newest one's content.
	Generation int64  `json:"generation,omitempty"`
	Digest     string `json:"digest,omitempty"`
	// LeaseSeconds is the longest lease interval by which the device may live: until it
	// says that it has stored a shorter one, the longer one. 0: the hub's own.
	LeaseSeconds int32 `json:"leaseSeconds,omitempty"`
	// Unmet: a device has reported for the first time, and has not said yet which
	// desired state it has stored. Nothing is published to it until it has.
	StoredUnknown bool `json:"unmet,omitempty"`
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
	History []HealthChange `json:"history,omitempty"`
	Evicted []Evicted      `json:"evicted,omitempty"`
}

// Withheld says why nothing is published to a device, and nothing that concerns it may begin; "" where
// it is told what is wanted of it.
func (r *Record) Withheld() string {
	switch {
	case r.Paused:
		return "nothing is sent to its device until `flotilla-hub resume`: it has stored a newer desired state than this " +
			"hub's"
	case r.StoredUnknown:
		return "its device has not said yet which desired state it has stored"
	}
	return ""
}

// ProfileGrants is what a board profile has given a node.
type ProfileGrants struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
}

// A HealthChange is a moment at which a node's health changed, and what it was from then on.
type HealthChange struct {
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

// AddHealthChange adds a turn to the history and forgets what is too old. One that is earlier than
// the last says nothing new; of those at one moment the last counts.
func (r *Record) AddHealthChange(t HealthChange) {
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
	r.History = fleet.Recent(r.History, func(t HealthChange) time.Time { return t.At.Time }, historyTurns, HistoryAge)
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

// A Dismissal is what a device is told whose enrolment has ended: it is let in for
// nothing else. Its name is the hash of the key that spoke for the node, so that it
// concerns nobody who joins under the same name later. It is shown to nobody.
type Dismissal struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Node   string      `json:"node"`
	Time   metav1.Time `json:"time"`
	By     string      `json:"by,omitempty"` // the person, token or machinery that ended it
	Reason string      `json:"reason"`
	Until  metav1.Time `json:"until"` // then no certificate of the key is good for anything, and it is forgotten
}

// DeepCopy returns a copy that shares nothing that anyone changes.
func (d *Dismissal) DeepCopy() *Dismissal {
	out := *d
	d.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (d *Dismissal) DeepCopyObject() runtime.Object { return d.DeepCopy() }

// Dismissal returns what the holder of a key is to be told, nil for nothing.
func (s Snapshot) Dismissal(key string) *Dismissal {
	d, _ := s.Get(Key{Kind: Dismissals, Name: key}).(*Dismissal)
	return d
}

// A Backoff is what the hub remembers of a workload whose pods are lost as soon as they are
// placed, so that it makes them again ever more rarely. It belongs to the workload, goes with
// it or after a time of peace, and is shown to nobody. Its name is the workload's uid, and for a
// DaemonSet, whose pods belong to their nodes, behind that the node's name; for a Job that counts
// the failures of each index, the index. Of a CronJob it is that a quota had no room for its
// next Job, and that the next one waits for the last.
type Backoff struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Count   int              `json:"strikes"` // how often in a row the replacement was lost too
	Last    metav1.MicroTime `json:"last"`    // the newest strike
	Pending int              `json:"owed"`    // pods lost since then and not to be replaced yet
	// whether the pod of that strike failed by itself, or was rejected: nobody drove it out
	Failed bool `json:"failed,omitempty"`

	// of an index of a Job: those that its limit counts, for as long as the Job is there
	Failures int32 `json:"failures,omitempty"`

	Waits metav1.Time `json:"waits,omitzero"` // the start of a CronJob that waits for its last Job to end, as it was told
}

// DeepCopy returns a copy that shares nothing.
func (l *Backoff) DeepCopy() *Backoff {
	out := *l
	l.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *Backoff) DeepCopyObject() runtime.Object { return l.DeepCopy() }

// Of what the hub says of itself, and of what it publishes in every namespace.
const (
	HubName        = "hub"              // of the only advertisement
	APIService     = "kubernetes"       // in the namespace default
	DefaultAccount = "default"          // in every namespace
	RootConfigMap  = "kube-root-ca.crt" // in every namespace
	RootKey        = "ca.crt"           // of its data
)

// An Advertisement is what the hub says of itself, and shows to nobody as it is: where
// its API is, and by which authority to know it. There is one.
type Advertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Address string `json:"address,omitempty"` // IPv4 or IPv6; "": none is known
	Port    int32  `json:"port,omitempty"`
	Root    string `json:"root,omitempty"` // certificates, PEM
}

// DeepCopyObject implements runtime.Object.
func (a *Advertisement) DeepCopyObject() runtime.Object {
	out := *a
	a.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// Advertisement returns what the hub says of itself, nil if nothing yet.
func (s Snapshot) Advertisement() *Advertisement {
	return get[*Advertisement](s, Key{Kind: Advertisements, Name: HubName})
}

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

// A FirmwareAssignment is a node's part in a FirmwareRollout.
type FirmwareAssignment struct {
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
