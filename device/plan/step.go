package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
)

// An Action is a kind of step.
type Action string

// What a step can do. Admit, Reject, Grant and Defer only change what the agent remembers, Grant
// when that is stored; the others take time, and no two are in flight for one place (but see Stop
// and aside).
const (
	Admit   Action = "admit"
	Reject  Action = "reject" // end the pod with phase Failed
	Run     Action = "run"    // bring the image, create and start a container
	Stop    Action = "stop"   // may be taken again with a shorter grace
	Remove  Action = "remove"
	Refresh Action = "refresh" // bring config maps and secrets in the pod's volumes up to date
	Clean   Action = "clean"   // remove the pod's directory: nothing of it is left
	Cancel  Action = "cancel"  // give up a run in flight
	Probe   Action = "probe"   // runs beside other steps
	Hook    Action = "hook"    // postStart, beside other steps too
	Grant   Action = "grant"   // give a pod the resources that it asks for
	Defer   Action = "defer"   // say why not
	Update  Action = "update"  // hold a running container to them
)

// RunsBeside tells of an action that runs beside others of its place.
func (a Action) RunsBeside() bool { return a == Probe || a == Hook }

// A Step is one thing that the agent does to make the device as it should be.
type Step struct {
	Action    Action
	Place     Place
	Pod       *corev1.Pod       // nil where the pod is no longer known
	Spec      *corev1.Container // nil for a sandbox
	Kind      string
	ID        string // of the container that exists
	Attempt   int
	Grace     time.Duration
	Network   string // container whose network to share
	Processes string // container whose processes to share, beside those of the sandbox
	Forbidden string // by the device's owner: the run fails with that
	IP        string // where a probe or a hook asks
	Probe     podspec.ProbeKind
	Verdict   Verdict
	Why       string
	After     []string  // ids of containers that end before it, see before
	Start     time.Time // of the pod, by the wall clock
	Counts    time.Time // the same on the monotonic clock
	Devices   []hardware.Device
	NUMA      map[string][]int // of the pod's containers, see Record
	Lacks     string           // why there are no devices for it: the run fails with that
	CPUs      string           // processors that it stays on; "": all, or those of its NUMA nodes
	Exclusive bool             // which are for it alone

	Has, Limits engine.Limits // of the container, before and after Update

	Generation int64 // of the desired state that Refresh works from
}

// String is the sentence that stands in the log.
func (s Step) String() string {
	what := string(s.Place.Pod)
	if s.Pod != nil {
		what = s.Pod.Namespace + "/" + s.Pod.Name
	}
	if s.Place.Container != "" {
		what += " container " + s.Place.Container
	} else if s.Kind == podspec.KindSandbox {
		what += " sandbox"
	}
	switch s.Action {
	case Reject, Defer:
		return fmt.Sprintf(string(s.Action)+" %s: %s: %s", what, s.Verdict.Reason, s.Verdict.Message)
	case Run:
		return fmt.Sprintf("run %s, attempt %d", what, s.Attempt)
	case Stop:
		return fmt.Sprintf("stop %s within %s: %s", what, s.Grace, s.Why)
	case Probe:
		return fmt.Sprintf("%s probe of %s", s.Probe, what)
	}
	return string(s.Action) + " " + what
}

// Same tells whether two steps are one.
func (s Step) Same(t Step) bool {
	return s.Action == t.Action && s.Place == t.Place && s.ID == t.ID && s.Probe == t.Probe && s.Grace == t.Grace &&
		s.Attempt == t.Attempt
}
