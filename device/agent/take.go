package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// take takes a step outside the loop.
func (a *Agent) take(s Step, now time.Time) {
	l := &a.loop
	d := Doing{Step: s, Since: now}
	l.o.Busy = append(l.o.Busy, d)
	if !s.Action.aside() {
		a.log.Debug(s.String(), "pod", s.Place.Pod)
	}
	timeout := 2 * time.Minute
	switch s.Action {
	case Run:
		timeout = 2 * time.Hour // images can be large and uplinks slow; Cancel ends it
	case Hook:
		timeout = 0 // as long as it takes; a container that is stopped ends it
	case Stop:
		timeout = s.Grace + time.Minute
	}
	var ctx context.Context
	var cancel context.CancelFunc // whichever: the agent's context keeps what is not cancelled
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(l.ctx, timeout)
	} else {
		ctx, cancel = context.WithCancel(l.ctx)
	}
	if s.Action == Run || s.Action == Hook {
		l.cancels[flightOf(s)] = cancel
	}
	j := job{step: s, engine: l.engine, info: l.info, src: a.sourcesOf(s), node: l.o.Node, block: l.desired.PodCIDR}
	if s.Action == Run {
		j.hard = a.limits().Hard
	}
	a.work.Go(func() {
		defer cancel()
		err := a.do(ctx, j)
		a.post(func() { a.done(d, err) })
	})
}

func (a *Agent) sourcesOf(s Step) podspec.Sources {
	if s.Pod == nil {
		return podspec.Sources{}
	}
	l := &a.loop
	src := sourcesOf(l.desired, s.Pod, l.o.Node, podIP(s.Pod, l.o.Pods[s.Pod.UID], l.o.Node))
	src.Devices, src.Booting = s.Devices, time.Since(l.o.Node.Booted) < bootTime
	return src
}

// free takes a step out of those in flight.
func (a *Agent) free(d Doing) {
	l := &a.loop
	l.o.Busy = slices.DeleteFunc(l.o.Busy, func(b Doing) bool { return b.Since.Equal(d.Since) && b.Step.same(d.Step) })
}

// done takes in how a step went.
func (a *Agent) done(d Doing, err error) {
	l := &a.loop
	now := time.Now()
	s := d.Step
	r := l.o.record(s.Place.Pod)
	if s.Action == Probe {
		a.free(d)
		a.probed(s, err, now)
		return
	}
	if s.Action == Hook {
		delete(l.cancels, flightOf(s))
		if errors.Is(err, engine.ErrUnavailable) { // its fault is not the container's
			l.held = append(l.held, heldStep{d, now.Add(holdFailed)})
			return
		}
		a.free(d)
		a.hooked(s, err)
		return
	}
	l.changed()
	if s.Action == Run {
		delete(l.cancels, flightOf(s))
		c := r.container(s.Place.Container)
		switch {
		case err == nil:
			c.Failure, c.Failures, c.RetryAt = nil, 0, time.Time{}
		case errors.Is(err, context.Canceled):
		case errors.Is(err, engine.ErrUnavailable):
			c.RetryAt = now.Add(retryEngine) // its fault is not the pod's
		default:
			a.runFailed(s, c, err, now)
		}
		a.free(d)
		return
	}
	if s.Action == Update && !errors.Is(err, engine.ErrUnavailable) && l.ctx.Err() == nil {
		a.free(d)
		a.updated(s, err, now)
		return
	}
	if s.Action == Refresh {
		a.free(d)
		a.refreshed(s, r, err, now)
		return
	}
	if l.ctx.Err() == nil {
		a.trouble(fmt.Sprintf("%s failed, it is tried again", s), err)
	}
	if s.Action == Clean && l.ctx.Err() == nil {
		a.uncleaned(s, r, err, now)
		err = nil
	}
	if s.Action == Remove && err != nil && !errors.Is(err, engine.ErrUnavailable) && l.ctx.Err() == nil && a.unremoved(s, err, now) {
		a.free(d)
		return
	}
	if err != nil && l.ctx.Err() == nil {
		l.held = append(l.held, heldStep{d, now.Add(holdFailed)})
		return
	}
	a.free(d)
	if s.Action == Clean {
		r.Cleaned = true
	}
}

// refreshed takes in whether the volumes of a pod are up to date. What they are made of may be gone for months, and the
// pod runs on: it is tried later and later, and again when the hub wants something else.
func (a *Agent) refreshed(s Step, r *Record, err error, now time.Time) {
	switch {
	case err == nil:
		r.Volumes, r.StaleAt, r.StaleWait = s.Generation, time.Time{}, 0
	case a.loop.ctx.Err() == nil:
		r.StaleAt, r.StaleWait = now, min(max(2*r.StaleWait, holdFailed), fleet.MaxBackOff)
		if s.Generation != a.loop.o.Node.Generation { // it has wanted something else meanwhile
			r.StaleWait = holdFailed
		}
		a.event(corev1.EventTypeWarning, failedMount, s.Pod, "", "%v", err)
	}
}

// awaiting are the reasons for which a container waits until something has come: then it is tried at once.
var awaiting = []string{"CreateContainerConfigError", failedMount, deviceUnavailable}

// hasCome tries again at once what waits for something: it may have come.
func (o *Observed) hasCome() {
	for _, r := range o.Pods {
		r.StaleWait = min(r.StaleWait, holdFailed)
		for _, c := range r.Container {
			if c.Failure != nil && slices.Contains(awaiting, c.Failure.Reason) {
				c.RetryAt = time.Time{}
			}
		}
	}
}

// runFailed notes why a container could not be run, and when to try again: later and
// later, as with crashes.
func (a *Agent) runFailed(s Step, c *ContainerRecord, err error, now time.Time) {
	v := Verdict{Reason: "RunContainerError", Message: err.Error()}
	var f *runError
	if errors.As(err, &f) {
		v = Verdict{Reason: f.reason, Message: f.err.Error()}
	}
	c.Failure = &v
	c.Failures++
	wait := min(fleet.FirstBackOff<<min(c.Failures-1, 6), fleet.MaxBackOff)
	switch {
	case v.Reason == failedMount:
		wait = min(wait, maxMountBackOff)
	case slices.Contains(awaiting, v.Reason):
		wait = min(wait, time.Minute)
	}
	c.RetryAt = now.Add(wait)
}

// probed takes in the result of a probe.
func (a *Agent) probed(s Step, err error, now time.Time) {
	r := a.loop.o.Pods[s.Place.Pod]
	if r == nil || errors.Is(err, context.Canceled) {
		return
	}
	c := r.Container[s.Place.Container]
	if c == nil {
		return
	}
	was := c.Probe[s.Probe].Passed
	told := c.Probed(s, err, now)
	if is := c.Probe[s.Probe].Passed; is != was && s.Probe != podspec.Liveness {
		a.work.Go(func() { a.disk.noteProbe(s, is) })
	}
	if told != "" {
		a.event(corev1.EventTypeWarning, "Unhealthy", s.Pod, s.Place.Container, "%s", told)
	}
	if c.Kill != "" {
		a.event(corev1.EventTypeNormal, "Killing", s.Pod, s.Place.Container, "%s", c.Kill)
	}
}
