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

// Labels of every container that an agent makes. They are all that an agent needs
// to find and adopt its containers after its own restart.
const (
	LabelAgent     = "flotilla.dev/agent"     // node name
	LabelStateDir  = "flotilla.dev/state-dir" // which state directory: two agents may share an engine and a name
	LabelPodUID    = "flotilla.dev/pod-uid"
	LabelPodName   = "flotilla.dev/pod-name"
	LabelNamespace = "flotilla.dev/pod-namespace"
	LabelContainer = "flotilla.dev/container" // its name in the pod; empty for the sandbox
	LabelKind      = "flotilla.dev/kind"
	LabelSpecHash  = "flotilla.dev/spec-hash"
	LabelRestarts  = "flotilla.dev/restart-count"
	LabelBoot      = "flotilla.dev/boot"             // of the device, under which it was made
	LabelGrace     = "flotilla.dev/grace"            // seconds; for a container whose pod is no longer known
	LabelPodStart  = "flotilla.dev/pod-start"        // unix seconds
	LabelPodUptime = "flotilla.dev/pod-start-uptime" // boot id, and milliseconds from that boot to the pod's start
)

const (
	BootTime        = 2 * time.Minute               // in which a device has its addresses, or has none
	MaxMountBackOff = 2*time.Minute + 2*time.Second // as the kubelet's for what a volume needs
)

// A Place names a container of a pod; an empty Container is the pod's sandbox.
type Place struct {
	Pod       types.UID
	Container string
}

// An Observed is what an agent knows of its device at one moment. It is changed
// only between two calls of Steps.
type Observed struct {
	Node     Facts
	Policy   Policy
	Pressure Pressure
	Asked    map[types.UID]*corev1.Pod // what pods are to have that the device has not granted, see split

	Pods       map[types.UID]*Record // what it remembers, by pod
	Containers []Instance            // every container of its own that exists, but for Leftovers
	Leftovers  []Leftover            // stopped containers that the engine refuses to remove
	Busy       []Doing               // steps being taken
	Stale      bool                  // Containers may have changed since
	Dismissed  bool                  // no hub asks how pods end
	Shutdown   *PodShutdown          // the device goes down
}

// Facts are the facts about the device that pods depend on.
type Facts struct {
	Name        string
	StateDir    string    // short hash of the state directory's path
	Boot        string    // boot id of the device
	Booted      time.Time // when it booted, on the monotonic clock
	HostIP      string
	OtherIP     string              // the device's address of the other family; empty: it has none
	Allocatable corev1.ResourceList // nil: not known yet, nothing new is admitted
	Generation  int64               // of the desired state that holds
	Offers      []hardware.Resource // what there is for those who ask for it, with the devices behind it
	Memory      int64               // of the device in all, bytes
	Swap        int64
	SwapUse     SwapBehavior
	NUMA        []hardware.NUMANode // where there is more than one
	Topology    TopologyPolicy
	Scope       TopologyScope // empty: ContainerScope
	CPUManager  CPUManagerPolicy
	CPUs        CPUSet // of the device; empty: not known
	AppArmor    bool   // the kernel enforces it
	Engine      engine.Info
}

// hostIPs are the device's addresses, the one that counts first.
func (f Facts) hostIPs() (ips []string) {
	for _, ip := range []string{f.HostIP, f.OtherIP} {
		if ip != "" {
			ips = append(ips, ip)
		}
	}
	return ips
}

// Pressure says what the device is short of, and whether it is too hot.
type Pressure struct{ Memory, Disk, PID, Heat bool }

// A Doing is a step in flight.
type Doing struct {
	Step  Step
	Since time.Time
}

// An Instance is one container of ours, with what its labels say.
type Instance struct {
	engine.Container
	Place   Place
	Kind    string
	Attempt int
	Hash    string
	Boot    string
}

// A Record is what the agent remembers of one pod beside its containers.
type Record struct {
	Admitted   bool
	Start      time.Time         // by the wall clock, to show
	Counts     time.Time         // the same on the monotonic clock, for its deadline; zero: not found out yet
	Uptime     string            // what LabelPodUptime says of it
	Verdict    *Verdict          // the pod is over, whatever its containers say
	Within     *time.Duration    // the longest grace that it ends with for its Verdict; nil: its own
	Final      *corev1.PodStatus // the pod has ended for good, with this status
	Noting     bool              // which is on its way into the journal: until it is there nothing of the pod is removed
	Volumes    int64             // desired generation that its volumes reflect
	StaleAt    time.Time         // when they could not be brought up to date last
	StaleWait  time.Duration     // and how long that waits from then
	Cleaned    bool              // nothing is left of the pod on the device, but for Files
	Files      *Leftover         // those that could not be removed; nil: none
	NUMA       map[string][]int  // its containers' NUMA nodes, of those that are aligned to some
	Unmeasured bool              // it has been said that it cannot be measured whole
	Told       string            // the last sentence said about why it waits
	Pending    *Verdict          // why it does not have the resources that it asks for
	Resizing   bool              // it was granted others, and may not have them yet
	Container  map[string]*ContainerRecord
}

// A Verdict ends a pod with phase Failed.
type Verdict struct{ Reason, Message string }

// RecordOf returns the record of a pod, making it.
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

// ContainerOf returns the record of a container, making it.
func (r *Record) ContainerOf(name string) *ContainerRecord {
	c := r.Container[name]
	if c == nil {
		c = &ContainerRecord{Attempt: -1}
		r.Container[name] = c
	}
	return c
}

// Peek returns the record of a container or an empty one, for reading only.
func (r *Record) Peek(name string) *ContainerRecord {
	if r != nil {
		if c := r.Container[name]; c != nil {
			return c
		}
	}
	return &ContainerRecord{Attempt: -1}
}

// InstanceOf reads the labels of a container that Made has kept; false for one of another agent.
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

// atWork tells whether anything of a pod runs, be it only the sandbox that has its
// ports, or may be about to.
func (o *Observed) atWork(uid types.UID) bool {
	return o.Stale || slices.ContainsFunc(o.Containers, func(in Instance) bool {
		return in.Place.Pod == uid && (in.State == engine.Running || in.State == engine.Paused)
	}) || slices.ContainsFunc(o.Busy, func(b Doing) bool { return b.Step.Place.Pod == uid && !b.Step.Action.RunsBeside() })
}

// Finished tells whether a pod has ended for good, and that is not noted yet.
func (o *Observed) Finished(pod *corev1.Pod, r *Record) bool {
	return r.Final == nil && !r.Cleaned && (pod.DeletionTimestamp == nil || r.Admitted) && !o.atWork(pod.UID) &&
		IsFinal(phaseOf(pod, r, o.Node.Boot))
}

// See takes in a new list of containers: what started, what ended, what is gone.
// Back-offs are counted from the moment of this call, for only that is on the
// agent's own clock: an engine's timestamps jump with the device's.
func (o *Observed) See(list []engine.Container, now time.Time) {
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
	// newest first within a place, so that the first one seen of a place is the one that counts
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
		r.Admitted = true // it has run here before: whatever would speak against it now, it is adopted
		r.Cleaned = false
		if sec, err := strconv.ParseInt(in.Labels[LabelPodStart], 10, 64); err == nil && r.Start.IsZero() {
			r.Start, r.Uptime = time.Unix(sec, 0), in.Labels[LabelPodUptime]
		}
		if r.NUMA == nil {
			r.NUMA = numaOf(in)
		}
		c := r.ContainerOf(in.Place.Container)
		switch {
		case (i == 0 || in.Place != at) && in.Attempt < c.Attempt: // older than one that has gone meanwhile
		case i == 0 || in.Place != at:
			c.see(in, now)
		case c.Last == nil && in.State != engine.Created:
			c.Last = terminated(in)
		}
		at = in.Place
	}
}

// Count finds out from when on the deadlines of pods count that an earlier agent has
// started. The boot id must be known.
func (o *Observed) Count(pods []corev1.Pod, now time.Time) {
	for i := range pods {
		if r := o.Pods[pods[i].UID]; r != nil && r.Counts.IsZero() && !r.Start.IsZero() {
			r.Counts = o.Node.since(r.Uptime, r.Start, pods[i].CreationTimestamp.Time, now)
		}
	}
}

// clockSkew is how far the clocks of a device and its hub may be apart, both being set.
const clockSkew = time.Minute

// since is the moment at which a pod started, on the monotonic clock: a clock that is set
// makes no pod older or younger. Of a pod from before a reboot only the wall clock tells;
// where that is behind its start, or was not set then, as the pod would have started before
// the hub made it, the pod starts now.
func (f Facts) since(uptime string, start, made, now time.Time) time.Time {
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

// A Leftover is a stopped container that the engine refuses to remove, because it is being removed
// already, say, or a mount of it is busy. It runs nothing, so it holds no pod: the pod ends without
// it, and its removal is tried again later and later. Files of a pod can be left over, too.
type Leftover struct {
	Instance
	Pod     *corev1.Pod // nil: the pod is not desired any more
	RetryAt time.Time
	Wait    time.Duration // until then, from the last try
}

// LeftoverWait is how long the first try again waits; each further wait is twice as long.
const LeftoverWait = 10 * time.Second

// HasStopped tells whether an instance is there and does not run.
func HasStopped(in Instance) bool {
	return in.State == engine.Exited || in.State == engine.Dead || in.State == engine.Created
}

// Reasons why a container could not be run.
const (
	FailedMount       = "FailedMount"
	DeviceUnavailable = "DeviceUnavailable" // of this program: Kubernetes' device plugins fail the pod instead
)

// HoldFailed is how long a step that failed waits before it is tried again.
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

// Awaiting are the reasons for which a container waits until something has come: then it is tried
// at once.
var Awaiting = []string{"CreateContainerConfigError", FailedMount, DeviceUnavailable}

// HasCome tries again at once what waits for something: it may have come.
func (o *Observed) HasCome() {
	for _, r := range o.Pods {
		r.StaleWait = min(r.StaleWait, HoldFailed)
		for _, c := range r.Container {
			if c.Failure != nil && slices.Contains(Awaiting, c.Failure.Reason) {
				c.RetryAt = time.Time{}
			}
		}
	}
}
