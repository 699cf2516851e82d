// Package plan decides what an agent does next. Steps compares what is desired of a device with
// what was observed on it and says what to do; See takes in what the engine lists; Statuses says
// how the pods are. All of it is pure: no clock, no disk, no network, so that every rule is a table
// row and a crash at any moment is only another state to start from. Package agent takes the steps,
// and is the only one that changes an Observed.
package plan

import (
	"maps"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// A pass is one call of Steps.
type pass struct {
	o     *Observed
	now   time.Time
	steps []Step
	wake  time.Time

	instances map[types.UID][]Instance
	busy      map[Place]Doing // Run, Stop, Remove, Clean, Refresh
	probing   map[probePlace]bool
	hooking   map[Place]string               // container whose postStart hook runs
	aligned   map[types.UID]map[string][]int // of the pods that this pass admits, see Record.NUMA

	regularRun bool // while the device goes down: a pod runs that the system can do without
}

type probePlace struct {
	Place
	kind podspec.ProbeKind
}

// Steps says what is to be done so that the device runs what is desired, and when
// to ask again although nothing has happened. It depends on nothing but its
// arguments and changes none of them; asked again after its steps have been taken,
// it wants nothing.
//
// The rules are the kubelet's: a pod is admitted once; its init containers run one
// after the other, then all others; what ends is started again by the restart
// policy, later and later; what is no longer desired is stopped with its grace and
// removed. Containers that are not the agent's own are not in what it observes.
func Steps(d wire.Desired, o *Observed, now time.Time) (steps []Step, wake time.Time) {
	p := &pass{o: o, now: now, instances: map[types.UID][]Instance{}, busy: map[Place]Doing{},
		probing: map[probePlace]bool{}, hooking: map[Place]string{}, aligned: map[types.UID]map[string][]int{}}
	for _, in := range o.Containers {
		p.instances[in.Place.Pod] = append(p.instances[in.Place.Pod], in)
	}
	for _, b := range o.Busy {
		if b.Step.Action == Probe {
			p.probing[probePlace{b.Step.Place, b.Step.Probe}] = true
		} else if b.Step.Action == Hook {
			p.hooking[b.Step.Place] = b.Step.ID
		} else if old, ok := p.busy[b.Step.Place]; !ok || deadline(b).Before(deadline(old)) {
			p.busy[b.Step.Place] = b
		}
	}
	desired := make(map[types.UID]bool, len(d.Pods))
	for i := range d.Pods {
		desired[d.Pods[i].UID] = true
	}
	// What is to go goes first: it frees what others wait for.
	for i, in := range o.Containers {
		if uid := in.Place.Pod; !desired[uid] && (i == 0 || o.Containers[i-1].Place.Pod != uid) {
			p.windDown(uid, nil, orphanGrace(p.instances[uid]), "the pod is no longer desired on this node")
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(o.Pods)) {
		r := o.Pods[uid]
		if f := r.Files; f != nil && r.Cleaned {
			if f.RetryAt.After(now) {
				p.at(f.RetryAt)
			} else if len(p.instances[uid]) == 0 && !p.working(uid) {
				p.step(Step{Action: Clean, Place: Place{Pod: uid}, Pod: f.Pod})
			}
		} else if !desired[uid] && !r.Cleaned && len(p.instances[uid]) == 0 && !p.working(uid) {
			p.step(Step{Action: Clean, Place: Place{Pod: uid}})
		} else if !desired[uid] {
			p.cancel(uid, nil)
		}
	}
	p.leftovers()
	p.regularRun = o.Shutdown != nil && p.regularRuns(d.Pods)
	for _, pod := range inOrder(d.Pods) {
		p.pod(pod)
	}
	if o.Shutdown == nil {
		for _, pod := range p.admissions(d.Pods) {
			p.pod(pod)
		}
	}
	sort.SliceStable(p.steps, func(i, j int) bool { return rank(p.steps[i]) < rank(p.steps[j]) })
	return p.steps, p.wake
}

// rank puts the steps that free something before those that take something.
func rank(s Step) int {
	switch s.Action {
	case Cancel, Stop, Remove, Clean, Reject, Grant, Defer:
		return 0
	case Admit:
		return 1
	}
	return 2
}

// inOrder sorts pods by priority, then by age, then by name.
func inOrder(pods []corev1.Pod) []*corev1.Pod {
	out := make([]*corev1.Pod, len(pods))
	for i := range pods {
		out[i] = &pods[i]
	}
	sort.SliceStable(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if pa, pb := podspec.Priority(a), podspec.Priority(b); pa != pb {
			return pa > pb
		}
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c < 0
		}
		return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
	})
	return out
}

// pod says what one admitted, or leaving, pod needs.
func (p *pass) pod(pod *corev1.Pod) {
	r := p.o.Pods[pod.UID]
	switch {
	case leaves(pod, r) && (r.Final == nil || r.Noting): // how it ended is journaled before anything of it is removed
		p.halt(pod, podspec.Grace(pod), "the pod is being deleted")
		return
	case pod.DeletionTimestamp != nil:
		p.windDown(pod.UID, pod, podspec.Grace(pod), "the pod is being deleted")
		return
	case r == nil:
		return // not admitted yet
	case p.o.Shutdown != nil:
		p.shutDown(pod, r)
		return
	case r.Final != nil || r.Verdict != nil:
		why := "the pod has ended"
		if r.Verdict != nil {
			why = r.Verdict.Message
		}
		grace := podspec.Grace(pod)
		if r.Within != nil {
			grace = min(grace, *r.Within)
		}
		p.halt(pod, grace, why)
		return
	case !r.Admitted:
		return
	}
	if IsFinal(phaseOf(pod, r, p.o.Node.Boot)) {
		p.halt(pod, podspec.Grace(pod), "the pod has ended")
		return
	}
	if p.expired(pod, r) {
		p.step(Step{Action: Reject, Place: Place{Pod: pod.UID}, Pod: pod,
			Verdict: Verdict{"DeadlineExceeded", "Pod was active on the node longer than the specified deadline"}})
		return
	}
	if r.Volumes != p.o.Node.Generation && podspec.HasLiveVolumes(pod) && p.started(r) && p.free(Place{Pod: pod.UID}) &&
		p.reached(r.StaleAt.Add(r.StaleWait)) {
		p.step(Step{Action: Refresh, Place: Place{Pod: pod.UID}, Pod: pod, Generation: p.o.Node.Generation})
	}
	p.tidy(pod)
	stopping := p.replace(pod, r)
	want := p.wanted(pod, r)
	if podspec.NeedsSandbox(pod) && !p.sandbox(pod, r, want) {
		return
	}
	p.debug(pod, r)
	network := ""
	if podspec.NeedsSandbox(pod) {
		network = r.Peek("").ID
	}
	for _, w := range want {
		at := Place{pod.UID, w.Spec.Name}
		if !p.free(at) || slices.Contains(stopping, w.Spec.Name) || !p.due(r.Peek(w.Spec.Name)) {
			continue
		}
		devices, lacks := p.assign(at, w.Spec)
		cpus, exclusive, few := p.processors(at, pod, w.Spec)
		if lacks == "" {
			lacks = few
		}
		p.step(Step{Action: Run, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, Network: network, Start: r.Start,
			Counts:  r.Counts,
			Attempt: nextAttempt(r.Peek(w.Spec.Name)), Devices: devices, Lacks: lacks, CPUs: cpus, Exclusive: exclusive,
			NUMA: r.NUMA})
	}
	p.updates(pod, r, stopping)
	p.starts(pod, r)
	p.probes(pod, r)
}

// due tells whether a container may be started now; if not, p wakes when it may.
func (p *pass) due(c *ContainerRecord) bool {
	at := c.RetryAt
	if c.Ended != nil && c.ReleaseAt.After(at) {
		at = c.ReleaseAt
	}
	return p.reached(at)
}

// reached tells whether a moment has come; if not, p wakes when it does.
func (p *pass) reached(at time.Time) bool {
	if at.After(p.now) {
		p.at(at)
		return false
	}
	return true
}

// nextAttempt is the restart count of the next instance; one that was made and
// never started does not count.
func nextAttempt(c *ContainerRecord) int {
	if c.State == engine.Created && c.Ended == nil {
		return c.Attempt
	}
	return c.Attempt + 1
}

func (p *pass) started(r *Record) bool {
	for _, c := range r.Container {
		if c.ID != "" {
			return true
		}
	}
	return false
}

// sandbox sees to it that the pod's network is there where something needs it, and tells whether it
// is. When it has died, everything that shared it goes first: a container cannot move to another
// network. What has ended for good stays, with the network that it had, and whose processes it saw:
// nothing else would tell that it is not to run again.
func (p *pass) sandbox(pod *corev1.Pod, r *Record, want []podspec.Container) bool {
	box := r.Peek("")
	if box.Running() && sameBoot(box.Boot, p.o.Node.Boot) {
		return true
	}
	if len(want) == 0 && !HasRunning(r) {
		return true // nothing needs it any more
	}
	if box.ID == "" && podspec.HasOneContainer(pod) && !podspec.SharesProcesses(pod) && HasRunning(r) {
		return true // an earlier version has started it without: it is not restarted for the sake of a variable
	}
	others, spent := 0, spent(pod, r)
	for _, in := range p.instances[pod.UID] {
		if in.Place.Container == "" || in.State == engine.Exited && slices.Contains(spent, in.ID) ||
			(in.State == engine.Exited || in.State == engine.Dead) && IsShared(p.instances[pod.UID], in) {
			continue
		}
		others++
		p.remove(in, pod, podspec.Grace(pod), "the pod's network has gone")
	}
	at := Place{Pod: pod.UID}
	switch {
	case others > 0 || !p.free(at):
	case box.ID != "" && box.State != engine.Created && len(spent) == 0:
		for _, in := range p.instances[pod.UID] {
			p.remove(in, pod, 0, "the pod's network has gone")
		}
	case p.due(box):
		p.step(Step{Action: Run, Place: at, Pod: pod, Kind: podspec.KindSandbox, Attempt: nextAttempt(box), Start: r.Start,
			Counts: r.Counts, NUMA: r.NUMA})
	}
	return false
}

// spent lists the ids of the app containers of a pod that have ended and are not started again, and
// of the ephemeral ones.
func spent(pod *corev1.Pod, r *Record) (ids []string) {
	for _, w := range slices.Concat(podspec.Containers(pod), podspec.Ephemerals(pod)) {
		if c := r.Peek(w.Spec.Name); c.ID != "" && c.Ended != nil &&
			(w.Kind == podspec.KindEphemeral || w.Kind == podspec.KindApp && !restarts(pod, w, c)) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// HasRunning tells whether a container of a pod runs, beside its sandbox.
func HasRunning(r *Record) bool {
	for name, c := range r.Container {
		if name != "" && c.Running() {
			return true
		}
	}
	return false
}

// working tells whether any step of the pod is in flight or wanted.
func (p *pass) working(uid types.UID) bool {
	for place := range p.busy {
		if place.Pod == uid {
			return true
		}
	}
	return false
}

func (p *pass) free(at Place) bool {
	_, busy := p.busy[at]
	return !busy
}

func (p *pass) step(s Step) { p.steps = append(p.steps, s) }

// at asks to be asked again at t.
func (p *pass) at(t time.Time) {
	if p.wake.IsZero() || t.Before(p.wake) {
		p.wake = t
	}
}
