package fleet

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A FirmwareRollout applies a board profile's boot configuration to nodes, a few at a time. Each
// device tries the configuration once and then keeps it or returns to its old one.
type FirmwareRollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FirmwareRolloutSpec   `json:"spec,omitempty"`
	Status FirmwareRolloutStatus `json:"status,omitempty"`
}

// A FirmwareRolloutSpec is the specification of a rollout.
type FirmwareRolloutSpec struct {
	Profile         string `json:"profile"` // name of the BoardProfile; nodes with another profile are left out
	RolloutStrategy `json:",inline"`
}

// A FirmwareWindow is the time in which turns may begin, in the site's time zone.
type FirmwareWindow struct {
	Days []string `json:"days,omitempty"` // days on which the window opens, such as Mon; empty: every day
	From string   `json:"from"`           // such as 22:00
	To   string   `json:"to"`             // such as 04:30; if it is not after From, it is a time of the next day
}

// AnnotationTimeZone is the annotation of a Site with its time zone, such as Europe/Oslo. The
// default is UTC.
const AnnotationTimeZone = "flotilla.dev/time-zone"

// WindowDays are the names of days in a window, indexed by time.Weekday.
var WindowDays = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

// A RolloutPhase is the phase of a rollout.
type RolloutPhase string

// Phases of a rollout.
const (
	RolloutPending     RolloutPhase = "Pending"     // the rollout cannot begin; Sentence says why
	RolloutProgressing RolloutPhase = "Progressing" // turns are in progress, or the next one begins
	RolloutWaiting     RolloutPhase = "Waiting"     // the rollout waits for a window, a site, or a node
	RolloutPaused      RolloutPhase = "Paused"      // spec.paused is set
	RolloutStopped     RolloutPhase = "Stopped"     // nodes returned to their old configuration
	RolloutComplete    RolloutPhase = "Complete"    // every node has a final state
)

// A FirmwareNodeState is the state of a node in a rollout.
type FirmwareNodeState string

// States of a node. Kept, Bad and Unsupported are final; with spec.undo, Undone is final and Kept
// is not.
const (
	FirmwareWaiting FirmwareNodeState = "Waiting" // the device has not staged the configuration yet
	// the device has staged the configuration, and waits for its turn
	FirmwareStaged   FirmwareNodeState = "Staged"
	FirmwareDraining FirmwareNodeState = "Draining" // its turn has begun
	FirmwareTrying   FirmwareNodeState = "Trying"   // the device may reboot into the configuration
	FirmwareOverdue  FirmwareNodeState = "Overdue"  // the result is overdue
	FirmwareKept     FirmwareNodeState = "Kept"     // the device has kept the configuration
	// the device returned to its old configuration, or could not stage the new one
	FirmwareBad         FirmwareNodeState = "Bad"
	FirmwareUnsupported FirmwareNodeState = "Unsupported" // the device does not support the configuration, and reports why
	// with spec.undo: the device does not have the configuration
	FirmwareUndone FirmwareNodeState = "Undone"
)

// A FirmwareRolloutStatus is the progress of a rollout.
type FirmwareRolloutStatus struct {
	ObservedGeneration int64        `json:"observedGeneration,omitempty"`
	Phase              RolloutPhase `json:"phase,omitempty"`
	Sentence           string       `json:"sentence,omitempty"` // for users: the present action, or the reason to wait

	Digest   string `json:"digest,omitempty"`   // digest of Document; of an AgentRollout: the version
	Document string `json:"document,omitempty"` // the boot configuration, as signed for each node; or the agents

	Nodes       int32 `json:"nodes"` // selected nodes
	Kept        int32 `json:"kept"`
	Bad         int32 `json:"bad,omitempty"`
	Unsupported int32 `json:"unsupported,omitempty"`
	Trying      int32 `json:"trying,omitempty"` // nodes whose turn it is
	Staged      int32 `json:"staged,omitempty"`
	Waiting     int32 `json:"waiting,omitempty"`
	Undone      int32 `json:"undone,omitempty"` // with spec.undo: nodes without the configuration

	// spec.undo is set, and all turns that apply the configuration have ended
	Undoing bool `json:"undoing,omitempty"`

	Batches []FirmwareBatch `json:"batches,omitempty"` // the newest 20; the last may be in progress
	// at most 100 nodes: first those in their turn, then Bad, then Unsupported, then all others
	NodeStates []FirmwareNode `json:"nodeStates,omitempty"`
	// changes that the devices report after staging; at most 3
	Changes []FirmwareChange `json:"changes,omitempty"`
	// Available: no node returned to its old configuration; Progressing; Complete
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Limits of a rollout's status.
const (
	MaxFirmwareBatches = 20
	MaxFirmwareNodes   = 100
	MaxFirmwareChanges = 3
	MaxBatchSize       = 100
)

// A FirmwareBatch is a group of nodes of one site that have their turns at the same time.
type FirmwareBatch struct {
	Number int32        `json:"number"`
	Site   string       `json:"site"`
	Nodes  []string     `json:"nodes"`
	Began  metav1.Time  `json:"began"`
	Ended  *metav1.Time `json:"ended,omitempty"`
	Kept   int32        `json:"kept,omitempty"`
	Bad    int32        `json:"bad,omitempty"`
}

// A FirmwareNode is a node of a rollout.
type FirmwareNode struct {
	Name    string            `json:"name"`
	Site    string            `json:"site,omitempty"`
	State   FirmwareNodeState `json:"state"`
	Since   *metav1.Time      `json:"since,omitempty"` // start of the node's turn
	Message string            `json:"message,omitempty"`
}

// A FirmwareChange is a change that staging would make, and the nodes that report it.
type FirmwareChange struct {
	Diff  string `json:"diff"`
	Nodes int32  `json:"nodes"`
	First string `json:"first"` // the first node
}

// ParseClock parses a time of a window, such as 22:00, into minutes of the day.
func ParseClock(text string) (minutes int, ok bool) {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, false
	}
	return t.Hour()*60 + t.Minute(), true
}

// Open reports whether the window is open at a time in the site's time zone, and when it next opens
// or closes. A day is a calendar day of that zone, even if it has 23 or 25 hours.
func (w *FirmwareWindow) Open(now time.Time) (open bool, until time.Time) {
	from, ok := ParseClock(w.From)
	to, also := ParseClock(w.To)
	if !ok || !also {
		return false, time.Time{}
	}
	y, m, d := now.Date()
	for day := -1; day <= 8; day++ {
		start := firstAt(time.Date(y, m, d+day, from/60, from%60, 0, 0, time.UTC), now.Location())
		last := d + day
		if to <= from {
			last++
		}
		end := firstAt(time.Date(y, m, last, to/60, to%60, 0, 0, time.UTC), now.Location())
		// The clock never changes at noon, so noon always has the right weekday.
		weekday := time.Date(y, m, d+day, 12, 0, 0, 0, now.Location()).Weekday()
		if len(w.Days) > 0 && !slices.Contains(w.Days, WindowDays[weekday]) || !start.Before(end) {
			continue
		}
		if now.Before(start) {
			return false, start
		}
		if now.Before(end) {
			return true, end
		}
	}
	return false, time.Time{}
}

// firstAt returns the first moment at which the clock in a time zone shows at least the given time.
// On a day on which the time is skipped or repeated, time.Date may return another moment.
func firstAt(clock time.Time, place *time.Location) time.Time {
	t := time.Date(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute(), 0, 0, place)
	_, offset := t.Zone()
	since, until := t.ZoneBounds()
	switch shown := t.Unix() + int64(offset); {
	case shown < clock.Unix():
		return until
	case shown > clock.Unix():
		return since
	}
	if !since.IsZero() {
		_, before := since.Add(-1).Zone()
		if first := t.Add(time.Duration(offset-before) * time.Second); first.Before(since) {
			return first
		}
	}
	return t
}

// DeepCopy returns a copy that shares nothing.
func (r *FirmwareRollout) DeepCopy() *FirmwareRollout {
	if r == nil {
		return nil
	}
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.RolloutStrategy = r.Spec.RolloutStrategy.copied()
	out.Status = r.Status.copied()
	return &out
}

// copied returns a copy that shares nothing.
func (s FirmwareRolloutStatus) copied() FirmwareRolloutStatus {
	st := &s
	st.Batches = slices.Clone(st.Batches)
	for i := range st.Batches {
		st.Batches[i].Nodes = slices.Clone(st.Batches[i].Nodes)
		st.Batches[i].Ended = st.Batches[i].Ended.DeepCopy()
	}
	st.NodeStates = slices.Clone(st.NodeStates)
	for i := range st.NodeStates {
		st.NodeStates[i].Since = st.NodeStates[i].Since.DeepCopy()
	}
	st.Changes = slices.Clone(st.Changes)
	st.Conditions = slices.Clone(st.Conditions)
	return s
}

// DeepCopyObject implements runtime.Object.
func (r *FirmwareRollout) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// A FirmwareRolloutList is a list of rollouts.
type FirmwareRolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FirmwareRollout `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *FirmwareRolloutList) DeepCopyObject() runtime.Object {
	out := &FirmwareRolloutList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
