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

// pollEngine opens the engine, or lists its containers if they may have changed.
func (a *Agent) pollEngine(now time.Time) (next time.Time) {
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
		e, node, ofLog, messages, steps := l.engine, l.o.Node, l.fallsBackToLogs(), l.messages, l.steps
		a.async(listTimeout+messagesAtOnce, func(ctx context.Context) func() {
			asking, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := e.Containers(asking, plan.LabelAgent+"="+a.c.Node)
			if err == nil {
				list = OwnContainers(a.disk.Root, list)
				messages = a.readMessages(ctx, e, list, node, ofLog, messages)
			}
			return func() {
				if l.messages = messages; err == nil {
					l.listedSteps = steps
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
	if l.listing { // the result wakes the loop
		return now.Add(maxIdle)
	}
	if l.pingAt.Before(l.listAt) && !l.pinging && l.engineErr == nil {
		return l.pingAt
	}
	return l.listAt
}

// pinged records the result of a ping. Without pings the agent would detect a hanging engine only
// at the next list.
func (a *Agent) pinged(began time.Time, err error) {
	l := &a.loop
	l.pinging = false
	l.pingAt = time.Now().Add(pingTime)
	if err != nil {
		l.dirty = true
		a.engineFailed(err, began)
	}
}

func (a *Agent) opened(e engine.Engine, info engine.Info, err error) {
	l := &a.loop
	l.opening = false
	now := time.Now()
	if err != nil {
		l.openAt = now.Add(retryEngine)
		a.engineFailed(err, now)
		return
	}
	a.log.Info("connected to the container engine", "engine", info.Name, "version", info.Version, "socket", info.Socket)
	l.engine, l.dirty, l.settledAt = e, true, now
	a.setInfo(info)
	l.reportAt, l.statsAt = time.Time{}, time.Time{} // the engine's image disk is known now
	// commands of an earlier agent; listed now, before this agent's own are added
	execs := a.disk.leftover()
	ctx, state := l.ctx, l.o.Node.StateDir
	a.work.Go(func() { a.endExecs(ctx, e, execs) })
	a.work.Go(func() { a.disk.EndImageReaders(ctx, e, state) })
	a.work.Go(func() { a.followEvents(ctx, e) })
}

// setInfo sets and stores the engine's description. A restarted agent uses the stored description
// until the engine responds.
func (a *Agent) setInfo(info engine.Info) {
	l := &a.loop
	l.info, l.o.Node.Engine = info, info
	text, err := json.Marshal(info)
	if err != nil {
		return // cannot happen
	}
	a.work.Go(func() {
		if err := a.c.Memory.SetEngine(text); err != nil {
			a.log.Warn("store the container engine's description", "err", err)
		}
	})
}

// loadInfo loads the engine's stored description, if there is one.
func (a *Agent) loadInfo() {
	var info engine.Info
	if text := a.c.Memory.Engine(); text != nil && json.Unmarshal(text, &info) == nil {
		a.loop.info, a.loop.o.Node.Engine = info, info
	}
}

// engineFailed records that a call to the engine failed; began is the start of the call.
func (a *Agent) engineFailed(err error, began time.Time) {
	l := &a.loop
	// an agent that stops cancels its calls
	if l.ctx.Err() == nil && (l.engineErr == nil || l.engineErr.Error() != err.Error()) {
		a.log.Warn("the container engine does not answer", "err", err)
	}
	l.engineErr = err
	if l.downSince.IsZero() {
		l.downSince = began
		if !l.everListed {
			l.downSince = began.Add(-graceDown) // graceDown does not apply to an engine that has never responded
		}
	}
}

// followEvents marks the container list as stale after each event of the engine. When the event
// stream ends, it reads the engine's description before it reconnects: the engine may have been
// upgraded or reconfigured.
func (a *Agent) followEvents(ctx context.Context, e engine.Engine) {
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
			a.refreshInfo(ctx, e)
		}
	}
}

// refreshInfo reads the description of a connected engine again.
func (a *Agent) refreshInfo(ctx context.Context, e engine.Engine) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := e.Info(ctx)
	if err != nil {
		return // other calls report the error
	}
	a.post(func() {
		l := &a.loop
		if reflect.DeepEqual(info, l.info) {
			return
		}
		a.log.Info("the container engine has changed", "engine", info.Name, "version", info.Version, "api",
			info.APIVersion)
		l.dirty = true
		a.setInfo(info)
		l.reportAt, l.statsAt, l.imagesAt = time.Time{}, time.Time{}, time.Time{} // the engine may use another disk now
	})
}

// listed records the result of listing the containers; began is the start of the call.
func (a *Agent) listed(list []engine.Container, began time.Time, err error) {
	l := &a.loop
	now := time.Now()
	l.listing = false
	if err != nil {
		l.dirty, l.listAt = true, now.Add(retryEngine)
		a.engineFailed(err, began)
		return
	}
	if l.engineErr != nil {
		a.log.Info("the container engine answers")
	}
	first := !l.everListed
	l.engineErr, l.downSince, l.everListed = nil, time.Time{}, true
	l.pingAt = now.Add(pingTime)
	l.o.SetContainers(list, now)
	a.preStops.see(l.o.Containers)
	a.endHooks()
	if first {
		a.loadHookNotes()
		l.o.DoubtLimits()
	}
}

// startTimeout is the timeout for starting all containers.
const startTimeout = 2 * time.Minute

// startWithoutDesired starts ended containers unchanged, once, if the device has lost its desired
// state and cannot reach its hub. Ended pods and init containers stay ended. The next desired state
// of the hub takes over.
func (a *Agent) startWithoutDesired() {
	l := &a.loop
	l.startedWithoutDesired = true
	todo := restartable(&l.o)
	if len(todo) == 0 {
		return
	}
	a.event(corev1.EventTypeWarning, "DesiredStateLost", nil, "",
		"This device has lost its desired state, and starts its %d containers as they are", len(todo))
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

// restartable lists, for pods that have not ended, the newest instance of each ended sandbox and
// app container; sandboxes come first.
func restartable(o *plan.Observed) (out []plan.Instance) {
	for i, in := range o.Containers { // sorted by place, then from the newest to the oldest attempt
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
