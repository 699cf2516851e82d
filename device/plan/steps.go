// Package plan decides what an agent does next. Steps compares the desired with the observed state,
// Observed.SetContainers records the engine's list, and Statuses computes the pods' statuses.
//
// It uses no clock, disk or network. So tests can state every rule as a row of a table, and a crash
// as one more initial state. Package agent calls it and runs the steps. Only package agent changes
// an Observed.
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
	busy      map[Place]RunningStep // Run, Stop, Remove, Clean and Refresh in progress
	probing   map[probePlace]bool
	hooking   map[Place]string               // id of the container whose postStart hook runs
	aligned   map[types.UID]map[string][]int // NUMA nodes of the pods admitted in this pass, see Record.NUMA

	regularPodRuns bool // during a shutdown: a pod that is not system-critical runs
}

type probePlace struct {
	Place
	kind podspec.ProbeKind
}

// Steps returns the steps that make the device run its desired state, and when to call it again if
// nothing changes. It does not change its arguments. Once its steps are done, it returns none
// until a state changes or wake has come.
//
// The rules are the kubelet's: a pod is admitted once; init containers run one after another, then
// the app containers; ended containers restart by policy with back-off; undesired pods stop within
// their grace period and are removed.
func Steps(d wire.Desired, o *Observed, now time.Time) (steps []Step, wake time.Time) {
	p := &pass{o: o, now: now, instances: map[types.UID][]Instance{}, busy: map[Place]RunningStep{},
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
	// Remove undesired pods first: other pods may wait for their resources.
	for i, in := range o.Containers {
		if uid := in.Place.Pod; !desired[uid] && (i == 0 || o.Containers[i-1].Place.Pod != uid) {
			p.removePod(uid, nil, orphanGrace(p.instances[uid]), "the pod is no longer desired on this node")
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(o.Pods)) {
		r := o.Pods[uid]
		if f := r.LeftFiles; f != nil && r.Cleaned {
			if f.RetryAt.After(now) {
				p.wakeAt(f.RetryAt)
			} else if len(p.instances[uid]) == 0 && !p.working(uid) {
				p.step(Step{Action: Clean, Place: Place{Pod: uid}, Pod: f.Pod})
			}
		} else if !desired[uid] && !r.Cleaned && len(p.instances[uid]) == 0 && !p.working(uid) {
			p.step(Step{Action: Clean, Place: Place{Pod: uid}})
		} else if !desired[uid] {
			p.cancel(uid, nil)
		}
	}
	p.retryLeftovers()
	p.regularPodRuns = o.Shutdown != nil && p.hasRegularPod(d.Pods)
	for _, pod := range byPriority(d.Pods) {
		p.pod(pod)
	}
	if o.Shutdown == nil {
		for _, pod := range p.admitPods(d.Pods) {
			p.pod(pod)
		}
	}
	sort.SliceStable(p.steps, func(i, j int) bool { return rank(p.steps[i]) < rank(p.steps[j]) })
	return p.steps, p.wake
}

// rank sorts steps that free resources before steps that need resources.
func rank(s Step) int {
	switch s.Action {
	case Cancel, Stop, Remove, Clean, Reject, Grant, Defer:
		return 0
	case Admit:
		return 1
	}
	return 2
}

// byPriority sorts pods by priority, age and name.
func byPriority(pods []corev1.Pod) []*corev1.Pod {
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

// pod adds the steps of one admitted or leaving pod.
func (p *pass) pod(pod *corev1.Pod) {
	r := p.o.Pods[pod.UID]
	switch {
	case isLeaving(pod, r) && (r.Final == nil || r.SavingFinal): // the final status must be stored first
		p.stopEnded(pod, podspec.Grace(pod), "the pod is being deleted")
		return
	case pod.DeletionTimestamp != nil:
		p.removePod(pod.UID, pod, podspec.Grace(pod), "the pod is being deleted")
		return
	case r == nil:
		return // the pod is not admitted yet
	case p.o.Shutdown != nil:
		p.shutDown(pod, r)
		return
	case r.Final != nil || r.Verdict != nil:
		why := "the pod has ended"
		if r.Verdict != nil {
			why = r.Verdict.Message
		}
		grace := podspec.Grace(pod)
		if r.MaxGrace != nil {
			grace = min(grace, *r.MaxGrace)
		}
		p.stopEnded(pod, grace, why)
		return
	case !r.Admitted:
		return
	}
	if IsFinal(phaseOf(pod, r, p.o.Node.Boot)) {
		p.stopEnded(pod, podspec.Grace(pod), "the pod has ended")
		return
	}
	if p.expired(pod, r) {
		p.step(Step{Action: Reject, Place: Place{Pod: pod.UID}, Pod: pod,
			Verdict: Verdict{"DeadlineExceeded", "Pod was active on the node longer than the specified deadline"}})
		return
	}
	if r.Volumes != p.o.Node.Generation && podspec.HasLiveVolumes(pod) && p.started(r) && p.free(Place{Pod: pod.UID}) &&
		p.reached(r.StaleAt.Add(r.StaleBackOff)) {
		p.step(Step{Action: Refresh, Place: Place{Pod: pod.UID}, Pod: pod, Generation: p.o.Node.Generation})
	}
	p.removeOld(pod)
	stopping := p.stopChanged(pod, r)
	want := p.wanted(pod, r)
	if podspec.NeedsSandbox(pod) && !p.sandbox(pod, r, want) {
		return
	}
	p.ephemerals(pod, r)
	network := ""
	if podspec.NeedsSandbox(pod) {
		network = r.Peek("").ID
	}
	for _, w := range want {
		at := Place{pod.UID, w.Spec.Name}
		if !p.free(at) || slices.Contains(stopping, w.Spec.Name) || !p.due(r.Peek(w.Spec.Name)) {
			continue
		}
		devices, lacks := p.assignDevices(at, w.Spec)
		cpus, exclusive, few := p.assignCPUs(at, pod, w.Spec)
		if lacks == "" {
			lacks = few
		}
		p.step(Step{Action: Run, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, Network: network, Start: r.Start,
			MonotonicStart: r.MonotonicStart,
			Attempt:        nextAttempt(r.Peek(w.Spec.Name)), Devices: devices, Missing: lacks, CPUs: cpus, Exclusive: exclusive,
			NUMA: r.NUMA})
	}
	p.updateContainers(pod, r, stopping)
	p.postStartHooks(pod, r)
	p.probes(pod, r)
}

// due reports whether a container may start now. If not, it sets the wake-up.
func (p *pass) due(c *ContainerRecord) bool {
	at := c.RetryAt
	if c.Ended != nil && c.RestartAt.After(at) {
		at = c.RestartAt
	}
	return p.reached(at)
}

// reached reports whether a time has come. If not, it sets the wake-up.
func (p *pass) reached(at time.Time) bool {
	if at.After(p.now) {
		p.wakeAt(at)
		return false
	}
	return true
}

// nextAttempt is the restart count of the next instance. An instance that never started does not
// count.
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

// sandbox creates the pod's sandbox if it is needed, and reports whether the containers may start.
// If the sandbox has ended, the containers that shared it are removed first. Ended containers that
// do not restart are kept, because only the engine records that they have ended.
func (p *pass) sandbox(pod *corev1.Pod, r *Record, want []podspec.Container) bool {
	box := r.Peek("")
	if box.Running() && sameBoot(box.Boot, p.o.Node.Boot) {
		return true
	}
	if len(want) == 0 && !HasRunning(r) {
		return true // the sandbox is no longer needed
	}
	if box.ID == "" && podspec.HasOneContainer(pod) && !podspec.SharesProcesses(pod) && HasRunning(r) {
		return true // do not restart a pod only because an earlier version gave it no sandbox
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
			MonotonicStart: r.MonotonicStart, NUMA: r.NUMA})
	}
	return false
}

// spent lists the ids of a pod's app and ephemeral containers that have ended and do not restart.
func spent(pod *corev1.Pod, r *Record) (ids []string) {
	for _, w := range slices.Concat(podspec.Containers(pod), podspec.Ephemerals(pod)) {
		if c := r.Peek(w.Spec.Name); c.ID != "" && c.Ended != nil &&
			(w.Kind == podspec.KindEphemeral || w.Kind == podspec.KindApp && !restarts(pod, w, c)) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// HasRunning reports whether a container of a pod, other than its sandbox, runs.
func HasRunning(r *Record) bool {
	for name, c := range r.Container {
		if name != "" && c.Running() {
			return true
		}
	}
	return false
}

// working reports whether a step of the pod is in progress.
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

// wakeAt requests the next call at t.
func (p *pass) wakeAt(t time.Time) {
	if p.wake.IsZero() || t.Before(p.wake) {
		p.wake = t
	}
}
