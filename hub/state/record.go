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

// A Record is what the hub stores of a node beside its Node object. The API does not serve it. Its
// name is the node's.
type Record struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	MachineID    string   `json:"machineID,omitempty"` // the device's machine id
	Boot         string   `json:"boot,omitempty"`      // the current boot
	PastBoots    []string `json:"pastBoots,omitempty"` // the last 8 boots before it; none of them can become current again
	AgentVersion string   `json:"agentVersion,omitempty"`
	Conflict     string   `json:"conflict,omitempty"` // machine id of a second device that claims the node's name

	// Enrolled is when a device joined with a token; since then it may use TLS. Key is the hash of
	// its public key; no other key may act for the node. Expires is when its newest certificate
	// expires. Site and Labels come from the join token with the id Token.
	Enrolled metav1.Time `json:"enrolled,omitempty"`
	// sha256 (SPKI), hex; empty: no device has joined, and the plaintext development listener may
	// act for the node
	Key     string            `json:"key,omitempty"`
	Expires metav1.Time       `json:"expires,omitempty"`
	Token   string            `json:"token,omitempty"`
	Site    string            `json:"site,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`

	// Extended are the extended resources that the device reports. An administrator has set all
	// others in the Node's status.
	Extended []string `json:"extended,omitempty"`
	// Conditions are the types of the conditions beyond the standard ones that the device reports.
	// Clients wrote all others into the Node.
	Conditions []string `json:"conditions,omitempty"`

	// Granted are the labels and taints that the board profile gave the node and may remove again.
	// All others belong to an administrator. Nil: not known yet.
	Granted *ProfileGrants `json:"given,omitempty"`

	// Firmware is the device's last report of its boot configuration, nil if there is none.
	// Assigned is the node's part in a rollout. FirmwareGeneration grows with each configuration
	// that is published to the device; it survives this record.
	Firmware           *FirmwareReport     `json:"firmware,omitempty"`
	Assigned           *FirmwareAssignment `json:"assigned,omitempty"`
	FirmwareGeneration int64               `json:"firmwareGeneration,omitempty"`

	// Upgrade is the device's last report of its agent's version, nil if its agent is older than
	// that. Its Digest is the running version, its Candidate and Bad are versions, and its Backend is
	// the architecture of the agent. Upgrading is the node's AgentRollout with its turn.
	Upgrade   *FirmwareReport     `json:"upgrade,omitempty"`
	Upgrading *FirmwareAssignment `json:"upgrading,omitempty"`

	// Generation counts the node's desired states; Digest is the sha256 of the newest one's
	// content.
	Generation int64  `json:"generation,omitempty"`
	Digest     string `json:"digest,omitempty"`
	// LeaseSeconds is the longest lease interval that the device may use. After a change it is the
	// longer of both intervals until the device reports that it has stored the shorter one. 0: the
	// hub's default.
	LeaseSeconds int32 `json:"leaseSeconds,omitempty"`
	// StoredUnknown: a device has reported for the first time, but not yet which desired state it
	// has stored. Until then nothing is published to the device.
	StoredUnknown bool `json:"unmet,omitempty"`
	// Paused: the device has stored a newer generation than the hub's, for example because the hub
	// was restored from a backup. Nothing is published until an administrator resumes.
	Paused bool  `json:"paused,omitempty"`
	Stored int64 `json:"stored,omitempty"` // the device's generation while Paused

	// Transitions are the newest changes of Ready, oldest first, for the condition Flapping.
	Transitions []metav1.MicroTime `json:"transitions,omitempty"`

	// History holds the changes of the node's health, and Evicted the pods that had to leave the
	// node, oldest first. Both cover HistoryAge and the last change before it, within limits. They
	// are not events, so a night full of events does not remove them.
	History []HealthChange `json:"history,omitempty"`
	Evicted []Evicted      `json:"evicted,omitempty"`
}

// Withheld says why nothing is published to a device and no work on the node may begin; "": the hub
// publishes as usual.
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

// ProfileGrants are the labels and taints that a board profile has given a node.
type ProfileGrants struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
}

// A HealthChange is a moment at which a node's health changed, with its health from then on.
type HealthChange struct {
	At    metav1.MicroTime       `json:"at"`            // in whole seconds
	Ready corev1.ConditionStatus `json:"ready"`         // the status of the condition Ready
	Out   bool                   `json:"out,omitempty"` // the node had the lifecycle's NoExecute taint, so its pods had to leave
}

// An Evicted is a pod that had to leave its node, and why.
type Evicted struct {
	At     metav1.MicroTime `json:"at"`
	Pod    string           `json:"pod"`            // namespace/name
	Reason string           `json:"reason"`         // reason of the pod's condition DisruptionTarget
	Text   string           `json:"text,omitempty"` // the condition's message, cut to historyText bytes
}

// The limits of a node's history, which is stored in the node's record: about 60 KiB for a node
// that flaps and loses pods all month.
const (
	HistoryAge     = 30 * 24 * time.Hour
	historyTurns   = 200
	historyEvicted = 250 // more than twice the pods that a node can have
	historyText    = 160
)

// Evict adds an eviction to the history and drops entries beyond the limits.
func (r *Record) Evict(e Evicted) {
	if len(e.Text) > historyText {
		e.Text = strings.ToValidUTF8(e.Text[:historyText], "")
	}
	r.Evicted = append(r.Evicted, e)
	for len(r.Evicted) > historyEvicted || e.At.Sub(r.Evicted[0].At.Time) >= HistoryAge {
		r.Evicted = r.Evicted[1:]
	}
}

// AddHealthChange adds a change to the history and drops entries beyond the limits. It ignores a
// change that is earlier than the last, and replaces a change at the same moment.
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

// DeepCopy returns a deep copy.
func (r *Record) DeepCopy() *Record {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.PastBoots = slices.Clone(r.PastBoots)
	out.Labels = maps.Clone(r.Labels)
	out.Extended, out.Conditions = slices.Clone(r.Extended), slices.Clone(r.Conditions)
	out.Transitions = slices.Clone(r.Transitions)
	out.History = slices.Clone(r.History)
	out.Evicted = slices.Clone(r.Evicted)
	for _, report := range []**FirmwareReport{&out.Firmware, &out.Upgrade} {
		if *report != nil {
			f := **report
			f.Bad = slices.Clone(f.Bad)
			*report = &f
		}
	}
	for _, turn := range []**FirmwareAssignment{&out.Assigned, &out.Upgrading} {
		if *turn != nil {
			a := **turn
			*turn = &a
		}
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *Record) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// A Dismissal is the notice to a device whose enrolment has ended; the device may connect only to
// receive the notice. Its name is the hash of the device's key, so a later device with the same
// node name never receives it. The API does not serve it.
type Dismissal struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Node   string      `json:"node"`
	Time   metav1.Time `json:"time"`
	By     string      `json:"by,omitempty"` // the user, token or rule that ended the enrolment
	Reason string      `json:"reason"`
	Until  metav1.Time `json:"until"` // end of the renewal of the key's certificates; then the hub removes the dismissal
}

// DeepCopy returns a deep copy.
func (d *Dismissal) DeepCopy() *Dismissal {
	out := *d
	d.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (d *Dismissal) DeepCopyObject() runtime.Object { return d.DeepCopy() }

// Dismissal returns the dismissal for a key, nil if there is none.
func (s Snapshot) Dismissal(key string) *Dismissal {
	d, _ := s.Get(Key{Kind: Dismissals, Name: key}).(*Dismissal)
	return d
}

// A Backoff delays the replacement of pods that are lost as soon as they are placed. It belongs to
// a workload and is removed with it, or after a time without failures; the API does not serve it.
// Its name begins with the workload's uid. The node's name follows for a DaemonSet, and the index
// for a Job that counts failures by index. A CronJob has a Backoff while a quota refuses its next
// Job, or while the next Job waits for the last.
type Backoff struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Count   int              `json:"strikes"` // failures in a row
	Last    metav1.MicroTime `json:"last"`    // time of the newest failure
	Pending int              `json:"owed"`    // pods lost since then that must not be replaced yet
	// Failed: the pod failed or was rejected; it was not evicted
	Failed bool `json:"failed,omitempty"`

	// failures of a Job's index that count for its limit, for as long as the Job exists
	Failures int32 `json:"failures,omitempty"`

	Waits metav1.Time `json:"waits,omitzero"` // the due time of a CronJob's Job that waits for the last Job
}

// DeepCopy returns a deep copy.
func (l *Backoff) DeepCopy() *Backoff {
	out := *l
	l.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *Backoff) DeepCopyObject() runtime.Object { return l.DeepCopy() }

// Names of the objects that the hub publishes about itself, and in every namespace.
const (
	HubName        = "hub"              // the only Advertisement
	APIService     = "kubernetes"       // in the namespace default
	DefaultAccount = "default"          // in every namespace
	RootConfigMap  = "kube-root-ca.crt" // in every namespace
	RootKey        = "ca.crt"           // a key of RootConfigMap's data
)

// An Advertisement holds the address of the hub's API and the certificate authority that verifies
// it. There is only one. The API does not serve it.
type Advertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Address string `json:"address,omitempty"` // IPv4 or IPv6; "": not known
	Port    int32  `json:"port,omitempty"`
	Root    string `json:"root,omitempty"` // certificates, PEM

	Agents []fleet.AgentBuild `json:"agents,omitempty"` // versions of the agent that the hub hands out
}

// DeepCopyObject implements runtime.Object.
func (a *Advertisement) DeepCopyObject() runtime.Object {
	out := *a
	a.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Agents = slices.Clone(a.Agents) // nobody changes a signature
	return &out
}

// Advertisement returns the hub's Advertisement, nil if there is none yet.
func (s Snapshot) Advertisement() *Advertisement {
	return get[*Advertisement](s, Key{Kind: Advertisements, Name: HubName})
}

// A FirmwareReport is a device's report of its boot configuration. Package wire limits the length
// of its texts.
type FirmwareReport struct {
	Digest    string   `json:"digest,omitempty"`    // digest of the confirmed configuration
	Candidate string   `json:"candidate,omitempty"` // digest of the staged or tried configuration
	State     string   `json:"state,omitempty"`     // a reason of the condition FirmwareReady
	Backend   string   `json:"backend,omitempty"`
	Trial     string   `json:"trial,omitempty"` // how the device would try a configuration
	Message   string   `json:"message,omitempty"`
	Diff      string   `json:"diff,omitempty"` // the lines that would change
	Bad       []string `json:"bad,omitempty"`  // digests of configurations that the device rolled back
}

// A FirmwareAssignment is a node's part in a FirmwareRollout, or in an AgentRollout.
type FirmwareAssignment struct {
	Rollout string `json:"rollout"`
	Digest  string `json:"digest,omitempty"` // of the rollout's document that the hub published to the device
	// Step is the state of the node in its rollout step: Draining, Trying or Overdue; empty: it has
	// no step.
	Step  fleet.FirmwareNodeState `json:"step,omitempty"`
	Since metav1.Time             `json:"since,omitempty"` // when Step began
	// NotBefore: the last step ended early because of Why; the next step does not begin before this
	// moment.
	NotBefore metav1.Time `json:"notBefore,omitempty"`
	Why       string      `json:"why,omitempty"`
	// Failed is why the hub gave up the node: its device never began. It counts until the rollout's
	// retry is above Retry.
	Failed string `json:"failed,omitempty"`
	// Done: a step succeeded. A device that later reports its old configuration has lost the new
	// one. It gets no other step until the rollout's retry is above Retry.
	Done bool `json:"done,omitempty"`
	// Silent: the last turn ended because its device did not answer. It gets another one when it
	// answers again.
	Silent bool  `json:"silent,omitempty"`
	Retry  int64 `json:"retry,omitempty"`
}

// Rollout returns a FirmwareRollout, nil for none.
func (s Snapshot) Rollout(name string) *fleet.FirmwareRollout {
	return get[*fleet.FirmwareRollout](s, Key{Kind: FirmwareRollouts, Name: name})
}
