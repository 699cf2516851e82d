package agent

import (
	"context"
	"slices"
	"time"

	"flotilla.dev/device/plan"
)

// StopPods stops the pods within a time, of which critical is kept for those that the system needs,
// and returns when none runs, or the time is over. The node is not ready until StartPods.
func (a *Agent) StopPods(ctx context.Context, total, critical time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, total)
	defer cancel()
	a.say("node is shutting down")
	done := make(chan struct{})
	a.post(func() {
		now := time.Now()
		a.loop.o.Shutdown, a.loop.stopped = &plan.PodShutdown{Regular: now.Add(total - critical), Critical: now.Add(total)},
			done
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
	if l.stopped == nil || slices.ContainsFunc(l.o.Containers, plan.IsRunning) ||
		slices.ContainsFunc(l.o.Busy, func(b plan.Doing) bool { return !b.Step.Action.RunsBeside() }) {
		return
	}
	close(l.stopped)
	l.stopped = nil
}
