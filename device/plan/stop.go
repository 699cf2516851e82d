package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

const podGrace = time.Second // shortest grace period of an ending pod, for its preStop hooks

// stopChanged stops the containers that must be replaced: the definition has changed, a probe has
// failed, a device has moved, or the pod's network was replaced. It returns their names.
func (p *pass) stopChanged(pod *corev1.Pod, r *Record) []string {
	var names []string
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		why := c.KillReason
		switch hash := specHash(w.Spec); {
		case !c.Running() || c.Hash == hash || strings.HasPrefix(hash, c.Hash+"-"): // see restartHash
		case resized(c.Hash, w.Spec):
			why = fmt.Sprintf("Container %s resize requires restart", w.Spec.Name)
		default:
			why = fmt.Sprintf("Container %s definition changed, will be restarted", w.Spec.Name)
		}
		for _, in := range p.instances[pod.UID] {
			if moved := p.movedDevice(in); why == "" && in.ID == c.ID && moved != "" &&
				podspec.RestartPolicy(pod, w) != corev1.RestartPolicyNever {
				why = fmt.Sprintf("Container %s will be restarted: its device %s", w.Spec.Name, moved)
			}
			if why == "" && in.ID == c.ID && p.hasLostNetwork(in) && (podspec.IsSidecar(w) || w.Kind == podspec.KindApp &&
				podspec.RestartPolicy(pod, w) == corev1.RestartPolicyAlways) {
				why = fmt.Sprintf("Container %s will be restarted: the pod's network was replaced", w.Spec.Name)
			}
		}
		if why == "" || !c.Running() {
			continue
		}
		names = append(names, w.Spec.Name)
		for _, in := range p.instances[pod.UID] {
			if in.ID == c.ID {
				p.stop(in, pod, w.Spec, probeGrace(pod, w.Spec, c), why)
			}
		}
	}
	return names
}

// hasLostNetwork reports whether a container is in an old network of its pod. This happens if
// another client restarts all containers, the sandbox last. Network and start time must both
// differ, because programs may enter other networks and clocks change.
func (p *pass) hasLostNetwork(in Instance) bool {
	owner, _, _ := strings.Cut(in.Labels[LabelShares], " ")
	return in.Net != "" && slices.ContainsFunc(p.instances[in.Place.Pod], func(box Instance) bool {
		return box.ID == owner && box.Net != "" && box.Net != in.Net && in.StartedAt.Before(box.StartedAt)
	})
}

// removeOld removes instances older than the previous one, whose log is still readable. A running
// instance is stopped first, because two instances must not write to one volume. An instance whose
// network others share stays.
func (p *pass) removeOld(pod *corev1.Pod) {
	var at Place
	n := 0
	for i, in := range p.instances[pod.UID] {
		if i == 0 || in.Place != at {
			at, n = in.Place, 0
		}
		switch n++; {
		case n == 1:
		case IsRunning(in):
			if !slices.ContainsFunc(p.instances[pod.UID], func(other Instance) bool {
				return IsRunning(other) && IsShared([]Instance{other}, in)
			}) {
				p.stop(in, pod, podspec.Find(pod, at.Container), podspec.Grace(pod),
					"an older instance of the container runs beside it")
			}
		case n > 2 || in.State == engine.Created:
			p.remove(in, pod, 0, "an older instance of the container is left over")
		}
	}
}

// stopEnded stops the running containers of an ended pod. The stopped containers stay, for their
// logs, until the pod is deleted.
func (p *pass) stopEnded(pod *corev1.Pod, grace time.Duration, why string) {
	grace = max(grace, podGrace)
	p.cancel(pod.UID, pod)
	others := false
	for _, in := range p.instances[pod.UID] {
		if in.Place.Container != "" && !HasStopped(in) {
			others = true
			p.stop(in, pod, podspec.Find(pod, in.Place.Container), grace, why, p.stopsBefore(in, pod)...)
		}
	}
	for _, in := range p.instances[pod.UID] {
		if in.Place.Container == "" && !others && IsRunning(in) {
			p.stop(in, pod, nil, grace, why)
		}
	}
}

// removePod stops and removes a pod's containers, sandbox and directory.
func (p *pass) removePod(uid types.UID, pod *corev1.Pod, grace time.Duration, why string) {
	grace = max(grace, podGrace)
	p.cancel(uid, pod)
	others := 0
	for _, in := range p.instances[uid] {
		if in.Place.Container != "" {
			others++
			p.remove(in, pod, grace, why)
		}
	}
	for _, in := range p.instances[uid] {
		if in.Place.Container == "" && others == 0 {
			p.remove(in, pod, grace, why)
		}
	}
	if r := p.o.Pods[uid]; len(p.instances[uid]) == 0 && !p.working(uid) && (r == nil || !r.Cleaned) && pod != nil {
		p.step(Step{Action: Clean, Place: Place{Pod: uid}, Pod: pod})
	}
}

// remove stops and removes an instance.
func (p *pass) remove(in Instance, pod *corev1.Pod, grace time.Duration, why string) {
	if IsRunning(in) {
		p.stop(in, pod, podspec.Find(pod, in.Place.Container), grace, why, p.stopsBefore(in, pod)...)
	} else if p.free(in.Place) && !IsShared(p.instances[in.Place.Pod], in) {
		p.step(Step{Action: Remove, Place: in.Place, Pod: pod, Kind: in.Kind, ID: in.ID, Attempt: in.Attempt, Why: why})
		p.busy[in.Place] = RunningStep{Since: p.now}
	}
}

// stop stops an instance after the containers that must stop earlier, or shortens the grace period
// of a stop in progress.
func (p *pass) stop(in Instance, pod *corev1.Pod, spec *corev1.Container, grace time.Duration, why string,
	after ...string) {
	b, busy := p.busy[in.Place]
	if busy && (b.Step.Action != Stop || b.Step.ID != in.ID || !p.now.Add(grace).Before(deadline(b).Add(-time.Second))) {
		return
	}
	ip := in.IP
	if pod != nil && ip == "" {
		ip = PodIP(pod, p.o.Pods[pod.UID], p.o.Node)
	}
	s := Step{Action: Stop, Place: in.Place, Pod: pod, Spec: spec, Kind: in.Kind, ID: in.ID, IP: ip, Grace: grace,
		Why: why, StopAfter: after}
	p.step(s)
	p.busy[in.Place] = RunningStep{Step: s, Since: p.now}
}

func deadline(b RunningStep) time.Time { return b.Since.Add(b.Step.Grace) }

// cancel cancels the runs of a pod, because a pull may take an hour.
func (p *pass) cancel(uid types.UID, pod *corev1.Pod) {
	for _, b := range p.o.Busy {
		if b.Step.Place.Pod == uid && (b.Step.Action == Run || b.Step.Action == Hook) {
			p.step(Step{Action: Cancel, Place: b.Step.Place, Pod: pod, Kind: b.Step.Kind})
		}
	}
}

// As with the kubelet (KEP-753), an ending pod stops its sidecars last, because they serve the
// other containers until those have ended. The sidecars' preStop hooks begin at once, and their
// waiting time is part of the grace period. At its end they are stopped anyway.

// stopsBefore lists the running containers of a pod that end before a sidecar: app containers, and
// later sidecars. For an unknown pod only the labels are used.
func (p *pass) stopsBefore(in Instance, pod *corev1.Pod) (ids []string) {
	if in.Kind != podspec.KindInit {
		return nil
	}
	last := map[string]bool{}
	if pod != nil {
		i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == in.Place.Container })
		if i < 0 || !podspec.IsSidecar(podspec.Container{Spec: &pod.Spec.InitContainers[i], Kind: podspec.KindInit}) {
			return nil
		}
		for j := range pod.Spec.InitContainers[i+1:] {
			if w := (podspec.Container{Spec: &pod.Spec.InitContainers[i+1+j], Kind: podspec.KindInit}); podspec.IsSidecar(w) {
				last[w.Spec.Name] = true
			}
		}
	}
	for _, other := range p.instances[in.Place.Pod] {
		if IsRunning(other) &&
			(other.Kind == podspec.KindApp || last[other.Place.Container]) {
			ids = append(ids, other.ID)
		}
	}
	return ids
}

// A PodShutdown is the end of the pods before the device shuts down, as with the kubelet: normal
// pods end until Regular, then system-critical pods until Critical. Pods that always restart run
// again after the boot; the others have the phase Failed.
type PodShutdown struct{ Regular, Critical time.Time }

const (
	nodeShutdown    = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
)

// IsRunning reports whether an instance runs or is paused.
func IsRunning(in Instance) bool { return in.State == engine.Running || in.State == engine.Paused }

// shutDown stops a pod for the device's shutdown.
func (p *pass) shutDown(pod *corev1.Pod, r *Record) {
	until := p.o.Shutdown.Regular
	if podspec.Priority(pod) >= podspec.SystemCritical {
		if p.regularPodRuns && p.now.Before(until) {
			p.wakeAt(until)
			return
		}
		until = p.o.Shutdown.Critical
	}
	if r.Verdict == nil && r.Final == nil && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways &&
		!IsFinal(phaseOf(pod, r, p.o.Node.Boot)) {
		p.step(Step{Action: Reject, Place: Place{Pod: pod.UID}, Pod: pod, Verdict: Verdict{nodeShutdown, shutdownMessage}})
	}
	p.stopEnded(pod, max(min(podspec.Grace(pod), until.Sub(p.now)), 0), "the device is shutting down")
}

// hasRegularPod reports whether a pod that is not system-critical runs.
func (p *pass) hasRegularPod(pods []corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
		return podspec.Priority(&pod) < podspec.SystemCritical && slices.ContainsFunc(p.instances[pod.UID], IsRunning)
	})
}

// retryLeftovers repeats the removal of the leftovers.
func (p *pass) retryLeftovers() {
	for _, l := range p.o.Leftovers {
		switch {
		case !p.free(l.Place):
		case l.RetryAt.After(p.now):
			p.wakeAt(l.RetryAt)
		default:
			p.step(Step{Action: Remove, Place: l.Place, Pod: l.Pod, Kind: l.Kind, ID: l.ID, Attempt: l.Attempt,
				Why: "the engine refused to remove it before"})
			p.busy[l.Place] = RunningStep{Since: p.now}
		}
	}
}
