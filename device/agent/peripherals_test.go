package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// fakePeripherals are the peripherals of a board. It counts the queries.
type fakePeripherals struct {
	mu      sync.Mutex
	gone    bool
	queries int
	held    []string
}

func (w *fakePeripherals) connected(_ context.Context, list []fleet.Peripheral,
	held []string) (out []hardware.Presence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queries++
	w.held = held
	for _, p := range list {
		x := hardware.Presence{Name: p.Name, Unasked: slices.Contains(held, "/dev/i2c-1"),
			Device: hardware.Device{Resource: p.Name, ID: "i2c-1/0x76", On: "i2c-1", Nodes: []string{"/dev/i2c-1"}}}
		if w.gone && !x.Unasked {
			x.Missing, x.Device = "nothing answers", hardware.Device{}
		}
		out = append(out, x)
	}
	return out
}

func (w *fakePeripherals) set(gone bool) (queries int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = gone
	queries, w.queries = w.queries, 0
	return queries
}

func (d *device) node(kind corev1.NodeConditionType) corev1.NodeCondition {
	synctest.Wait()
	for _, c := range d.agent.Status().Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// The agent queries peripherals rarely, and never on a bus that a container uses. They become a
// condition and a resource.
func TestPodsGetThePeripheralsOfTheBoardProfile(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		w, one := &fakePeripherals{}, int64(1)
		d.end()
		d.config.Connected = w.connected
		d.board.set(func(b *board) {
			b.devices = []hardware.Device{{Resource: "i2c-1", ID: "i2c-1", Nodes: []string{"/dev/i2c-1"}}}
		})
		d.start()
		profile := &fleet.BoardProfile{}
		profile.Spec.Peripherals = []fleet.Peripheral{{Name: "env", Type: fleet.PeripheralI2C, Bus: &one,
			Address: 0x76}}
		desire := func(generation int64, pods ...corev1.Pod) {
			t.Helper()
			if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", Pods: pods,
				Profile: profile}); err != nil {
				t.Fatal(err)
			}
		}
		amount := func() int64 {
			q := d.agent.Status().Status.Allocatable["flotilla.dev/env"]
			return q.Value()
		}
		if c := d.node(fleet.ConditionPeripheralsPresent); c.Type != "" {
			t.Fatalf("without a profile the condition is %+v, want none", c)
		}
		desire(1)
		time.Sleep(10 * time.Second)
		if c := d.node(fleet.ConditionPeripheralsPresent); c.Status != corev1.ConditionTrue || amount() != 1 {
			t.Fatalf("with the peripheral: condition %+v, allocatable %d", c, amount())
		}
		w.set(false)
		time.Sleep(time.Hour)
		if n := w.set(true); n != 6 {
			t.Errorf("the peripheral was queried %d times in an idle hour, want 6", n)
		}
		time.Sleep(10 * time.Minute)
		if c := d.node(fleet.ConditionPeripheralsPresent); c.Status != corev1.ConditionFalse ||
			c.Message != "env: nothing answers" || amount() != 0 {
			t.Errorf("with an unplugged peripheral: condition %+v, allocatable %d", c, amount())
		}
		w.set(false)
		time.Sleep(2 * time.Minute)
		if c := d.node(fleet.ConditionPeripheralsPresent); c.Status != corev1.ConditionTrue || amount() != 1 {
			t.Errorf("with the peripheral plugged in again: condition %+v, allocatable %d", c, amount())
		}
		if got := strings.Join(d.reasons(), " "); !strings.Contains(got, "PeripheralMissing PeripheralPresent") {
			t.Errorf("the events are %s, want PeripheralMissing, then PeripheralPresent", got)
		}
		// A pod uses the peripheral and its bus. The agent does not query the peripheral, and keeps
		// its state.
		desire(2, requesting("reader", "env", "1", "wait"))
		time.Sleep(time.Minute)
		d.wantDevices("reader", "/dev/i2c-1")
		w.set(true)
		d.end()
		d.start()
		time.Sleep(30 * time.Minute)
		if c := d.node(fleet.ConditionPeripheralsPresent); c.Status != corev1.ConditionTrue || amount() != 1 ||
			!slices.Contains(w.held, "/dev/i2c-1") {
			t.Errorf("while a pod uses the peripheral: condition %+v, allocatable %d, held %q", c, amount(), w.held)
		}
		// The profile no longer lists the peripheral.
		profile.Spec.Peripherals = nil
		desire(3)
		time.Sleep(time.Minute)
		if c := d.node(fleet.ConditionPeripheralsPresent); c.Type != "" || amount() != 0 {
			t.Errorf("without the peripheral in the profile: condition %+v, allocatable %d", c, amount())
		}
	})
}
