package agent

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

// A ProbeKind is a kind of probe.
type ProbeKind int

// The three kinds of probes.
const (
	Startup ProbeKind = iota
	Liveness
	Readiness
	probeKinds
)

// String is the name as events have it.
func (k ProbeKind) String() string { return [...]string{"Startup", "Liveness", "Readiness"}[k] }

// A ProbeRecord is where a probe of a running container stands. As with the kubelet (KEP-4781) whoever has passed a startup
// or readiness probe under an agent before this one has passed it: see noteProbe.
type ProbeRecord struct {
	Next      time.Time // when it is due; zero: not scheduled yet
	Successes int32     // in a row
	Failures  int32     // in a row
	Passed    bool      // the success threshold has been reached, and the failure threshold not since
	Failed    bool      // the failure threshold has been reached
}

func probeOf(c *corev1.Container, k ProbeKind) *corev1.Probe {
	switch k {
	case Startup:
		return c.StartupProbe
	case Liveness:
		return c.LivenessProbe
	}
	return c.ReadinessProbe
}

// startedUp tells whether a running container has passed its startup probe, if it has one.
func startedUp(spec *corev1.Container, c *ContainerRecord) bool {
	return c.Running() && !starting(spec, c) && (spec.StartupProbe == nil || c.Probe[Startup].Passed)
}

// isReady tells whether a container is ready to serve.
func isReady(spec *corev1.Container, c *ContainerRecord) bool {
	return startedUp(spec, c) && c.State != engine.Paused && c.Kill == "" && (spec.ReadinessProbe == nil || c.Probe[Readiness].Passed)
}

// probes wants the probes of a pod's running containers that are due. Until the
// startup probe has passed, the others wait.
func (p *pass) probes(pod *corev1.Pod, r *Record) {
	for _, w := range everyContainer(pod) {
		c := r.peek(w.spec.Name)
		at := Place{pod.UID, w.spec.Name}
		if !c.Running() || starting(w.spec, c) || c.Kill != "" || !p.free(at) {
			continue
		}
		for k := Startup; k < probeKinds; k++ {
			pr := probeOf(w.spec, k)
			if pr == nil || k == Startup && c.Probe[Startup].Passed || k != Startup && !startedUp(w.spec, c) {
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
				p.step(Step{Action: Probe, Place: at, Pod: pod, Spec: w.spec, Kind: w.kind, ID: c.ID, IP: podIP(pod, r, p.o.Node), Probe: k})
			}
		}
	}
}

var errPaused = errors.New("the container is paused; unpause it on the device with its container engine, such as docker unpause")

// Probed takes in the result of a probe and returns the sentence to tell, if any.
// Thresholds are the kubelet's: a liveness or startup probe that fails often enough
// condemns the container; a readiness probe only takes it out of service. That the engine
// could not be asked, or the probe not be made, says nothing of the container.
func (c *ContainerRecord) Probed(s Step, err error, now time.Time) (told string) {
	pr := probeOf(s.Spec, s.Probe)
	if pr == nil || c.ID != s.ID || !c.Running() {
		return ""
	}
	rec := &c.Probe[s.Probe]
	rec.Next = now.Add(time.Duration(orDefault(pr.PeriodSeconds, 10)) * time.Second)
	if c.State == engine.Paused && !errors.Is(err, engine.ErrUnavailable) { // the kernel accepts connections for it all the same
		err = errPaused
	}
	var unmade *probeError
	switch {
	case errors.Is(err, engine.ErrUnavailable):
		return ""
	case errors.As(err, &unmade):
		return fmt.Sprintf("%s probe errored and resulted in unknown state: %v", s.Probe, err)
	}
	if err == nil {
		rec.Successes, rec.Failures = rec.Successes+1, 0
		if rec.Successes >= orDefault(pr.SuccessThreshold, 1) {
			rec.Passed, rec.Failed = true, false
		}
		return ""
	}
	rec.Successes, rec.Failures = 0, rec.Failures+1
	if rec.Failures >= orDefault(pr.FailureThreshold, 3) {
		rec.Passed, rec.Failed = false, true
		if s.Probe != Readiness {
			c.Kill = fmt.Sprintf("Container %s failed %s probe, will be restarted", s.Spec.Name, lower(s.Probe))
		}
	}
	return fmt.Sprintf("%s probe failed: %v", s.Probe, err)
}

func lower(k ProbeKind) string { return [...]string{"startup", "liveness", "readiness"}[k] }

func orDefault(v, def int32) int32 {
	if v <= 0 {
		return def
	}
	return v
}

// podIP is where the containers of a pod are reached from the device; "" while they
// cannot be.
func podIP(pod *corev1.Pod, r *Record, node Facts) string {
	if pod.Spec.HostNetwork {
		return node.HostIP
	}
	if box := r.peek(""); needsSandbox(pod) && (box.ID != "" || !alone(pod)) {
		return box.IP
	}
	for i := range pod.Spec.Containers {
		if ip := r.peek(pod.Spec.Containers[i].Name).IP; ip != "" {
			return ip
		}
	}
	return ""
}
