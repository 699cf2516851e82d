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

// Actions. Admit, Reject, Grant and Defer only change the agent's records; Grant does so once the
// grant is stored. All other actions take time. A place has one of them at a time, except Stop and
// those that RunsBeside.
const (
	Admit   Action = "admit"
	Reject  Action = "reject" // ends the pod with phase Failed
	Run     Action = "run"    // pulls the image, creates and starts a container
	Stop    Action = "stop"   // may be repeated with a shorter grace period
	Remove  Action = "remove"
	Refresh Action = "refresh" // updates config maps and secrets in the pod's volumes
	Clean   Action = "clean"   // removes the pod's directory, last
	Cancel  Action = "cancel"  // cancels a run in progress
	Probe   Action = "probe"   // runs at the same time as other steps
	Hook    Action = "hook"    // a postStart hook; runs at the same time as other steps
	Grant   Action = "grant"   // grants a resize
	Defer   Action = "defer"   // refuses a resize for now
	Update  Action = "update"  // applies a granted resize to a running container
)

// RunsBeside reports whether an action may run at the same time as others of its place.
func (a Action) RunsBeside() bool { return a == Probe || a == Hook }

// A Step is one action for the agent.
type Step struct {
	Action         Action
	Place          Place
	Pod            *corev1.Pod       // nil if the pod is unknown
	Spec           *corev1.Container // nil for a sandbox
	Kind           string
	ID             string // id of an existing container
	Attempt        int
	Grace          time.Duration
	Network        string // container whose network it shares
	Processes      string // container whose processes it shares, in addition to the sandbox's
	Forbidden      string // why the policy forbids the container
	IP             string // address of a probe or hook
	Probe          podspec.ProbeKind
	Verdict        Verdict
	Why            string
	StopAfter      []string  // ids of containers that must stop first, see stopsBefore
	Start          time.Time // start of the pod by the wall clock
	MonotonicStart time.Time // start of the pod on the monotonic clock
	Devices        []hardware.Device
	NUMA           map[string][]int // NUMA nodes of the pod's containers, see Record
	Missing        string           // why devices are missing; the run fails with this message
	CPUs           string           // the container's CPUs; empty: all, or those of its NUMA nodes
	Exclusive      bool             // no other container gets these CPUs

	OldLimits, Limits engine.Limits // limits of the container before and after Update

	Generation int64 // generation of the desired state, for Refresh
}

// String describes the step for the log.
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

// Same reports whether s and t are the same step.
func (s Step) Same(t Step) bool {
	return s.Action == t.Action && s.Place == t.Place && s.ID == t.ID && s.Probe == t.Probe && s.Grace == t.Grace &&
		s.Attempt == t.Attempt
}
