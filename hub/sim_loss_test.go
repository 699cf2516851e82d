package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "repeat the simulations of chance with this seed only")
	simHours = flag.Int("sim.hours", 0, "length of the day of two hundred devices (default 24, with the race detector or -short 3)")
)

// An accident happens to one packet: the nth of its kind after it was armed.
type accident struct {
	dir  direction
	kind string
	fate []time.Duration

	mu   sync.Mutex
	left int
	at   time.Time // when it happened; zero: not yet
}

func (a *accident) tap(p *packet) []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.dir != a.dir || p.kind != a.kind || !a.at.IsZero() {
		return untouched
	}
	if a.left--; a.left > 0 {
		return untouched
	}
	a.at = time.Now()
	return a.fate
}

func (a *accident) happened() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// fates are what can become of a message.
var fates = []struct {
	name string
	is   []time.Duration
}{
	{"lost", nil},
	{"doubled", []time.Duration{0, 0}},
	{"3 s late", []time.Duration{3 * time.Second}},
	{"doubled, the second 12 s late", []time.Duration{0, 12 * time.Second}},
}

// kinds are all messages of the protocol, and what the broker says to them. Those
// of connecting are not there: without them there is no link, and the next one
// begins anew.
var kinds = []struct {
	dir  direction
	kind string
}{
	{toHub, "lease"}, {toHub, "status"}, {toHub, "pods"}, {toHub, "event"}, {toHub, "presence"}, {toHub, "pingreq"},
	{toDevice, "desired"}, {toDevice, "request"}, {toDevice, "puback"}, {toDevice, "pingresp"},
}

// happenings are what makes hub and devices talk. Each ends with everything as it
// was, so that it can happen again.
var happenings = []struct {
	name string
	do   func(w *world)
	slow int // 1: it takes minutes, so only the first message of a kind is hit
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
		// The end of pressure is told after five minutes.
		w.until(6*time.Minute, "the device knows", func() bool { return d.says(corev1.NodePIDPressure) != was })
	}, 1},
	{"a container crashes", func(w *world) { w.devices[0].crash() }, 0},
	{"the hub asks a device to report", func(w *world) {
		_ = w.hub.broker.Request(w.devices[0].name, "ask", wire.Request{Type: wire.RequestRefresh})
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
		d.agent.Shutdown("the test stops it")
		d.stop()
		d.start()
	}, 0},
	{"the hub restarts", func(w *world) {
		w.crashHub()
		w.startHub()
	}, 0},
	{"a device returns that was silent", func(w *world) {
		d := w.devices[0]
		w.freeze(d)
		time.Sleep(50 * time.Second)
		w.heal(d)
	}, 0},
}

func TestFleetAnySingleMessageMayBeLostDoubledOrLate(t *testing.T) {
	var mu sync.Mutex
	hits := map[string]int{}
	t.Cleanup(func() {
		for _, k := range kinds {
			if hits[k.kind] < len(fates) && !t.Failed() {
				t.Errorf("only %d messages of kind %s were hit", hits[k.kind], k.kind)
			}
		}
	})
	for _, h := range happenings {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				hit := map[string]int{}
				var now *accident
				w.tap = func(p *packet) []time.Duration {
					w.mu.Lock()
					a := now
					w.mu.Unlock()
					if a == nil {
						return untouched
					}
					return a.tap(p)
				}
				w.startHub()
				w.fleet(2, "oslo")
				w.deploy("kiosk", 2)
				w.settleWithin(10*time.Second, "the deployment")
				for _, k := range kinds {
					for _, f := range fates {
						for nth := 1; nth <= 2-h.slow; nth++ {
							time.Sleep(time.Duration(w.rand.Int64N(int64(10 * time.Second))))
							a := &accident{dir: k.dir, kind: k.kind, fate: f.is, left: nth}
							w.arm(&now, a)
							h.do(w)
							w.until(70*time.Second, "all connected", func() bool { return w.connected() == len(w.devices) })
							linked := time.Now()
							time.Sleep(12 * time.Second)
							w.arm(&now, nil)
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
							// Late copies count from their arrival.
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

// heardOfStarts tells whether the hub has heard of the start of every container
// that runs, which the device tells once, in an event.
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

func (w *world) arm(now **accident, a *accident) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*now = a
}

// TestFleetALostQuestionIsAskedAgain lets a device's leases vanish on a link that
// stays, so that nothing but the hub's question makes it report, and loses the
// question too.
func TestFleetALostQuestionIsAskedAgain(t *testing.T) {
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
					t.Errorf("%d questions were lost, right after %s", lost, took)
				}
				mu.Unlock()
			})
		})
	}
}

// TestFleetANewLinkOwesNothingToTheLastOne lets everything vanish that the hub says,
// so that it repeats itself ever more seldom, until the link breaks.
func TestFleetANewLinkOwesNothingToTheLastOne(t *testing.T) {
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
			t.Errorf("the hub said it %d times in half an hour", n)
		}
		for range 10 { // at any moment of the minute between two repetitions
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

// TestFleetChance loses, doubles and delays messages at random, while people and
// devices do at random what they do.
func TestFleetChance(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if testing.Short() || raced {
		seeds = seeds[:3]
	}
	if *simSeed != 0 {
		seeds = []uint64{*simSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				w.seeded(seed)
				var mu sync.Mutex
				chance, bad := rand.New(rand.NewPCG(seed, 7)), false
				loss := 0.05 + 0.25*chance.Float64()
				w.tap = func(p *packet) []time.Duration {
					mu.Lock()
					defer mu.Unlock()
					if !bad {
						return untouched
					}
					switch x := chance.Float64(); {
					case x < loss:
						return nil
					case x < loss+0.1:
						return []time.Duration{0, time.Duration(chance.Int64N(int64(20 * time.Second)))}
					case x < loss+0.2:
						return []time.Duration{time.Duration(chance.Int64N(int64(8 * time.Second)))}
					}
					return untouched
				}
				w.startHub()
				w.fleet(2, "oslo", "bergen")
				w.deploy("kiosk", 3)
				w.daemonSet("meter")
				w.settleWithin(10*time.Second, "the workloads")
				for range 6 {
					mu.Lock()
					bad = true
					mu.Unlock()
					for range 12 {
						w.something()
						time.Sleep(time.Duration(w.rand.Int64N(int64(20 * time.Second))))
					}
					mu.Lock()
					bad = false
					mu.Unlock()
					w.heal(w.devices...)
					w.until(70*time.Second, "all connected", func() bool { return w.connected() == len(w.devices) })
					// Questions back off to a minute while nothing comes back.
					w.settleWithin(time.Minute+twoLeases, "the weather got better")
				}
			})
		})
	}
}

// something is what happens to a fleet on an ordinary day.
func (w *world) something() {
	d := w.devices[w.rand.IntN(len(w.devices))]
	switch w.rand.IntN(9) {
	case 0:
		w.deploy("kiosk", int32(1+w.rand.IntN(5)))
	case 1, 2:
		happenings[1].do(w)
	case 3:
		d = w.devices[0]
		d.board.set(func(b *simBoard) { b.pids = !b.pids })
	case 4:
		d.crash()
	case 5:
		w.cut(d)
		time.Sleep(time.Duration(w.rand.Int64N(int64(5 * time.Second))))
		w.heal(d)
	case 6:
		d.kill()
		d.start()
	case 7:
		w.crashHub()
		w.startHub()
	case 8:
		d.powerCut()
		d.powerOn()
	}
}

// crash ends one container of the device, as a bug in it does.
func (d *simDevice) crash() {
	var uids []string
	for uid := range d.running() {
		uids = append(uids, string(uid))
	}
	if len(uids) == 0 {
		return
	}
	slices.Sort(uids)
	d.mu.Lock()
	for key := range d.starts {
		if strings.HasPrefix(key, uids[0]+"/") {
			d.starts[key]-- // it may be started once more
		}
	}
	d.mu.Unlock()
	d.twin.Exit(d.container(uids[0]), 1)
}
