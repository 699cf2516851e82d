package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "repeat the random simulations with this seed only")
	simHours = flag.Int("sim.hours", 0, "simulated hours of TestFleetADay (default 3, or 24 with FLOTILLA_LONG)")
)

// TestFleetChance loses, doubles and delays messages at random during random events.
func TestFleetChance(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if !long {
		seeds = seeds[:1]
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
					// Requests have backed off to a minute, because there was no response.
					w.settleWithin(time.Minute+twoLeases, "the end of the disturbances")
				}
			})
		})
	}
}

// something does one random action of an ordinary day.
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

// crash ends one container of the device, as by a bug in its program.
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
			d.starts[key]-- // so that one more start is allowed
		}
	}
	d.mu.Unlock()
	d.fake.Exit(d.container(uids[0]), 1)
}
