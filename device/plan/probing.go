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

// A ProbeRecord is the state of a probe of a running container. As with the kubelet (KEP-4781), a
// passed startup or readiness probe survives a restart of the agent, see noteProbe.
type ProbeRecord struct {
	Next      time.Time // time of the next probe; zero: not scheduled yet
	Successes int32     // successes in a row
	Failures  int32     // failures in a row
	Passed    bool      // the success threshold was reached, and not the failure threshold since
	Failed    bool      // the failure threshold was reached, and not the success threshold since
}

// startedUp reports whether a running container has passed its startup probe or has no startup
// probe.
func startedUp(spec *corev1.Container, c *ContainerRecord) bool {
	return c.Running() && !postStartPending(spec, c) && (spec.StartupProbe == nil || c.Probe[podspec.Startup].Passed)
}

// isReady reports whether a container is ready to serve.
func isReady(spec *corev1.Container, c *ContainerRecord) bool {
	return startedUp(spec, c) && c.State != engine.Paused && c.KillReason == "" &&
		(spec.ReadinessProbe == nil || c.Probe[podspec.Readiness].Passed)
}

// probes adds the due probes of a pod's running containers. The other probes wait until the startup
// probe has passed.
func (p *pass) probes(pod *corev1.Pod, r *Record) {
	for _, w := range podspec.Containers(pod) {
		c := r.Peek(w.Spec.Name)
		at := Place{pod.UID, w.Spec.Name}
		if !c.Running() || postStartPending(w.Spec, c) || c.KillReason != "" || !p.free(at) {
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
				p.wakeAt(due)
			default:
				p.step(Step{Action: Probe, Place: at, Pod: pod, Spec: w.Spec, Kind: w.Kind, ID: c.ID, IP: PodIP(pod, r, p.o.Node),
					Probe: k})
			}
		}
	}
}

var errPaused = errors.New(
	"the container is paused; unpause it on the device with its container engine, such as docker unpause")

// Probed records the result of a probe and returns a message for an event, or "". As with the
// kubelet, a liveness or startup probe at its failure threshold restarts the container, and a
// readiness probe only makes it not ready. Engine failures do not count.
func (c *ContainerRecord) Probed(s Step, err error, now time.Time) (message string) {
	pr := podspec.ProbeOf(s.Spec, s.Probe)
	if pr == nil || c.ID != s.ID || !c.Running() {
		return ""
	}
	rec := &c.Probe[s.Probe]
	rec.Next = now.Add(time.Duration(podspec.OrDefault(pr.PeriodSeconds, 10)) * time.Second)
	// the kernel accepts connections for a paused container
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
			c.KillReason = fmt.Sprintf("Container %s failed %s probe, will be restarted", s.Spec.Name, s.Probe.Lower())
		}
	}
	return fmt.Sprintf("%s probe failed: %v", s.Probe, err)
}

// PodIP is the address of a pod as the device reaches it, or "" if the pod has no address yet.
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

// postStartPending reports whether a running container's postStart hook has not ended yet.
func postStartPending(spec *corev1.Container, c *ContainerRecord) bool {
	return c.Running() && !c.PostStarted && podspec.Hook(spec, podspec.PostStart) != nil
}

// postStartHooks adds the postStart hooks that have not begun. An HTTP hook waits for the pod's
// address.
func (p *pass) postStartHooks(pod *corev1.Pod, r *Record) {
	for _, w := range podspec.Containers(pod) {
		c, at := r.Peek(w.Spec.Name), Place{pod.UID, w.Spec.Name}
		if !postStartPending(w.Spec, c) || c.KillReason != "" || !p.free(at) || p.hooking[at] == c.ID {
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

// blocksNext reports whether the pod's next containers wait for this one. They wait until its
// postStart hook has ended, but not while this container waits to be restarted.
func (p *pass) blocksNext(pod *corev1.Pod, w podspec.Container, c *ContainerRecord) bool {
	switch {
	case podspec.Hook(w.Spec, podspec.PostStart) == nil || c.KillReason != "":
		return false
	case c.Running():
		return postStartPending(w.Spec, c)
	case c.Ended != nil && (!restarts(pod, w, c) || c.RestartAt.After(p.now)):
		return false
	}
	return !c.RetryAt.After(p.now)
}
