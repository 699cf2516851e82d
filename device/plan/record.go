package plan

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
)

// Labels of every container of an agent. With them a restarted agent finds and adopts its
// containers.
const (
	LabelAgent = "flotilla.dev/agent" // node name
	// hash of the state directory: two agents may share an engine and a node name
	LabelStateDir  = "flotilla.dev/state-dir"
	LabelPodUID    = "flotilla.dev/pod-uid"
	LabelPodName   = "flotilla.dev/pod-name"
	LabelNamespace = "flotilla.dev/pod-namespace"
	LabelContainer = "flotilla.dev/container" // the container's name in the pod; empty: the sandbox
	LabelKind      = "flotilla.dev/kind"
	LabelSpecHash  = "flotilla.dev/spec-hash"
	LabelRestarts  = "flotilla.dev/restart-count"
	LabelBoot      = "flotilla.dev/boot"             // boot id when the container was created
	LabelGrace     = "flotilla.dev/grace"            // grace period in seconds, for a pod that is no longer known
	LabelPodStart  = "flotilla.dev/pod-start"        // start of the pod in unix seconds
	LabelPodUptime = "flotilla.dev/pod-start-uptime" // start of the pod: boot id, and milliseconds since the boot
)

const (
	BootTime        = 2 * time.Minute               // time after the boot in which a device gets its addresses
	MaxMountBackOff = 2*time.Minute + 2*time.Second // the kubelet's back-off for volumes
)

// A Place names a container of a pod; an empty Container is the sandbox.
type Place struct {
	Pod       types.UID
	Container string
}

// An Observed is the agent's knowledge about its device at one moment. It changes only between
// calls of Steps.
type Observed struct {
	Node      Facts
	Policy    Policy
	Pressure  Pressure
	Requested map[types.UID]*corev1.Pod // pods with a requested resize, see SplitGrants

	Pods       map[types.UID]*Record
	Containers []Instance    // the agent's containers, without Leftovers
	Leftovers  []Leftover    // stopped containers that the engine does not remove
	Busy       []RunningStep // steps in progress
	Stale      bool          // Containers may be outdated
	Dismissed  bool          // the enrolment has ended, so the hub needs no final statuses
	Shutdown   *PodShutdown  // nil if the device does not shut down
}

// Facts are the properties of the device that pods depend on.
type Facts struct {
	Name        string
	StateDir    string    // hash of the state directory's path
	Boot        string    // boot id
	Booted      time.Time // time of the boot on the monotonic clock
	HostIP      string
	OtherIP     string              // address of the other family; empty: none
	Allocatable corev1.ResourceList // nil if unknown: no pod is admitted
	Generation  int64               // generation of the current desired state
	Offers      []hardware.Resource // device resources with their devices
	Memory      int64               // total bytes
	Swap        int64
	SwapUse     SwapBehavior
	NUMA        []hardware.NUMANode // empty if the device has only one
	Topology    TopologyPolicy
	Scope       TopologyScope // empty: ContainerScope
	CPUManager  CPUManagerPolicy
	CPUs        CPUSet // empty if unknown
	AppArmor    bool   // the kernel enforces AppArmor
	Engine      engine.Info
}

// hostIPs are the device's addresses, the primary one first.
func (f Facts) hostIPs() (ips []string) {
	for _, ip := range []string{f.HostIP, f.OtherIP} {
		if ip != "" {
			ips = append(ips, ip)
		}
	}
	return ips
}

// Pressure has the node's pressure conditions. Heat means that the node is too hot.
type Pressure struct{ Memory, Disk, PID, Heat bool }

// A RunningStep is a step in progress.
type RunningStep struct {
	Step  Step
	Since time.Time
}

// An Instance is one of the agent's containers with parsed labels.
type Instance struct {
	engine.Container
	Place   Place
	Kind    string
	Attempt int
	Hash    string
	Boot    string
}

// A Record is the agent's knowledge about one pod, with the records of its containers.
type Record struct {
	Admitted       bool
	Start          time.Time         // start by the wall clock, for the status
	MonotonicStart time.Time         // start on the monotonic clock, for the deadline; zero: unknown
	Uptime         string            // value of LabelPodUptime
	Verdict        *Verdict          // ends the pod, whatever its containers do
	MaxGrace       *time.Duration    // grace period of the Verdict; nil: the pod's own
	Final          *corev1.PodStatus // the final status; nil if the pod has not ended
	SavingFinal    bool              // Final is being stored; until then the pod's containers and files stay
	Volumes        int64             // generation of the desired state that the pod's volumes reflect
	StaleAt        time.Time         // time of the last failed refresh
	StaleBackOff   time.Duration     // back-off after StaleAt
	Cleaned        bool              // containers and files were removed, except LeftFiles
	LeftFiles      *Leftover         // files that could not be removed; nil: none
	NUMA           map[string][]int  // NUMA nodes of the aligned containers
	Unmeasured     bool              // an event has reported that the pod cannot be fully measured
	LastMessage    string            // the last message about why the pod waits
	ResizePending  *Verdict          // why the requested resize is not granted; nil if no resize waits
	Resizing       bool              // a granted resize is not complete
	Container      map[string]*ContainerRecord
}

// A Verdict ends a pod with phase Failed.
type Verdict struct{ Reason, Message string }

// RecordOf returns the record of a pod, and creates it if needed.
func (o *Observed) RecordOf(uid types.UID) *Record {
	r := o.Pods[uid]
	if r == nil {
		r = &Record{Container: map[string]*ContainerRecord{}}
		if o.Pods == nil {
			o.Pods = map[types.UID]*Record{}
		}
		o.Pods[uid] = r
	}
	return r
}

// ContainerOf returns the record of a container, and creates it if needed.
func (r *Record) ContainerOf(name string) *ContainerRecord {
	c := r.Container[name]
	if c == nil {
		c = &ContainerRecord{Attempt: -1}
		r.Container[name] = c
	}
	return c
}

// Peek returns the record of a container, or an empty one. The caller must not change it.
func (r *Record) Peek(name string) *ContainerRecord {
	if r != nil {
		if c := r.Container[name]; c != nil {
			return c
		}
	}
	return &ContainerRecord{Attempt: -1}
}

// InstanceOf parses the labels of a container from OwnContainers. It returns false if the container
// belongs to another agent.
func InstanceOf(c engine.Container, node Facts) (Instance, bool) {
	if c.Labels[LabelAgent] != node.Name || c.Labels[LabelStateDir] != node.StateDir || c.Labels[LabelPodUID] == "" {
		return Instance{}, false
	}
	attempt, err := strconv.Atoi(c.Labels[LabelRestarts])
	if err != nil || attempt < 0 {
		attempt = 0
	}
	return Instance{
		Container: c,
		Place:     Place{Pod: types.UID(c.Labels[LabelPodUID]), Container: c.Labels[LabelContainer]},
		Kind:      c.Labels[LabelKind],
		Attempt:   attempt,
		Hash:      c.Labels[LabelSpecHash],
		Boot:      c.Labels[LabelBoot],
	}, true
}

// mayRun reports whether a container of a pod, or its sandbox, runs or is about to run.
func (o *Observed) mayRun(uid types.UID) bool {
	return o.Stale || slices.ContainsFunc(o.Containers, func(in Instance) bool {
		return in.Place.Pod == uid && IsRunning(in)
	}) || slices.ContainsFunc(o.Busy, func(b RunningStep) bool {
		return b.Step.Place.Pod == uid && !b.Step.Action.RunsBeside()
	})
}

// Finished reports whether a pod has ended and its final status is not set yet.
func (o *Observed) Finished(pod *corev1.Pod, r *Record) bool {
	return r.Final == nil && !r.Cleaned && (pod.DeletionTimestamp == nil || r.Admitted) && !o.mayRun(pod.UID) &&
		IsFinal(phaseOf(pod, r, o.Node.Boot))
}

// SetContainers records a new list of containers: starts, ends, removals. Back-offs begin now,
// because an engine's timestamps jump with the device's clock.
func (o *Observed) SetContainers(list []engine.Container, now time.Time) {
	o.Containers = o.Containers[:0:0]
	var left []Leftover
	for _, c := range list {
		in, ok := InstanceOf(c, o.Node)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(o.Leftovers, func(l Leftover) bool { return l.ID == in.ID }); i >= 0 && HasStopped(in) {
			left = append(left, o.Leftovers[i])
			continue
		}
		o.Containers = append(o.Containers, in)
	}
	o.Leftovers = left
	// Sort by place, then newest first. The first instance of a place is the current one.
	sort.Slice(o.Containers, func(i, j int) bool {
		a, b := o.Containers[i], o.Containers[j]
		return cmp.Or(cmp.Compare(a.Place.Pod, b.Place.Pod), cmp.Compare(a.Place.Container, b.Place.Container),
			cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID)) < 0
	})
	for uid, r := range o.Pods {
		for name, c := range r.Container {
			if c.ID != "" && !o.exists(Place{uid, name}, c.ID) {
				c.gone(now)
			}
		}
	}
	var at Place
	for i, in := range o.Containers {
		r := o.RecordOf(in.Place.Pod)
		r.Admitted = true // the pod has run before, so no check can reject it
		r.Cleaned = false
		if sec, err := strconv.ParseInt(in.Labels[LabelPodStart], 10, 64); err == nil && r.Start.IsZero() {
			r.Start, r.Uptime = time.Unix(sec, 0), in.Labels[LabelPodUptime]
		}
		if r.NUMA == nil {
			r.NUMA = numaOf(in)
		}
		c := r.ContainerOf(in.Place.Container)
		switch {
		case (i == 0 || in.Place != at) && in.Attempt < c.Attempt: // the instance is older than one that has gone
		case i == 0 || in.Place != at:
			c.see(in, now)
		case c.Last == nil && in.State != engine.Created:
			c.Last = terminated(in)
		}
		at = in.Place
	}
}

// SetStarts sets the monotonic start times of pods that an earlier agent has started. The boot id
// must be known.
func (o *Observed) SetStarts(pods []corev1.Pod, now time.Time) {
	for i := range pods {
		if r := o.Pods[pods[i].UID]; r != nil && r.MonotonicStart.IsZero() && !r.Start.IsZero() {
			r.MonotonicStart = o.Node.monotonicStart(r.Uptime, r.Start, pods[i].CreationTimestamp.Time, now)
		}
	}
}

// clockSkew is the largest expected difference between the clocks of device and hub.
const clockSkew = time.Minute

// monotonicStart is a pod's start on the monotonic clock, so that a clock change does not change
// the pod's age. For a start before the last boot only the wall clock is available. If its time is
// before the pod's creation or in the future, the pod starts now.
func (f Facts) monotonicStart(uptime string, start, made, now time.Time) time.Time {
	boot, text, _ := strings.Cut(uptime, " ")
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && boot == f.Boot && !f.Booted.IsZero() {
		return f.Booted.Add(time.Duration(ms) * time.Millisecond)
	}
	if start.Before(made.Add(-clockSkew)) {
		return now
	}
	return now.Add(-max(0, now.Round(0).Sub(start.Round(0))))
}

func (o *Observed) exists(p Place, id string) bool {
	return slices.ContainsFunc(o.Containers, func(in Instance) bool { return in.Place == p && in.ID == id })
}

// A Leftover is a stopped container, or files of a pod, that cannot be removed, for example because
// of a busy mount. The pod ends anyway, and the removal is retried with back-off.
type Leftover struct {
	Instance
	Pod     *corev1.Pod // nil if the pod is undesired
	RetryAt time.Time
	Wait    time.Duration // the current back-off
}

// LeftoverWait is the first back-off of a Leftover. It doubles after each attempt.
const LeftoverWait = 10 * time.Second

// HasStopped reports whether an instance exists and does not run.
func HasStopped(in Instance) bool {
	return in.State == engine.Exited || in.State == engine.Dead || in.State == engine.Created
}

// Reasons why a container could not run.
const (
	FailedMount       = "FailedMount"
	DeviceUnavailable = "DeviceUnavailable" // not in Kubernetes, which fails the pod instead
)

// HoldFailed is the wait before a failed step is repeated.
const HoldFailed = 5 * time.Second

// A RunError is the failure to run a container, with the kubelet's reason.
type RunError struct {
	Reason string
	Err    error
}

// NewRunError makes a RunError.
func NewRunError(reason string, err error) error { return &RunError{reason, err} }

func (e *RunError) Error() string { return e.Reason + ": " + e.Err.Error() }
func (e *RunError) Unwrap() error { return e.Err }

// WaitingReasons are the failures for which a container waits until an object or device appears.
// Then the container is tried at once.
var WaitingReasons = []string{"CreateContainerConfigError", FailedMount, DeviceUnavailable}

// RetryWaiting makes the containers with WaitingReasons due, because a missing object or device may
// have appeared.
func (o *Observed) RetryWaiting() {
	for _, r := range o.Pods {
		r.StaleBackOff = min(r.StaleBackOff, HoldFailed)
		for _, c := range r.Container {
			if c.Failure != nil && slices.Contains(WaitingReasons, c.Failure.Reason) {
				c.RetryAt = time.Time{}
			}
		}
	}
}
