package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/link"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A thin device has only a real link, but no engine and no workloads. A thousand thin devices
// simulate a hub's outage in seconds.
type thin struct {
	w    *world
	name string
	site string
}

func (d *thin) Status() wire.Status {
	return wire.Status{
		Registration: wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: d.site}},
		Status: corev1.NodeStatus{Capacity: lightAllocatable, Allocatable: lightAllocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				Message: "well"}}},
	}
}
func (d *thin) Pods() wire.Pods              { return wire.Pods{} }
func (d *thin) StoredGeneration() int64      { return 0 }
func (d *thin) Desired(wire.Desired)         {}
func (d *thin) Request(string, wire.Request) {}

// thinFleet starts count thin devices on two sites, and returns the function that ends them.
func (w *world) thinFleet(count int) (names []string, end func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	for n := range count {
		d := &thin{w, fmt.Sprintf("pi-%04d", n), []string{"bergen", "oslo"}[n%2]}
		names = append(names, d.name)
		cable := &simDevice{key: d.name}
		l, err := link.New(link.Config{
			Node: d.name, Machine: fmt.Sprintf("%016x", n), Boot: d.name + "-boot", Server: "mqtt://127.0.0.1:1883", Source: d,
			Sink: d, Log: slog.New(slog.DiscardHandler),
			Dial: func(ctx context.Context) (net.Conn, error) { return w.dial(ctx, cable) },
		})
		if err != nil {
			w.t.Fatal(err)
		}
		late := time.Duration(w.rand.Int64N(int64(10 * time.Second)))
		over.Go(func() {
			select {
			case <-time.After(late): // so that not all devices renew at one moment
				_ = l.Run(ctx)
			case <-ctx.Done():
			}
		})
	}
	return names, func() {
		w.relinkAll(names, linkCut) // without DISCONNECT, because the devices do not stop
		cancel()
		over.Wait()
	}
}

func (w *world) relinkAll(names []string, to linkState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		w.links[name] = to
		w.apply(name, to)
	}
}

// notReady lists the nodes that the hub considers not ready.
func (w *world) notReady() (out []string) {
	for n := range w.snapshot().Nodes() {
		if state.ReadyOf(n) != corev1.ConditionTrue {
			out = append(out, n.Name)
		}
	}
	return out
}

// An outage of the hub makes no live device Unknown, however long the outage and however large the
// fleet is.
func TestFleetAnOutageOfTheHubMakesNoNodeUnknown(t *testing.T) {
	t.Parallel()
	few := 41
	if !long {
		few = 11
	}
	outages := []time.Duration{5 * time.Second, 14 * time.Second, 40 * time.Second, 60 * time.Second, 200 * time.Second,
		10 * time.Minute, time.Hour, 24 * time.Hour}
	for _, size := range []int{1, few, 60, 1000} {
		for _, away := range outages {
			switch { // the pause between two tries stops growing after seconds, so size and length are tested separately
			case size > 1 && away > time.Hour, size > 60 && away != 40*time.Second:
				continue
			case !long && (size > few || away != 40*time.Second):
				continue
			}
			t.Run(fmt.Sprintf("%d devices, %s", size, away), func(t *testing.T) {
				t.Parallel()
				simulate(t, func(t *testing.T, w *world) { w.rideOut(size, w.outage(away)) })
			})
		}
	}
	for _, c := range []struct {
		name string
		hit  func(w *world, names []string)
	}{
		{"the hub is killed again just after its return", func(w *world, _ []string) {
			w.outage(100*time.Second)(w, nil)
			time.Sleep(3 * time.Second)
			w.outage(45*time.Second)(w, nil)
		}},
		{"the hub is killed again just before the grace period ends", func(w *world, _ []string) {
			w.outage(50*time.Second)(w, nil)
			time.Sleep(39 * time.Second)
			w.outage(14*time.Second)(w, nil)
		}},
		{"the hub is killed again and again", func(w *world, _ []string) {
			for range 12 {
				w.outage(time.Duration(w.rand.Int64N(int64(90*time.Second))))(w, nil)
				time.Sleep(time.Duration(w.rand.Int64N(int64(45 * time.Second))))
			}
		}},
		{"the hub's links stay half open", func(w *world, names []string) {
			w.relinkAll(names, linkFrozen) // no device notices the end of the hub
			w.crashHub()
			time.Sleep(5 * time.Second)
			w.startHub()
			w.relinkAll(names, linkUp)
		}},
		{"a site is cut off during the outage, and returns before the hub", func(w *world, names []string) {
			w.relinkAll(names[:len(names)/2], linkCut)
			time.Sleep(20 * time.Second)
			w.crashHub()
			time.Sleep(time.Minute)
			w.relinkAll(names[:len(names)/2], linkUp)
			w.startHub()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) { w.rideOut(few, c.hit) })
		})
	}
	for _, c := range []struct {
		name string
		spec fleet.SiteSpec
	}{
		{"a site with the shortest allowed grace", fleet.SiteSpec{NodeMonitorGracePeriod: &metav1.Duration{Duration: 40 * time.Second}}},
		{"a site with a long grace", fleet.SiteSpec{NodeMonitorGracePeriod: &metav1.Duration{Duration: 5 * time.Minute}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				w.rideOut(few, func(w *world, names []string) {
					w.site("oslo", func(s *fleet.SiteSpec) { *s = c.spec })
					w.outage(200*time.Second)(w, names)
				})
			})
		})
	}
}

// outage kills and restarts the hub.
func (w *world) outage(away time.Duration) func(*world, []string) {
	return func(w *world, _ []string) {
		w.crashHub()
		time.Sleep(away)
		w.startHub()
	}
}

// rideOut runs hit on a healthy fleet, and then checks that every node stays ready.
func (w *world) rideOut(size int, hit func(*world, []string)) {
	t := w.t
	t.Helper()
	w.startHub()
	names, end := w.thinFleet(size)
	defer end()
	w.until(time.Minute, "all registered", func() bool {
		return w.snapshot().Len(state.Nodes) == size && len(w.notReady()) == 0
	})
	time.Sleep(37 * time.Second)
	hit(w, names)
	began := time.Now()
	w.until(25*time.Second, "heartbeats of all devices", func() bool {
		for _, name := range names {
			if w.hub.Loop.Liveness(name).Seen.IsZero() {
				return false
			}
		}
		return true
	})
	t.Logf("heartbeats of all devices %s after the return", time.Since(began).Round(time.Millisecond))
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	if wrong := w.notReady(); len(wrong) > 0 {
		t.Errorf("%d of %d nodes are not ready: %v", len(wrong), size, wrong[:min(len(wrong), 5)])
	}
	for _, what := range []string{"Ready=Unknown", "NoExecute", "evict "} {
		if said := w.look.sentences(what); len(said) > 0 {
			t.Errorf("%d lines report the outage, the first is %q", len(said), said[0].text)
		}
	}
}
