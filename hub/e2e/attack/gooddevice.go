package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/harness"
)

// A goodDevice is a well-behaved device that runs during an attack.
type goodDevice struct {
	*harness.Device
	l      *harness.Link
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	worst time.Duration
	bad   error
	since time.Time // when the condition Ready became True
}

// watch starts a good device. The broker handles a connection's packets in order, so the response
// to a ping confirms the lease that was sent before.
func watch(ctx context.Context, a *harness.Hub) (*goodDevice, error) {
	d, err := a.NewDevice(ctx, "witness", "00000000000000aa")
	if err != nil {
		return nil, err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &goodDevice{Device: d, l: l, cancel: cancel, done: make(chan struct{})}
	if err := harness.Until(ctx, 10*time.Second, "the good device is Ready", func() (bool, error) {
		c, err := w.ready(ctx)
		w.since = c.LastTransitionTime.Time
		return c.Status == corev1.ConditionTrue, err
	}); err != nil {
		cancel()
		return nil, err
	}
	go w.run(ctx)
	return w, nil
}

func (w *goodDevice) ready(ctx context.Context) (corev1.NodeCondition, error) {
	n, err := w.Hub.Node(ctx, w.ID.Node)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c, err
		}
	}
	return corev1.NodeCondition{}, err
}

func (w *goodDevice) run(ctx context.Context) {
	defer close(w.done)
	for ctx.Err() == nil {
		sent := time.Now()
		err := w.l.Send(harness.Packet(0x30, append(harness.Text(nil, w.l.Prefix+"lease"), w.Renewal()...)))
		if err == nil {
			err = w.l.Ping(20 * time.Second)
		}
		if err != nil && ctx.Err() == nil && !w.Hub.Down.Load() {
			w.mu.Lock()
			w.bad = err
			w.mu.Unlock()
			return
		}
		if err != nil { // the hub was killed by the attack, and restarts
			if w.reconnect(ctx) != nil {
				return
			}
			continue
		}
		w.mu.Lock()
		w.worst = max(w.worst, time.Since(sent))
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (w *goodDevice) reconnect(ctx context.Context) error {
	return harness.Until(ctx, 30*time.Second, "the good device is Ready again", func() (bool, error) {
		l, err := w.Online(ctx)
		if err == nil {
			w.l = l
		}
		return err == nil, err
	})
}

// end stops the device and returns the largest delay of its lease.
func (w *goodDevice) end() time.Duration {
	w.cancel()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bad == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c, err := w.ready(ctx)
		if err == nil && (c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Time.Equal(w.since)) {
			err = fmt.Errorf("the good device is Ready=%s (%s) since %s", c.Status, c.Message, c.LastTransitionTime)
		}
		w.bad = err
	}
	return w.worst
}

func (w *goodDevice) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bad
}
