package sim

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// kinds are all messages of the protocol, and the broker's packets. Packets of connecting are left
// out, because without them the link begins again.
var kinds = []struct {
	dir  direction
	kind string
}{
	{toHub, "lease"}, {toHub, "status"}, {toHub, "pods"}, {toHub, "event"}, {toHub, "presence"}, {toHub, "pingreq"},
	{toDevice, "desired"}, {toDevice, "request"}, {toDevice, "puback"}, {toDevice, "pingresp"},
}

// happenings cause messages between hub and devices. Each ends in the initial state, so that it can
// be repeated.
var happenings = []struct {
	name string
	do   func(w *world)
	slow int // 1: it takes minutes, so even with FLOTILLA_LONG only the first message of a kind is affected
}{
	{"a deployment grows and shrinks", func(w *world) {
		n := int32(4)
		if *w.snapshot().Deployment("default", "kiosk").Spec.Replicas == 4 {
			n = 2
		}
		w.deploy("kiosk", n)
	}, 0},
	{"a pod is deleted", func(w *world) {
		w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			for p := range s.Pods("default") {
				if p.DeletionTimestamp == nil && p.Spec.NodeName != "" {
					c, _ := state.Delete(p, now, nil, "delete "+p.Name)
					return []state.Change{c}, nil
				}
			}
			return nil, nil
		})
	}, 0},
	{"a device runs short of process ids, or has enough again", func(w *world) {
		d := w.devices[0]
		was := d.says(corev1.NodePIDPressure)
		d.board.set(func(b *simBoard) { b.pids = !was })
		// The device reports the end of pressure after five minutes.
		w.until(6*time.Minute, "the device reports the change", func() bool { return d.says(corev1.NodePIDPressure) != was })
	}, 1},
	{"a container crashes", func(w *world) { w.devices[0].crash() }, 0},
	{"the hub asks a device to report", func(w *world) {
		_ = w.hub.Broker.Request(w.devices[0].name, "ask", wire.Request{Type: wire.RequestRefresh})
	}, 0},
	{"a link breaks", func(w *world) {
		w.cut(w.devices[0])
		synctest.Wait()
		w.heal(w.devices[0])
	}, 0},
	{"an agent is killed and starts again", func(w *world) {
		w.devices[1].kill()
		w.devices[1].start()
	}, 0},
	{"an agent is stopped in order and starts again", func(w *world) {
		d := w.devices[1]
		d.agent.Shutdown("the test stops the agent")
		d.stop()
		d.start()
	}, 0},
	{"the hub restarts", func(w *world) {
		w.crashHub()
		w.startHub()
	}, 0},
	{"a silent device returns", func(w *world) {
		d := w.devices[0]
		w.freeze(d)
		time.Sleep(50 * time.Second)
		w.heal(d)
	}, 0},
}

func TestFleetAnySingleMessageMayBeLostDoubledOrLate(t *testing.T) {
	var mu sync.Mutex
	hits, least := map[string]int{}, len(fates)
	if !long {
		least = 1
	}
	t.Cleanup(func() {
		for _, k := range kinds {
			if hits[k.kind] < least && !t.Failed() {
				t.Errorf("only %d messages of kind %s were affected", hits[k.kind], k.kind)
			}
		}
	})
	for n, h := range happenings {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				hit := map[string]int{}
				arm := w.accidents()
				w.startHub()
				w.fleet(2, "oslo")
				w.deploy("kiosk", 2)
				w.settleWithin(10*time.Second, "the deployment")
				for m, k := range kinds {
					for l, f := range fates {
						if !long && (n+m+l)%len(fates) > 0 {
							continue // each kind has another fate in the next happening; see long
						}
						for nth := 1; nth == 1 || nth == 2 && h.slow == 0 && long; nth++ {
							time.Sleep(time.Duration(w.rand.Int64N(int64(10 * time.Second))))
							a := &accident{dir: k.dir, kind: k.kind, fate: f.is, left: nth}
							arm(a)
							h.do(w)
							w.until(70*time.Second, "all connected", func() bool { return w.connected() == len(w.devices) })
							linked := time.Now()
							time.Sleep(12 * time.Second)
							arm(nil)
							at := a.happened()
							what := fmt.Sprintf("%s; the %s message no. %d (%s) was %s", h.name, k.kind, nth, k.dir, f.name)
							if at.IsZero() {
								w.settleWithin(time.Minute, h.name)
								continue
							}
							hit[k.kind]++
							if linked.After(at) {
								at = linked
							}
							// The time counts from the arrival of late copies.
							for _, late := range f.is {
								if arrives := at.Add(late); arrives.After(at) && late < 12*time.Second {
									at = arrives
								}
							}
							w.settleWithin(max(time.Until(at.Add(twoLeases)), 0), what)
							if h.slow == 0 && (k.kind == "event" || k.kind == "puback") {
								w.until(max(time.Until(at.Add(twoLeases)), 0), what+"; an event is missing", w.heardOfStarts)
							}
						}
					}
				}
				t.Logf("%s: %v", h.name, hit)
				mu.Lock()
				defer mu.Unlock()
				for kind, n := range hit {
					hits[kind] += n
				}
			})
		})
	}
}

// heardOfStarts tells whether the hub has received the start event of every running container. A
// device sends that event once.
func (w *world) heardOfStarts() bool {
	s := w.snapshot()
	heard := map[types.UID]bool{}
	for e := range state.Each[*corev1.Event](s, state.Events, "default") {
		if e.Reason == "Started" {
			heard[e.InvolvedObject.UID] = true
		}
	}
	for _, d := range w.devices {
		for uid := range d.running() {
			if !heard[uid] {
				return false
			}
		}
	}
	return true
}
