package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

func TestAStoppedEngineMakesTheNodeNotReadyAfter30Seconds(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Minute)
		ready := func() corev1.NodeCondition {
			cs := d.agent.Status().Status.Conditions
			return cs[len(cs)-1]
		}
		d.fake.SetDown(true)
		time.Sleep(28 * time.Second)
		if c := ready(); c.Status != corev1.ConditionTrue {
			t.Fatalf("after 28 s Ready is %s (%s), want True", c.Status, c.Message)
		}
		time.Sleep(15 * time.Second) // the next ping fails, or the event stream ends
		if c := ready(); c.Status != corev1.ConditionFalse || c.Reason != "ContainerEngineUnavailable" {
			t.Fatalf("after 43 s Ready is %s, %s (%s), want False, ContainerEngineUnavailable", c.Status, c.Reason,
				c.Message)
		}
		d.wantPhase("web", corev1.PodRunning, "") // the pod's last known phase stays
		d.fake.SetDown(false)
		time.Sleep(5 * time.Second)
		if c := ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("after the engine's return Ready is %s (%s), want True", c.Status, c.Message)
		}
		d.wantContainers("web/c0#0 running")
	})
}

// A hangingEngine accepts every call and never returns.
type hangingEngine struct {
	engine.Engine
	hangs atomic.Bool
}

func (h *hangingEngine) Ping(ctx context.Context) error {
	if h.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Engine.Ping(ctx)
}

func (h *hangingEngine) Containers(ctx context.Context, label string) ([]engine.Container, error) {
	if h.hangs.Load() {
		ctx, cancel := context.WithTimeout(ctx, engine.AnswerTime)
		defer cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Engine.Containers(ctx, label)
}

// A slowList engine needs a long time to list many containers, like an engine on a slow card.
type slowList struct{ engine.Engine }

func (s slowList) Containers(ctx context.Context, label string) ([]engine.Container, error) {
	select {
	case <-time.After(45 * time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.Engine.Containers(ctx, label)
}

func TestAnEngineThatTakesLongForManyContainersIsNotDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.engine = slowList{d.fake}
		d.start()
		defer func() { d.end() }()
		d.desire(1, makePod("web", "wait"))
		time.Sleep(5 * time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
		for range 300 {
			time.Sleep(time.Second)
			cs := d.agent.Status().Status.Conditions
			if c := cs[len(cs)-1]; c.Status != corev1.ConditionTrue {
				t.Fatalf("Ready is %s (%s), want True", c.Status, c.Message)
			}
		}
		d.wantIdleLoop(200)
	})
}

// wantIdleLoop counts, over five minutes, the tenths of a second in which the loop runs a cycle,
// and limits their number.
func (d *device) wantIdleLoop(most int) {
	d.t.Helper()
	turns, last := 0, time.Time{}
	for range 3000 {
		time.Sleep(100 * time.Millisecond)
		if at := d.agent.LastCycle(); at != last {
			turns, last = turns+1, at
		}
	}
	if turns > most {
		d.t.Errorf("the loop ran in %d of 3000 tenths of a second without any change, want at most %d", turns, most)
	}
}

// If the next measurement of slow hardware becomes due during a measurement, the loop waits for the
// end of the first.
func TestTheLoopWaitsForHardwareThatIsSlow(t *testing.T) {
	for _, plugged := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDevice(t)
			d.board.slow = 59 * time.Second
			d.config.Watch = func(ctx context.Context, changed func()) error {
				for plugged && ctx.Err() == nil {
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Second):
						changed()
					}
				}
				return nil
			}
			d.start()
			defer func() { d.end() }()
			d.wantIdleLoop(250)
		})
	}
}

// An engine that hangs closes no connection and sends no event. Only a ping detects it.
func TestAnEngineThatHangsMakesTheNodeNotReadyAfter40Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		h := &hangingEngine{Engine: d.fake}
		d.engine = h
		d.start()
		d.desire(1, makePod("web", "wait"))
		for _, into := range []time.Duration{time.Minute, 61 * time.Second, 75 * time.Second, 100 * time.Second} {
			time.Sleep(into)
			ready := func() corev1.NodeCondition {
				cs := d.agent.Status().Status.Conditions
				return cs[len(cs)-1]
			}
			if c := ready(); c.Status != corev1.ConditionTrue {
				t.Fatalf("Ready is %s (%s), want True", c.Status, c.Message)
			}
			h.hangs.Store(true)
			time.Sleep(29 * time.Second)
			if c := ready(); c.Status != corev1.ConditionTrue {
				t.Errorf("after 29 s Ready is %s (%s), want True", c.Status, c.Message)
			}
			time.Sleep(11*time.Second + 100*time.Millisecond)
			if c := ready(); c.Status != corev1.ConditionFalse || c.Reason != "ContainerEngineUnavailable" {
				t.Errorf("after 40 s Ready is %s, %s (%s), want False, ContainerEngineUnavailable", c.Status,
					c.Reason, c.Message)
			}
			h.hangs.Store(false)
			time.Sleep(15 * time.Second)
			if c := ready(); c.Status != corev1.ConditionTrue {
				t.Errorf("after the engine responds again Ready is %s (%s), want True", c.Status, c.Message)
			}
			d.wantContainers("web/c0#0 running")
		}
		d.end()
	})
}
