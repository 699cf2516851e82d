package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A counting context counts the functions that wait for its end.
type counting struct {
	context.Context
	waiting atomic.Int32
}

func (c *counting) Value(any) any { return nil } // otherwise context finds the parent directly

func (c *counting) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	return func() bool { c.waiting.Add(-1); return true }
}

// A device probes its containers for years.
func TestEndedStepsLeaveNoContexts(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.hooking()
		p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "1", "0"), PreStop: execHook("bye", "1", "0")}, 1)
		p.Spec.Containers[0].ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 1})
		time.Sleep(time.Second) // followEvents ends with the agent
		all := &counting{Context: t.Context()}
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
