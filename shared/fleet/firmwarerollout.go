package fleet

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A FirmwareRollout gives the boot configuration of a board profile to nodes, a few at a
// time: each device tries it once, judges it, and keeps it or goes back.
type FirmwareRollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FirmwareRolloutSpec   `json:"spec,omitempty"`
	Status FirmwareRolloutStatus `json:"status,omitempty"`
}

// A FirmwareRolloutSpec is what an administrator wants.
type FirmwareRolloutSpec struct {
	Selector *metav1.LabelSelector `json:"selector"` // the nodes; an empty one is refused
	// Condition narrows them to nodes with a condition that is not True, such as MemoryLimits, until
	// they have their turn.
	Condition string `json:"condition,omitempty"`
	Profile   string `json:"profile"` // name of the BoardProfile; nodes whose own it is not are left out

	// nodes of a batch, all of one site; the first batch is one node. Default 5
	BatchSize int32 `json:"batchSize,omitempty"`
	// nodes of the site that may be unavailable, whatever the reason. Default 1
	MaxUnavailablePerSite int32 `json:"maxUnavailablePerSite,omitempty"`
	// percent of the nodes with an end that must have kept it. Default 100
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// stop at the first node that goes back. Default true
	PauseOnFailure *bool           `json:"pauseOnFailure,omitempty"`
	Window         *FirmwareWindow `json:"window,omitempty"` // nil: always
	Canary         string          `json:"canary,omitempty"` // the node that goes first; empty: the first by name
	Paused         bool            `json:"paused,omitempty"` // no node begins; those under way end
	Retry          int64           `json:"retry,omitempty"`  // raised: nodes that went back may try the same again
	// nodes that have kept it go back to what they had before, in turns as they came
	Undo bool `json:"undo,omitempty"`
}

// A FirmwareWindow is when nodes may begin, in the time zone of their site.
type FirmwareWindow struct {
	Days []string `json:"days,omitempty"` // Mon, Tue … on which it opens; empty: every day
	From string   `json:"from"`           // such as 22:00
	To   string   `json:"to"`             // such as 04:30; not after from: of the next day
}

// AnnotationTimeZone of a Site names its time zone, such as Europe/Oslo; without it UTC.
const AnnotationTimeZone = "flotilla.dev/time-zone"

// WindowDays are the days of a window, by time.Weekday.
var WindowDays = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

// A RolloutPhase is where a rollout is.
type RolloutPhase string

// The phases.
const (
	RolloutPending     RolloutPhase = "Pending"     // it cannot begin: the sentence says why
	RolloutProgressing RolloutPhase = "Progressing" //
	RolloutWaiting     RolloutPhase = "Waiting"     // for a window, a site, or a node
	RolloutPaused      RolloutPhase = "Paused"      // by spec.paused
	RolloutStopped     RolloutPhase = "Stopped"     // because of nodes that went back
	RolloutComplete    RolloutPhase = "Complete"    // every node has its end
)

// A FirmwareNodeState is where a node of a rollout is.
type FirmwareNodeState string

// The states of a node. Kept, Bad and Unsupported are ends; Undone is one, and Kept none, where the
// rollout is undone.
const (
	FirmwareWaiting     FirmwareNodeState = "Waiting"     // its device has not staged it yet
	FirmwareStaged      FirmwareNodeState = "Staged"      // it can have its turn
	FirmwareDraining    FirmwareNodeState = "Draining"    // its turn has begun
	FirmwareTrying      FirmwareNodeState = "Trying"      // its device may reboot into it
	FirmwareOverdue     FirmwareNodeState = "Overdue"     // it has not said in time how that ended
	FirmwareKept        FirmwareNodeState = "Kept"        //
	FirmwareBad         FirmwareNodeState = "Bad"         // its device went back, or could not stage it
	FirmwareUnsupported FirmwareNodeState = "Unsupported" // its device cannot do it, and says why
	// of a rollout that is undone: it does not have the configuration
	FirmwareUndone FirmwareNodeState = "Undone"
)

// A FirmwareRolloutStatus is how far a rollout is.
type FirmwareRolloutStatus struct {
	ObservedGeneration int64        `json:"observedGeneration,omitempty"`
	Phase              RolloutPhase `json:"phase,omitempty"`
	Sentence           string       `json:"sentence,omitempty"` // for people: what it does now, or waits for

	Digest   string `json:"digest,omitempty"`   // of Document
	Document string `json:"document,omitempty"` // the boot configuration, as it is signed for each node

	Nodes       int32 `json:"nodes"` // that are selected
	Kept        int32 `json:"kept"`
	Bad         int32 `json:"bad,omitempty"`
	Unsupported int32 `json:"unsupported,omitempty"`
	Trying      int32 `json:"trying,omitempty"` // have their turn
	Staged      int32 `json:"staged,omitempty"`
	Waiting     int32 `json:"waiting,omitempty"`
	Undone      int32 `json:"undone,omitempty"` // do not have it, where the rollout is undone

	// the turns are for going back: spec.undo, once nobody has a turn of the other kind
	Undoing bool `json:"undoing,omitempty"`

	Batches []FirmwareBatch `json:"batches,omitempty"` // the newest 20; the last may be under way
	// first those with a turn, then Bad, Unsupported, the others; 100 at most
	NodeStates []FirmwareNode `json:"nodeStates,omitempty"`
	// what would change on the nodes, as they say themselves; 3 at most
	Changes    []FirmwareChange   `json:"changes,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"` // Available: nothing went back; Progressing; Complete
}

// Limits of a rollout's status.
const (
	MaxFirmwareBatches = 20
	MaxFirmwareNodes   = 100
	MaxFirmwareChanges = 3
	MaxBatchSize       = 100
)

// A FirmwareBatch is nodes of one site that have their turn together.
type FirmwareBatch struct {
	Number int32        `json:"number"`
	Site   string       `json:"site"`
	Nodes  []string     `json:"nodes"`
	Began  metav1.Time  `json:"began"`
	Ended  *metav1.Time `json:"ended,omitempty"`
	Kept   int32        `json:"kept,omitempty"`
	Bad    int32        `json:"bad,omitempty"`
}

// A FirmwareNode is one node of a rollout.
type FirmwareNode struct {
	Name    string            `json:"name"`
	Site    string            `json:"site,omitempty"`
	State   FirmwareNodeState `json:"state"`
	Since   *metav1.Time      `json:"since,omitempty"` // of its turn
	Message string            `json:"message,omitempty"`
}

// A FirmwareChange is what staging would change, with the nodes that say so.
type FirmwareChange struct {
	Diff  string `json:"diff"`
	Nodes int32  `json:"nodes"`
	First string `json:"first"` // the first of them
}

// Defaults of a FirmwareRollout.
const (
	DefaultBatchSize        = 5
	DefaultMaxUnavailable   = 1
	DefaultSuccessThreshold = 100
)

// Default fills in what is not said.
func (s *FirmwareRolloutSpec) Default() {
	for _, f := range []struct {
		of   *int32
		with int32
	}{{&s.BatchSize, DefaultBatchSize}, {&s.MaxUnavailablePerSite, DefaultMaxUnavailable},
		{&s.SuccessThreshold, DefaultSuccessThreshold}} {
		if *f.of == 0 {
			*f.of = f.with
		}
	}
	if s.PauseOnFailure == nil {
		yes := true
		s.PauseOnFailure = &yes
	}
}

// ParseClock reads a time of a window, such as 22:00, into minutes of the day.
func ParseClock(text string) (minutes int, ok bool) {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, false
	}
	return t.Hour()*60 + t.Minute(), true
}

// Open tells whether the window is open at a moment, whose location is the site's time
// zone, and when that changes next. Days are those of the wall clock, however long they are.
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
		// At noon no clock changes: the day is meant, not the moment.
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

// firstAt is the first moment at which the clock of a place shows what another shows in UTC, or
// more: it may skip that, or show it twice, where time.Date promises neither moment.
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
	out.Spec.Selector = r.Spec.Selector.DeepCopy()
	out.Spec.PauseOnFailure = clone(r.Spec.PauseOnFailure)
	if w := clone(r.Spec.Window); w != nil {
		w.Days = slices.Clone(w.Days)
		out.Spec.Window = w
	}
	st := &out.Status
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
	return &out
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
