package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A countingContext counts the functions that wait for its end.
type countingContext struct {
	context.Context
	waiting atomic.Int32
}

// hides the parent, so that the standard library's package context calls AfterFunc
func (c *countingContext) Value(any) any { return nil }

func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	return func() bool { c.waiting.Add(-1); return true }
}

// An agent runs probes for years, so an ended step must not leave a context that waits for the end
// of the agent.
func TestEndedStepsLeaveNoContexts(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "1", "0"), PreStop: execHook("bye", "1", "0")}, 1)
		p.Spec.Containers[0].ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 1})
		time.Sleep(time.Second) // followEvents starts before the count: its context rightly waits for the agent's end
		all := &countingContext{Context: t.Context()}
		d.agent.post(func() { d.agent.loop.ctx = all })
		d.desire(1, p)
		time.Sleep(time.Hour)
		d.fake.Exit(d.newest(t, "app"), 1)
		time.Sleep(time.Minute)
		if n := all.waiting.Load(); n > 3 {
			t.Errorf("after an hour of probes %d contexts wait for the end of the agent", n)
		}
	})
}
