package agent

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
)

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
		e, node, ofLog, messages, steps := l.engine, l.o.Node, l.logSpeaks(), l.messages, l.steps
		a.async(listTimeout+messagesAtOnce, func(ctx context.Context) func() {
			asking, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := e.Containers(asking, plan.LabelAgent+"="+a.c.Node)
			if err == nil {
				list = Made(a.disk.Root, list)
				messages = a.readMessages(ctx, e, list, node, ofLog, messages)
			}
			return func() {
				if l.messages = messages; err == nil {
					l.listed = steps
				}
				a.listed(list, now, err)
			}
		})
	}
	if !l.listing && !l.pinging && l.engineErr == nil && !now.Before(l.pingAt) {
		l.pinging = true
		e := l.engine
		a.async(askTimeout, func(ctx context.Context) func() {
			err := e.Ping(ctx)
			return func() { a.pinged(now, err) }
		})
	}
	if l.listing { // how it ends is news
		return now.Add(maxIdle)
	}
	if l.pingAt.Before(l.listAt) && !l.pinging && l.engineErr == nil {
		return l.pingAt
	}
	return l.listAt
}

// pinged takes in whether the engine answered what it was asked at a moment. One that hangs
// says nothing by itself, and is not listed for a minute.
func (a *Agent) pinged(asked time.Time, err error) {
	l := &a.loop
	l.pinging = false
	l.pingAt = time.Now().Add(pingTime)
	if err != nil {
		l.dirty = true
		a.lost(err, asked)
	}
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
	l.engine, l.dirty, l.settledAt = e, true, now
	a.meet(info)
	l.reportAt, l.statsAt = time.Time{}, time.Time{} // the image disk is known now
	left := a.disk.leftover()                        // this agent has begun none yet
	ctx, state := l.ctx, l.o.Node.StateDir
	a.work.Go(func() { a.endExecs(ctx, e, left) })
	a.work.Go(func() { a.disk.EndReaders(ctx, e, state) })
	a.work.Go(func() { a.follow(ctx, e) })
}

// meet takes in who the engine says that it is, and remembers it: after a restart the agent may be
// there before the engine, and what is not known yet is the last that was known.
func (a *Agent) meet(info engine.Info) {
	l := &a.loop
	l.info, l.o.Node.Engine = info, info
	text, err := json.Marshal(info)
	if err != nil {
		return // it has texts and switches only
	}
	a.work.Go(func() {
		if err := a.c.Memory.SetEngine(text); err != nil {
			a.log.Warn("the container engine's description is not remembered", "err", err)
		}
	})
}

// recollect is the engine as it was last known; nothing where it never answered.
func (a *Agent) recollect() {
	var info engine.Info
	if text := a.c.Memory.Engine(); text != nil && json.Unmarshal(text, &info) == nil {
		a.loop.info, a.loop.o.Node.Engine = info, info
	}
}

// lost notes that the engine does not answer what it was asked at a moment.
func (a *Agent) lost(err error, asked time.Time) {
	l := &a.loop
	if l.ctx.Err() == nil && (l.engineErr == nil || l.engineErr.Error() != err.Error()) { // else it is us who stop
		a.log.Warn("the container engine does not answer", "err", err)
	}
	l.engineErr = err
	if l.downSince.IsZero() {
		l.downSince = asked
		if !l.seen {
			l.downSince = asked.Add(-graceDown) // it has not been there at all yet
		}
	}
}

// follow asks the loop to look again whenever the engine says that something changed. One that has
// said its last word may have been upgraded, or set up in another way: it is asked who it is before
// anything else.
func (a *Agent) follow(ctx context.Context, e engine.Engine) {
	changed := func() { a.post(func() { a.loop.dirty = true }) }
	for ctx.Err() == nil {
		err := e.Events(ctx, plan.LabelAgent+"="+a.c.Node, changed)
		if ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
			a.post(func() { a.trouble("the engine's events ended", err) })
		}
		changed()
		select {
		case <-ctx.Done():
		case <-time.After(retryEngine):
			a.ask(ctx, e)
		}
	}
}

// ask asks an engine that was there before who it is now.
func (a *Agent) ask(ctx context.Context, e engine.Engine) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := e.Info(ctx)
	if err != nil {
		return // whoever asks it for something says why
	}
	a.post(func() {
		l := &a.loop
		if reflect.DeepEqual(info, l.info) {
			return
		}
		a.log.Info("the container engine is another one now", "engine", info.Name, "version", info.Version, "api",
			info.APIVersion)
		l.dirty = true
		a.meet(info)
		l.reportAt, l.statsAt, l.imagesAt = time.Time{}, time.Time{}, time.Time{} // its disk may be another one
	})
}

// listed takes in what the engine holds, or why what it was asked at a moment has no answer.
func (a *Agent) listed(list []engine.Container, asked time.Time, err error) {
	l := &a.loop
	now := time.Now()
	l.listing = false
	if err != nil {
		l.dirty, l.listAt = true, now.Add(retryEngine)
		a.lost(err, asked)
		return
	}
	if l.engineErr != nil {
		a.log.Info("the container engine answers")
	}
	first := !l.seen
	l.engineErr, l.downSince, l.seen = nil, time.Time{}, true
	l.pingAt = now.Add(pingTime)
	l.o.See(list, now)
	a.stops.see(l.o.Containers)
	a.endHooks()
	if first {
		a.recall()
		l.o.Doubt()
	}
}

// startTimeout is for starting everything that is there.
const startTimeout = 2 * time.Minute

// resort is the last one of a device that has lost what its hub wants and cannot ask it:
// the containers that it has made and that have ended are started as they are, once, each
// pod's sandbox first. Pods that have ended for good stay so, and init containers have
// done their work. When the hub is back everything goes by what it wants.
func (a *Agent) resort() {
	l := &a.loop
	l.resorted = true
	todo := lastResort(&l.o)
	if len(todo) == 0 {
		return
	}
	a.event(corev1.EventTypeWarning, "DesiredStateLost", nil, "",
		"This device has lost what its hub wants here, and starts the %d containers that it has as they are", len(todo))
	e := l.engine
	a.async(startTimeout, func(ctx context.Context) func() {
		for _, in := range todo {
			if err := e.Start(ctx, in.ID); err != nil {
				a.log.Warn("start a container without the desired state", "container", in.Name, "err", err)
			}
		}
		return l.changed
	})
}

// lastResort lists the newest instance of each sandbox and app container that has ended,
// but of pods that have ended for good; sandboxes first.
func lastResort(o *plan.Observed) (out []plan.Instance) {
	for i, in := range o.Containers { // the newest of a place first
		r := o.Pods[in.Place.Pod]
		if i > 0 && o.Containers[i-1].Place == in.Place || in.State != engine.Exited || r != nil && r.Final != nil {
			continue
		}
		if in.Kind == podspec.KindSandbox || in.Kind == podspec.KindApp {
			out = append(out, in)
		}
	}
	sort.SliceStable(out, func(i, j int) bool {
		return out[i].Kind == podspec.KindSandbox &&
			out[j].Kind != podspec.KindSandbox
	})
	return out
}
