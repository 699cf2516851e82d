package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// A killingEngine kills the agent at its nth changing call, before or after the engine executes the
// call. The agent gets no result.
type killingEngine struct {
	engine.Engine
	mu        sync.Mutex
	callsLeft int
	after     bool
	kill      func()
}

func (k *killingEngine) at(ctx context.Context, call func()) (killed bool) {
	k.mu.Lock()
	k.callsLeft--
	killed = k.callsLeft == 0
	k.mu.Unlock()
	if killed {
		if k.after {
			call()
		}
		k.kill()
		<-ctx.Done()
	}
	return killed
}

func (k *killingEngine) Create(ctx context.Context, s engine.Spec) (string, error) {
	if k.at(ctx, func() { _, _ = k.Engine.Create(ctx, s) }) {
		return "", ctx.Err()
	}
	return k.Engine.Create(ctx, s)
}

func (k *killingEngine) Start(ctx context.Context, id string) error {
	if k.at(ctx, func() { _ = k.Engine.Start(ctx, id) }) {
		return ctx.Err()
	}
	return k.Engine.Start(ctx, id)
}

func (k *killingEngine) Stop(ctx context.Context, id string, grace time.Duration) error {
	if k.at(ctx, func() { _ = k.Engine.Stop(ctx, id, grace) }) {
		return ctx.Err()
	}
	return k.Engine.Stop(ctx, id, grace)
}

func (k *killingEngine) Remove(ctx context.Context, id string) error {
	if k.at(ctx, func() { _ = k.Engine.Remove(ctx, id) }) {
		return ctx.Err()
	}
	return k.Engine.Remove(ctx, id)
}

// After a kill at any step, the next agent reaches the same end state: no duplicate container, no
// leftover, and no restart of a running workload.
func TestAnAgentKilledAtAnyStepConverges(t *testing.T) {
	for _, after := range []bool{false, true} {
		reached := true
		for n := 1; reached; n++ {
			name := fmt.Sprintf("before call %d", n)
			if after {
				name = fmt.Sprintf("after call %d", n)
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { reached = killedAt(t, n, after) })
			})
			if n > 60 {
				t.Fatal("the agent makes too many calls")
			}
		}
	}
}

func killedAt(t *testing.T, n int, after bool) (reached bool) {
	d := newDevice(t)
	dead := make(chan struct{})
	k := &killingEngine{Engine: d.fake, callsLeft: n, after: after, kill: func() { close(dead) }}
	d.engine = k
	restarted := make(chan struct{})
	d.start()
	go func() {
		defer close(restarted)
		<-dead
		d.end()
		d.start()
	}()
	revive := func() {
		synctest.Wait()
		select {
		case <-dead:
			<-restarted
			reached = true
		default:
		}
	}
	keep, gone := makePod("keep", "wait", "wait"), makePod("gone", "wait", "wait")
	keep.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage,
		Args: []string{"exit", "0"}}}
	d.desire(1, keep, gone)
	time.Sleep(10 * time.Second)
	revive()
	time.Sleep(time.Minute)
	d.wantContainers("gone/POD#0 running", "gone/c0#0 running", "gone/c1#0 running",
		"keep/POD#0 running", "keep/c0#0 running", "keep/c1#0 running", "keep/init#0 exited")
	d.desire(2, keep, deletedPod(gone, 5))
	time.Sleep(10 * time.Second)
	revive()
	time.Sleep(time.Minute)
	d.wantContainers("keep/POD#0 running", "keep/c0#0 running", "keep/c1#0 running", "keep/init#0 exited")
	if _, reported := d.pod("gone"); reported {
		t.Error("the removed pod is still reported")
	}
	d.wantEnd("gone", corev1.PodSucceeded, "Completed", "Completed")
	for _, c := range d.wantPhase("keep", corev1.PodRunning, "").ContainerStatuses {
		if c.RestartCount != 0 {
			t.Errorf("container %s was restarted %d times", c.Name, c.RestartCount)
		}
	}
	if !reached { // unblock the waiting goroutine
		close(dead)
		<-restarted
	}
	d.end()
	return reached
}

// A hangingStart engine never returns from Start.
type hangingStart struct{ engine.Engine }

func (m hangingStart) Start(ctx context.Context, id string) error {
	<-ctx.Done()
	return fmt.Errorf("start container %s: %w", id, ctx.Err())
}

// A start that hangs, for example at a host path on an unreachable server, is reported as an event
// and tried again.
func TestAHangingStartIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.engine = hangingStart{d.fake}
		d.start()
		d.desire(1, makePod("web", "wait"))
		time.Sleep(makeTimeout + time.Second)
		st := d.wantPhase("web", corev1.PodPending, "")
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "RunContainerError" ||
			!strings.Contains(w.Message, "deadline exceeded") {
			t.Errorf("the container waits with %+v", w)
		}
		if !slices.Contains(d.reasons(), "Failed") {
			t.Errorf("the events are %q, want Failed", d.reasons())
		}
		d.end()
		d.engine = d.fake // the server responds again
		d.start()
		time.Sleep(time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
	})
}
