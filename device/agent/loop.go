package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/memory"
)

const (
	relist      = 60 * time.Second      // look again although no event came
	settle      = 50 * time.Millisecond // events come in bunches
	askTimeout  = 10 * time.Second      // for questions to the engine
	holdFailed  = 5 * time.Second       // before a step that failed is tried again
	measureTime = 10 * time.Second      // between two looks at memory and disk
	reportTime  = 5 * time.Minute       // between two looks at the hardware
	imagesTime  = 5 * time.Minute       // between two looks at the images
	maxIdle     = 15 * time.Second      // between two turns of the loop
	graceDown   = 30 * time.Second      // an engine that has been away so long makes the node not ready
	retryEngine = 2 * time.Second       // between two tries to reach the engine
)

// Run runs the agent until ctx ends. Containers keep running then: an agent that is
// gone is no reason to stop them.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.work.Wait()
	defer a.answers.wait()
	defer close(a.ended)
	defer cancel()
	l := &a.loop
	l.ctx = ctx
	for _, uid := range a.disk.pods() {
		l.o.record(uid) // what of them is no longer desired is cleaned away
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			if l.engine != nil {
				return l.engine.Close()
			}
			return nil
		case f := <-a.inbox:
			f()
			for more := true; more; {
				select {
				case f := <-a.inbox:
					f()
				default:
					more = false
				}
			}
		case <-timer.C:
		}
		now := time.Now()
		next := a.turn(now)
		a.beat.Store(&now)
		timer.Reset(max(min(next.Sub(now), maxIdle), time.Millisecond))
	}
}

// async does what may take long outside the loop; done is called in the loop.
func (a *Agent) async(timeout time.Duration, do func(context.Context) (done func())) {
	ctx := a.loop.ctx
	a.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		a.post(do(ctx))
	})
}

// turn does what is due and returns when it wants to be asked again.
func (a *Agent) turn(now time.Time) time.Time {
	l := &a.loop
	next := now.Add(maxIdle)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	l.held = slices.DeleteFunc(l.held, func(h heldStep) bool {
		if now.Before(h.until) {
			at(h.until)
			return false
		}
		a.free(h.doing)
		l.dirty = true
		return true
	})
	at(a.reach(now))
	at(a.look(now))
	if l.seen && l.known && l.looked && !l.dirty && !l.listing && l.engineErr == nil {
		at(a.settle(now))
		a.leave()
	}
	if t := l.downSince.Add(graceDown); !l.downSince.IsZero() && t.After(now) {
		at(t)
	}
	a.publish(now)
	if l.looked && (l.seen || l.engineErr != nil) {
		select {
		case <-a.first:
		default:
			close(a.first)
		}
	}
	return next
}

// reach opens the engine, or asks it for its containers where they may have changed.
func (a *Agent) reach(now time.Time) (next time.Time) {
	l := &a.loop
	if l.engine == nil {
		if !l.opening && !now.Before(l.openAt) {
			l.opening = true
			a.async(askTimeout, func(ctx context.Context) func() {
				e, err := a.c.OpenEngine(ctx)
				var info engine.Info
				if err == nil {
					if info, err = e.Info(ctx); err != nil {
						_ = e.Close()
					}
				}
				return func() { a.opened(e, info, err) }
			})
		}
		if l.opening {
			return now.Add(maxIdle)
		}
		return l.openAt
	}
	if !l.listing && (l.dirty || !now.Before(l.listAt)) {
		wait := l.listAt.Add(settle - relist)
		if l.engineErr != nil {
			wait = l.listAt
		}
		if now.Before(wait) {
			return wait
		}
		l.listing, l.dirty = true, false
		l.listAt = now.Add(relist)
		e := l.engine
		a.async(askTimeout, func(ctx context.Context) func() {
			list, err := e.Containers(ctx, LabelAgent+"="+a.c.Node)
			return func() { a.listed(list, err) }
		})
	}
	return l.listAt
}

func (a *Agent) opened(e engine.Engine, info engine.Info, err error) {
	l := &a.loop
	l.opening = false
	now := time.Now()
	if err != nil {
		l.openAt = now.Add(retryEngine)
		a.lost(err, now)
		return
	}
	a.log.Info("connected to the container engine", "engine", info.Name, "version", info.Version, "socket", info.Socket)
	l.engine, l.info, l.dirty = e, info, true
	l.reportAt, l.statsAt = time.Time{}, time.Time{} // the image disk is known now
	a.work.Go(func() { a.follow(l.ctx, e) })
}

// lost notes that the engine does not answer.
func (a *Agent) lost(err error, now time.Time) {
	l := &a.loop
	if l.ctx.Err() == nil && (l.engineErr == nil || l.engineErr.Error() != err.Error()) { // else it is us who stop
		a.log.Warn("the container engine does not answer", "err", err)
	}
	l.engineErr = err
	if l.downSince.IsZero() {
		l.downSince = now
		if !l.seen {
			l.downSince = now.Add(-graceDown) // it has not been there at all yet
		}
	}
}

// follow asks the loop to look again whenever the engine says that something changed.
func (a *Agent) follow(ctx context.Context, e engine.Engine) {
	changed := func() { a.post(func() { a.loop.dirty = true }) }
	for ctx.Err() == nil {
		err := e.Events(ctx, LabelAgent+"="+a.c.Node, changed)
		if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
			a.log.Warn("the engine's events ended", "err", err)
		}
		changed()
		select {
		case <-ctx.Done():
		case <-time.After(retryEngine):
		}
	}
}

// listed takes in what the engine holds.
func (a *Agent) listed(list []engine.Container, err error) {
	l := &a.loop
	now := time.Now()
	l.listing = false
	if err != nil {
		l.dirty, l.listAt = true, now.Add(retryEngine)
		a.lost(err, now)
		return
	}
	if l.engineErr != nil {
		a.log.Info("the container engine answers")
	}
	l.engineErr, l.downSince, l.seen = nil, time.Time{}, true
	l.o.See(list, now)
}

// settle takes steps until there are none that only change what is remembered.
func (a *Agent) settle(now time.Time) time.Time {
	l := &a.loop
	for range 10 {
		steps, wake := Steps(l.desired, &l.o, now)
		again := false
		for _, s := range steps {
			switch s.Action {
			case Admit:
				r := l.o.record(s.Place.Pod)
				r.Admitted, r.Start, again = true, now, true
				a.log.Debug(s.String())
			case Reject:
				r := l.o.record(s.Place.Pod)
				if r.Start.IsZero() {
					r.Start = now
				}
				r.Verdict, again = &s.Verdict, true
				a.event(corev1.EventTypeWarning, s.Verdict.Reason, s.Pod, "", "%s", s.Verdict.Message)
			case Cancel:
				if cancel := l.cancels[s.Place]; cancel != nil {
					cancel()
				}
			case Run, Stop, Remove, Clean, Refresh, Probe:
				if !again { // what was decided before is asked again with the new state
					a.take(s, now)
				}
			}
		}
		if !again {
			a.note()
			if wake.IsZero() {
				return now.Add(maxIdle)
			}
			return wake
		}
	}
	a.log.Error("the steps of this device do not settle: this is a mistake in flotilla-device, please report it")
	return now.Add(time.Second)
}

// note journals the pods that have ended for good, so that they stay ended after a
// restart without their containers, and forgets those that the hub has forgotten.
func (a *Agent) note() {
	l := &a.loop
	wanted := map[string]*corev1.Pod{}
	for i := range l.desired.Pods {
		wanted[string(l.desired.Pods[i].UID)] = &l.desired.Pods[i]
	}
	var notes []memory.Note
	for uid, r := range l.o.Pods {
		pod := wanted[string(uid)]
		if pod == nil {
			if r.Cleaned {
				delete(l.o.Pods, uid)
				delete(l.podTimes, uid)
			}
			continue
		}
		if r.Final == nil && !r.Cleaned && pod.DeletionTimestamp == nil && !running(r) && !r.peek("").Running() && !a.busyWith(pod) {
			if ph := phaseOf(pod, r, l.o.Node.Boot); ph == corev1.PodFailed || ph == corev1.PodSucceeded {
				st := podStatus(pod, r, &l.o, l.info.Name, time.Now())
				mergeConditions(l.podTimes[uid], st.Conditions, time.Now())
				r.Final = &st
			}
		}
		if r.Final != nil {
			notes = append(notes, memory.Note{UID: uid, Status: *r.Final})
		}
	}
	if err := a.c.Memory.SetNotes(notes); err != nil {
		a.log.Error("the journal could not be written", "err", err)
	}
}

func (a *Agent) busyWith(pod *corev1.Pod) bool {
	return slices.ContainsFunc(a.loop.o.Busy, func(b Doing) bool { return b.Step.Place.Pod == pod.UID && b.Step.Action != Probe })
}

// take takes a step outside the loop.
func (a *Agent) take(s Step, now time.Time) {
	l := &a.loop
	d := Doing{Step: s, Since: now}
	l.o.Busy = append(l.o.Busy, d)
	if s.Action != Probe {
		a.log.Debug(s.String(), "pod", s.Place.Pod)
	}
	timeout := 2 * time.Minute
	switch s.Action {
	case Run:
		timeout = 2 * time.Hour // images can be large and uplinks slow; Cancel ends it
	case Stop:
		timeout = s.Grace + time.Minute
	}
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	if s.Action == Run {
		l.cancels[s.Place] = cancel
	}
	j := job{step: s, engine: l.engine, info: l.info, src: a.sourcesOf(s), block: l.desired.PodCIDR}
	a.work.Go(func() {
		defer cancel()
		err := a.do(ctx, j)
		a.post(func() { a.done(d, err) })
	})
}

func (a *Agent) sourcesOf(s Step) sources {
	if s.Pod == nil {
		return sources{}
	}
	l := &a.loop
	return sourcesOf(l.desired, s.Pod, l.o.Node, podIP(s.Pod, l.o.Pods[s.Pod.UID], l.o.Node))
}

// free takes a step out of those in flight.
func (a *Agent) free(d Doing) {
	l := &a.loop
	l.o.Busy = slices.DeleteFunc(l.o.Busy, func(b Doing) bool { return b.Since.Equal(d.Since) && b.Step.same(d.Step) })
}

// same tells whether two steps are one.
func (s Step) same(t Step) bool {
	return s.Action == t.Action && s.Place == t.Place && s.ID == t.ID && s.Probe == t.Probe && s.Grace == t.Grace && s.Attempt == t.Attempt
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
	l.dirty = true
	if s.Action == Run {
		delete(l.cancels, s.Place)
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
	if err != nil && l.ctx.Err() == nil {
		a.log.Warn(fmt.Sprintf("%s failed, it is tried again in %s", s, holdFailed), "err", err)
		if s.Action == Refresh && s.Pod != nil {
			a.event(corev1.EventTypeWarning, failedMount, s.Pod, "", "%v", err)
		}
		l.held = append(l.held, heldStep{d, now.Add(holdFailed)})
		return
	}
	a.free(d)
	switch s.Action {
	case Clean:
		r.Cleaned = true
	case Refresh:
		r.Volumes = s.Generation
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
	wait := min(firstBackOff<<min(c.Failures-1, 6), maxBackOff)
	if v.Reason == "CreateContainerConfigError" || v.Reason == failedMount {
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
	told := c.Probed(s, err, now)
	if told != "" {
		a.event(corev1.EventTypeWarning, "Unhealthy", s.Pod, s.Place.Container, "%s", told)
	}
	if c.Kill != "" {
		a.event(corev1.EventTypeNormal, "Killing", s.Pod, s.Place.Container, "%s", c.Kill)
	}
}
