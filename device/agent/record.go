package agent

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
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
	bootTime        = 2 * time.Minute               // in which a device has its addresses, or has none
	maxMountBackOff = 2*time.Minute + 2*time.Second // as the kubelet's for what a volume needs
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
	CPUs        cpuSet // of the device; empty: not known
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

// A ContainerRecord is what the agent remembers of one container of a pod. Moments
// in it are taken when the agent noticed, so that they are on its monotonic clock.
type ContainerRecord struct {
	ID      string // newest instance; "" where none is known
	State   engine.State
	Attempt int // of the newest instance
	Hash    string
	Boot    string
	IP      string
	Network string // id of the container whose network it has; "": its own, or not known
	ImageID string
	Image   string
	Limits  engine.Limits // what the engine said at first, and what it was told since
	Unsure  bool          // whether they still are
	Refused *refusal

	StartedAt time.Time // the engine's clock, to show
	Since     time.Time // running since
	Ended     *corev1.ContainerStateTerminated
	Last      *corev1.ContainerStateTerminated // of the instance before

	Delay     time.Duration // the next crash waits this long
	Waits     time.Duration // from the last crash to ReleaseAt
	ReleaseAt time.Time     // no restart before
	Crashing  bool          // it waits because it crashed

	Failure  *Verdict // why it could not be run
	Failures int
	RetryAt  time.Time

	Probe [podspec.ProbeKinds]ProbeRecord
	Kill  string // why it is being stopped although it is wanted

	PostStarted bool   // its hook has ended
	HookError   string // and how it failed
}

// Running tells whether the newest instance runs.
func (c *ContainerRecord) Running() bool {
	return c.State == engine.Running || c.State == engine.Paused
}

// record returns the record of a pod, making it.
func (o *Observed) record(uid types.UID) *Record {
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

// container returns the record of a container, making it.
func (r *Record) container(name string) *ContainerRecord {
	c := r.Container[name]
	if c == nil {
		c = &ContainerRecord{Attempt: -1}
		r.Container[name] = c
	}
	return c
}

// peek returns the record of a container or an empty one, for reading only.
func (r *Record) peek(name string) *ContainerRecord {
	if r != nil {
		if c := r.Container[name]; c != nil {
			return c
		}
	}
	return &ContainerRecord{Attempt: -1}
}

// ours reads the labels of a container that Made has kept; false for one of another agent.
func ours(c engine.Container, node Facts) (Instance, bool) {
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
	}) || slices.ContainsFunc(o.Busy, func(b Doing) bool { return b.Step.Place.Pod == uid && !b.Step.Action.aside() })
}

// finished tells whether a pod has ended for good, and that is not noted yet.
func (o *Observed) finished(pod *corev1.Pod, r *Record) bool {
	return r.Final == nil && !r.Cleaned && (pod.DeletionTimestamp == nil || r.Admitted) && !o.atWork(pod.UID) && ended(phaseOf(pod, r, o.Node.Boot))
}

// See takes in a new list of containers: what started, what ended, what is gone.
// Back-offs are counted from the moment of this call, for only that is on the
// agent's own clock: an engine's timestamps jump with the device's.
func (o *Observed) See(list []engine.Container, now time.Time) {
	o.Containers = o.Containers[:0:0]
	var left []Leftover
	for _, c := range list {
		in, ok := ours(c, o.Node)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(o.Leftovers, func(l Leftover) bool { return l.ID == in.ID }); i >= 0 && hasStopped(in) {
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
		r := o.record(in.Place.Pod)
		r.Admitted = true // it has run here before: whatever would speak against it now, it is adopted
		r.Cleaned = false
		if sec, err := strconv.ParseInt(in.Labels[LabelPodStart], 10, 64); err == nil && r.Start.IsZero() {
			r.Start, r.Uptime = time.Unix(sec, 0), in.Labels[LabelPodUptime]
		}
		if r.NUMA == nil {
			r.NUMA = numaOf(in)
		}
		c := r.container(in.Place.Container)
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

// count finds out from when on the deadlines of pods count that an earlier agent has
// started. The boot id must be known.
func (o *Observed) count(pods []corev1.Pod, now time.Time) {
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

// see takes in the newest instance of a container.
func (c *ContainerRecord) see(in Instance, now time.Time) {
	if in.IP != "" || in.ID != c.ID { // engines forget it with the end, the pod keeps it
		c.IP = in.IP
	}
	if in.ID != c.ID {
		if c.Ended != nil {
			c.Last = c.Ended
		}
		if c.Hash != "" && c.Hash != in.Hash {
			c.Delay = 0 // another definition: its own crashes only
		}
		c.Limits, c.Unsure, c.Refused = in.Limits, false, nil
		c.ID, c.Ended, c.Since, c.Kill, c.Crashing, c.PostStarted, c.HookError = in.ID, nil, time.Time{}, "", false, false, ""
		c.Probe = [podspec.ProbeKinds]ProbeRecord{}
		if in.State != engine.Created {
			c.Failure, c.Failures = nil, 0
		}
	}
	c.Attempt, c.Hash, c.Boot = in.Attempt, in.Hash, in.Boot
	c.ImageID, c.Image, c.StartedAt = in.ImageID, in.Image, in.StartedAt
	c.Network, _, _ = strings.Cut(in.Labels[LabelShares], " ")
	c.State = in.State
	switch in.State {
	case engine.Running, engine.Paused:
		if c.Ended != nil { // somebody has started it again
			c.Last, c.Ended, c.Since = c.Ended, nil, now
		}
		if c.Since.IsZero() {
			c.Since = now.Add(-min(max(now.Sub(in.StartedAt), 0), time.Hour))
		}
	case engine.Exited, engine.Dead:
		if c.Ended == nil {
			c.end(terminated(in), now)
		}
	}
}

// end notes that the newest instance has ended, and how long its successor waits.
func (c *ContainerRecord) end(t *corev1.ContainerStateTerminated, now time.Time) {
	c.Ended = t
	if t.FinishedAt.IsZero() { // nobody has seen it
		t.FinishedAt = metav1.NewTime(now)
	}
	if !c.Since.IsZero() && now.Sub(c.Since) >= fleet.ForgiveAfter {
		c.Delay = 0
	}
	c.ReleaseAt, c.Crashing, c.Waits = now.Add(c.Delay), c.Delay > 0, c.Delay
	c.Delay = fleet.NextBackOff(c.Delay)
}

// gone notes that somebody has removed the newest instance.
func (c *ContainerRecord) gone(now time.Time) {
	if c.Running() && c.Ended == nil {
		c.end(&corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located: it was removed from outside.",
			StartedAt: metav1.NewTime(c.StartedAt), FinishedAt: metav1.NewTime(now), ContainerID: c.ID,
		}, now)
	}
	c.State, c.IP = engine.Exited, ""
	if c.Ended == nil { // it never started
		c.State = ""
	}
	c.ID = ""
}

// terminated is how an ended instance ended, in the kubelet's words.
func terminated(in Instance) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: int32(in.ExitCode), Message: in.Error, ContainerID: in.ID,
		StartedAt: metav1.NewTime(in.StartedAt), FinishedAt: metav1.NewTime(in.FinishedAt),
	}
	switch {
	case in.OOMKilled:
		t.Reason = "OOMKilled"
	case in.ExitCode == 0:
		t.Reason = "Completed"
	default:
		t.Reason = "Error"
	}
	if n := in.ExitCode - 128; n > 0 && n < 65 {
		t.Signal = int32(n)
	}
	return t
}
