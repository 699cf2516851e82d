package plan

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/probe"
)

// A ProbeRecord is where a probe of a running container stands. As with the kubelet (KEP-4781)
// whoever has passed a startup or readiness probe under an agent before this one has passed it: see
// noteProbe.
type ProbeRecord struct {
	Next      time.Time // when it is due; zero: not scheduled yet
	Successes int32     // in a row
	Failures  int32     // in a row
	Passed    bool      // the success threshold has been reached, and the failure threshold not since
	Failed    bool      // the failure threshold has been reached
}

// startedUp tells whether a running container has passed its startup probe, if it has one.
func startedUp(spec *corev1.Container, c *ContainerRecord) bool {
	return c.Running() && !starting(spec, c) && (spec.StartupProbe == nil || c.Probe[podspec.Startup].Passed)
}

// isReady tells whether a container is ready to serve.
func isReady(spec *corev1.Container, c *ContainerRecord) bool {
	return startedUp(spec, c) && c.State != engine.Paused && c.Kill == "" &&
		(spec.ReadinessProbe == nil || c.Probe[podspec.Readiness].Passed)
}

// probes wants the probes of a pod's running containers that are due. Until the
// startup probe has passed, the others wait.
func (p *pass) probes(pod *corev1.Pod, r *Record) {
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		at := Place{pod.UID, w.Spec.Name}
		if !c.Running() || starting(w.Spec, c) || c.Kill != "" || !p.free(at) {
			continue
		}
		for k := podspec.Startup; k < podspec.ProbeKinds; k++ {
			pr := podspec.ProbeOf(w.Spec, k)
			if pr == nil || k == podspec.Startup && c.Probe[podspec.Startup].Passed || k != podspec.Startup &&
				!startedUp(w.Spec, c) {
				continue
			}
			due := c.Probe[k].Next
			if due.IsZero() {
				due = c.Since.Add(time.Duration(pr.InitialDelaySeconds) * time.Second)
			}
			switch {
			case p.probing[probePlace{at, k}]:
			case due.After(p.now):
				p.at(due)
			default:
				p.step(Step{Action: Probe, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, ID: c.ID, IP: PodIP(pod, r, p.o.Node),
					Probe: k})
			}
		}
	}
}

var errPaused = errors.New(
	"the container is paused; unpause it on the device with its container engine, such as docker unpause")

// Probed takes in the result of a probe and returns the sentence to tell, if any.
// Thresholds are the kubelet's: a liveness or startup probe that fails often enough
// condemns the container; a readiness probe only takes it out of service. That the engine
// could not be asked, or the probe not be made, says nothing of the container.
func (c *ContainerRecord) Probed(s Step, err error, now time.Time) (told string) {
	pr := podspec.ProbeOf(s.Spec, s.Probe)
	if pr == nil || c.ID != s.ID || !c.Running() {
		return ""
	}
	rec := &c.Probe[s.Probe]
	rec.Next = now.Add(time.Duration(podspec.OrDefault(pr.PeriodSeconds, 10)) * time.Second)
	// the kernel accepts connections for it all the same
	if c.State == engine.Paused && !errors.Is(err, engine.ErrUnavailable) {
		err = errPaused
	}
	var unmade *probe.Error
	switch {
	case errors.Is(err, engine.ErrUnavailable):
		return ""
	case errors.As(err, &unmade):
		return fmt.Sprintf("%s probe errored and resulted in unknown state: %v", s.Probe, err)
	}
	if err == nil {
		rec.Successes, rec.Failures = rec.Successes+1, 0
		if rec.Successes >= podspec.OrDefault(pr.SuccessThreshold, 1) {
			rec.Passed, rec.Failed = true, false
		}
		return ""
	}
	rec.Successes, rec.Failures = 0, rec.Failures+1
	if rec.Failures >= podspec.OrDefault(pr.FailureThreshold, 3) {
		rec.Passed, rec.Failed = false, true
		if s.Probe != podspec.Readiness {
			c.Kill = fmt.Sprintf("Container %s failed %s probe, will be restarted", s.Spec.Name, s.Probe.Lower())
		}
	}
	return fmt.Sprintf("%s probe failed: %v", s.Probe, err)
}

// PodIP is where the containers of a pod are reached from the device; "" while they
// cannot be.
func PodIP(pod *corev1.Pod, r *Record, node Facts) string {
	if pod.Spec.HostNetwork {
		return node.HostIP
	}
	if box := r.Peek(""); podspec.NeedsSandbox(pod) && (box.ID != "" || !podspec.HasOneContainer(pod)) {
		return box.IP
	}
	for i := range pod.Spec.Containers {
		if ip := r.Peek(pod.Spec.Containers[i].Name).IP; ip != "" {
			return ip
		}
	}
	return ""
}

// starting tells whether a container runs and its postStart hook has not ended yet.
func starting(spec *corev1.Container, c *ContainerRecord) bool {
	return c.Running() && !c.PostStarted && podspec.Hook(spec, podspec.PostStart) != nil
}

// starts wants the postStart hooks that have not begun. One that asks the pod waits for its
// address.
func (p *pass) starts(pod *corev1.Pod, r *Record) {
	for _, w := range podspec.Containers(pod) {
		c, at := r.Peek(w.Spec.Name), Place{pod.UID, w.Spec.Name}
		if !starting(w.Spec, c) || c.Kill != "" || !p.free(at) || p.hooking[at] == c.ID {
			continue
		}
		ip := PodIP(pod, r, p.o.Node)
		if h := podspec.Hook(w.Spec, podspec.PostStart).HTTPGet; h != nil && h.Host == "" && ip == "" &&
			!pod.Spec.HostNetwork {
			continue
		}
		p.step(Step{Action: Hook, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, ID: c.ID, IP: ip})
	}
}

// holdsUp tells whether the containers after this one wait: until its postStart hook has
// ended, unless it waits itself to be started again.
func (p *pass) holdsUp(pod *corev1.Pod, w podspec.Container, c *ContainerRecord) bool {
	switch {
	case podspec.Hook(w.Spec, podspec.PostStart) == nil || c.Kill != "":
		return false
	case c.Running():
		return starting(w.Spec, c)
	case c.Ended != nil && (!restarts(pod, w, c) || c.ReleaseAt.After(p.now)):
		return false
	}
	return !c.RetryAt.After(p.now)
}
