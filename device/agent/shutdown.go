package agent

import (
	"context"
	"slices"
	"time"

	"flotilla.dev/device/plan"
)

// StopPods stops the pods within total; the part critical is reserved for system-critical pods. It
// returns when no pod runs or the time is over. The node is not ready until StartPods.
func (a *Agent) StopPods(ctx context.Context, total, critical time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, total)
	defer cancel()
	a.announceShutdown("node is shutting down")
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

// StartPods runs the pods again after a cancelled shutdown.
func (a *Agent) StartPods() {
	a.announceShutdown("")
	a.post(func() { a.loop.o.Shutdown, a.loop.stopped = nil, nil })
}

// announceShutdown makes the node not ready with a reason, or ready again if why is empty.
func (a *Agent) announceShutdown(why string) {
	a.Shutdown(why)
	a.published.Lock()
	hub := a.published.hub
	a.published.Unlock()
	if hub != nil {
		hub.StatusChanged()
	}
}

// signalStopped wakes StopPods once no container runs or is about to run.
func (l *loop) signalStopped() {
	if l.stopped == nil || slices.ContainsFunc(l.o.Containers, plan.IsRunning) ||
		slices.ContainsFunc(l.o.Busy, func(b plan.RunningStep) bool { return !b.Step.Action.RunsBeside() }) {
		return
	}
	close(l.stopped)
	l.stopped = nil
}
