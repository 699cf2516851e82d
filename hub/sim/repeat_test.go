package sim

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestFleetALostRequestIsRepeated drops a device's leases on a working link, so that only the hub's
// request makes it report, and drops that request too.
func TestFleetALostRequestIsRepeated(t *testing.T) {
	t.Parallel()
	for _, questions := range []int{0, 1} {
		t.Run(fmt.Sprint(questions, " lost"), func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				var mu sync.Mutex
				silent, lost := false, 0
				w.tap = func(p *packet) []time.Duration {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case p.device != "oslo-1":
					case silent && (p.kind == "lease" || p.kind == "status"):
						return nil
					case p.kind == "request" && lost < questions:
						lost++
						return nil
					}
					return untouched
				}
				mute := func(on bool) {
					mu.Lock()
					defer mu.Unlock()
					silent = on
				}
				w.startHub()
				w.fleet(2, "oslo")
				time.Sleep(time.Minute)
				mute(true)
				w.until(50*time.Second, "Ready=Unknown", func() bool { return w.ready("oslo-1") == corev1.ConditionUnknown })
				mute(false)
				took := w.settleWithin(time.Duration(questions+1)*twoLeases/2, "leases pass again")
				if mu.Lock(); lost != questions {
					t.Errorf("%d requests were lost, and the fleet was right after %s", lost, took)
				}
				mu.Unlock()
			})
		})
	}
}

// TestFleetAResponseResetsTheBackOff drops a request until the hub repeats it once a minute. After
// the response, the next request does not wait for a minute.
func TestFleetAResponseResetsTheBackOff(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		var silent, deaf atomic.Bool // both affect oslo-1, on a working link
		w.tap = func(p *packet) []time.Duration {
			if p.device == "oslo-1" && (silent.Load() && (p.kind == "lease" || p.kind == "status") ||
				deaf.Load() && p.kind == "request") {
				return nil
			}
			return untouched
		}
		fallsSilent := func() {
			t.Helper()
			silent.Store(true)
			w.until(50*time.Second, "Ready=Unknown", func() bool { return w.ready("oslo-1") == corev1.ConditionUnknown })
			silent.Store(false)
		}
		w.startHub()
		w.fleet(2, "oslo")
		deaf.Store(true)
		fallsSilent()
		time.Sleep(85 * time.Second) // shortly before the device would report by itself
		if w.ready("oslo-1") != corev1.ConditionUnknown {
			t.Fatal("the device has reported without a request")
		}
		deaf.Store(false)
		if took := w.settleWithin(40*time.Second, "the device receives again"); took < time.Second {
			t.Fatalf("the request came after only %s: there was no back-off", took)
		}
		time.Sleep(twoLeases / 2) // until a lease confirms the response
		fallsSilent()
		w.settleWithin(5*time.Second, "the earlier request was answered") // at the device's next lease
	})
}

// TestFleetANewLinkResetsTheBackOff drops all messages of the hub until the link breaks, so that
// repetitions back off.
func TestFleetANewLinkResetsTheBackOff(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		var deaf atomic.Bool
		var repeated atomic.Int64
		w.tap = func(p *packet) []time.Duration {
			if deaf.Load() && p.dir == toDevice && (p.kind == "desired" || p.kind == "request") {
				repeated.Add(1)
				return nil
			}
			return untouched
		}
		w.startHub()
		w.fleet(1, "oslo")
		w.deploy("kiosk", 2)
		w.settleWithin(10*time.Second, "the deployment")
		deaf.Store(true)
		w.deploy("kiosk", 5)
		time.Sleep(30 * time.Minute)
		if n := repeated.Load(); n < 10 || n > 45 {
			t.Errorf("the hub sent the desired state %d times in half an hour", n)
		}
		for range 10 { // breaks the link at any moment between two repetitions
			w.cut(w.devices[0])
			synctest.Wait()
			deaf.Store(false)
			w.heal(w.devices[0])
			w.until(70*time.Second, "connected", func() bool { return w.connected() == 1 })
			w.settleWithin(twoLeases, "a new link")
			deaf.Store(true)
			w.deploy("kiosk", int32(2+w.rand.IntN(3)))
			time.Sleep(5*time.Minute + time.Duration(w.rand.Int64N(int64(time.Minute))))
		}
	})
}
