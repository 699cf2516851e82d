package agent

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

// A PodShutdown is the end of the pods before the device goes down, in two parts as with the kubelet: until Regular the
// pods end, then those that the system needs, until Critical. Pods that are always restarted come back after the boot, the
// others have Failed.
type PodShutdown struct{ Regular, Critical time.Time }

const (
	nodeShutdown    = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
)

// StopPods stops the pods within a time, of which critical is kept for those that the system needs, and returns when none
// runs, or the time is over. The node is not ready until StartPods.
func (a *Agent) StopPods(ctx context.Context, total, critical time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, total)
	defer cancel()
	a.say("node is shutting down")
	done := make(chan struct{})
	a.post(func() {
		now := time.Now()
		a.loop.o.Shutdown, a.loop.stopped = &PodShutdown{now.Add(total - critical), now.Add(total)}, done
	})
	select {
	case <-done:
	case <-ctx.Done():
	case <-a.ended:
	}
}

// StartPods runs the pods again: the device does not go down after all.
func (a *Agent) StartPods() {
	a.say("")
	a.post(func() { a.loop.o.Shutdown, a.loop.stopped = nil, nil })
}

// say makes the node not ready for a reason, or ready again.
func (a *Agent) say(why string) {
	a.Shutdown(why)
	a.told.Lock()
	hub := a.told.hub
	a.told.Unlock()
	if hub != nil {
		hub.StatusChanged()
	}
}

// haveStopped tells StopPods that no container runs or is about to.
func (l *loop) haveStopped() {
	if l.stopped == nil || slices.ContainsFunc(l.o.Containers, isRunning) || slices.ContainsFunc(l.o.Busy, func(b Doing) bool { return !b.Step.Action.aside() }) {
		return
	}
	close(l.stopped)
	l.stopped = nil
}

func isRunning(in Instance) bool { return in.State == engine.Running || in.State == engine.Paused }

// shutDown stops a pod because the device goes down.
func (p *pass) shutDown(pod *corev1.Pod, r *Record) {
	until := p.o.Shutdown.Regular
	if podspec.Priority(pod) >= podspec.SystemCritical {
		if p.regularRun && p.now.Before(until) {
			p.at(until)
			return
		}
		until = p.o.Shutdown.Critical
	}
	if r.Verdict == nil && r.Final == nil && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && !ended(phaseOf(pod, r, p.o.Node.Boot)) {
		p.step(Step{Action: Reject, Place: Place{Pod: pod.UID}, Pod: pod, Verdict: Verdict{nodeShutdown, shutdownMessage}})
	}
	p.halt(pod, max(min(podspec.Grace(pod), until.Sub(p.now)), 0), "the device is shutting down")
}

// regularRuns tells whether a pod runs that the system can do without.
func (p *pass) regularRuns(pods []corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
		return podspec.Priority(&pod) < podspec.SystemCritical && slices.ContainsFunc(p.instances[pod.UID], isRunning)
	})
}
