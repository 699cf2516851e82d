package sim

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func TestFleetLeasesCauseNoCommitAndNoPass(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo", "bergen")
		w.deploy("kiosk", 4)
		w.settleWithin(10*time.Second, "the deployment")
		time.Sleep(15 * time.Minute) // until the devices have reported their images
		loop := w.hub.Loop
		commits, passes, before := loop.Commits(), loop.Passes(), w.hub.Broker.Stats().Messages
		time.Sleep(time.Hour)
		after := w.hub.Broker.Stats().Messages
		leases, others := after["lease"]-before["lease"],
			after["status"]+after["pods"]+after["event"]-before["status"]-before["pods"]-before["event"]
		if leases < 4*3600/11 {
			t.Fatalf("%d leases in an hour of four devices", leases)
		}
		if n := loop.Commits() - commits; n > 0 {
			t.Errorf("%d commits in a quiet hour", n)
		}
		// A pass checks a node's deadline at most once per 29 s, the grace period less the age of a
		// lease.
		if n, looks := loop.Passes()-passes, uint64(4*3600/29); n > looks+others {
			t.Errorf("%d passes in a quiet hour with %d leases, %d other messages and at most %d deadline checks", n, leases,
				others, looks)
		}
		commits, passes = loop.Commits(), loop.Passes()
		v := loop.Liveness("oslo-1")
		for n := range uint64(10_000) {
			loop.Lease(node.Caller{Node: "oslo-1"}, wire.Lease{Boot: v.Boot, Seq: v.Lease + 1 + n, Desired: v.Wanted})
		}
		if c, p := loop.Commits()-commits, loop.Passes()-passes; c > 0 || p > 0 {
			t.Errorf("ten thousand leases cause %d commits and %d passes", c, p)
		}
	})
}

// TestFleetADay simulates a day of two hundred devices on eight sites, one with Hold. Devices lose
// power or their link, sites lose their uplink, the hub restarts, and is once unreachable.
func TestFleetADay(t *testing.T) {
	t.Parallel()
	hours := 24
	if !long {
		hours = 3
	}
	if *simHours > 0 {
		hours = *simHours
	}
	seed := uint64(20)
	if *simSeed != 0 {
		seed = *simSeed
	}
	simulate(t, func(t *testing.T, w *world) {
		w.seeded(seed)
		// A longer lease interval, so that a day passes in seconds.
		w.cfg.LeaseInterval, w.cfg.NodeMonitorGracePeriod = time.Minute, 4*time.Minute
		w.look.every = 53 * time.Second
		const sites = 8
		each := 25
		if !long {
			each = 8
		}
		var all []*light
		site := func(n int) string { return fmt.Sprint("site-", n) }
		for n := range sites * each {
			all = append(all, w.newLight(fmt.Sprintf("pi-%03d", n+1), site(n%sites)))
		}
		w.startHub()
		w.policy(site(0), fleet.Hold)
		w.light(all...)
		w.deploy("kiosk", int32(12*each))
		w.daemonSet("meter")
		w.deploy("gateway", 20, tolerating(30*time.Second))
		time.Sleep(3 * time.Minute)
		w.allLightsRight()

		later := func(most time.Duration, f func()) { time.AfterFunc(time.Duration(w.rand.Int64N(int64(most))), f) }
		darkAt := w.clock() + time.Duration(hours)*time.Hour/2
		for end := w.clock() + time.Duration(hours)*time.Hour; w.clock() < end; {
			time.Sleep(time.Duration(w.rand.Int64N(int64(8 * time.Minute))))
			one := all[w.rand.IntN(len(all))]
			switch x := w.rand.IntN(20); {
			case w.clock() > darkAt:
				darkAt = end
				w.join(false, all...)
				time.Sleep(20 * time.Minute)
				for _, l := range all {
					later(time.Minute, func() { l.link(true) })
				}
			case x < 9:
				one.link(false)
				later(20*time.Minute, func() { one.link(true) })
			case x < 14:
				one.power(false)
				later(20*time.Minute, func() { one.power(true) })
			case x < 16:
				which, most := site(w.rand.IntN(sites)), time.Duration(w.rand.Int64N(int64(40*time.Minute)))
				for _, l := range all {
					if l.site == which {
						l.link(false)
						time.AfterFunc(most+time.Duration(w.rand.Int64N(int64(time.Minute))), func() { l.link(true) })
					}
				}
			case x < 17:
				w.crashHub()
				time.Sleep(time.Duration(w.rand.Int64N(int64(90 * time.Second))))
				w.startHub()
			default:
				w.deploy("kiosk", int32(10*each+w.rand.IntN(4*each)))
			}
		}
		time.Sleep(45 * time.Minute) // by now every outage has ended
		w.join(true, all...)
		time.Sleep(2 * w.cfg.LeaseInterval * 104 / 100)
		w.allLightsRight()
		said := func(s string) int { return len(w.look.sentences(s)) }
		t.Logf("%d h: %d times Unknown, %d NoExecute, %d pods evicted, %d passes of the last hub; log %d lines",
			hours, said("Ready=Unknown"), said("NoExecute"), said("evict "), w.hub.Loop.Passes(), w.lines.total())
		if said("evict ") == 0 || said("is dark") == 0 {
			t.Error("the day had no failures")
		}
	})
}

// allLightsRight checks that hub and devices agree.
func (w *world) allLightsRight() {
	w.t.Helper()
	s := w.snapshot()
	for name, l := range w.lights {
		if !l.lit {
			continue
		}
		n, rec := s.Node(name), s.Record(name)
		if n == nil || state.ReadyOf(n) != corev1.ConditionTrue || ours(n) != nil {
			w.t.Errorf("at %s: node %s is not as expected: %+v", w.clock(), name, n)
			return
		}
		if v := w.hub.Loop.Liveness(name); v.Stored != rec.Generation {
			w.t.Errorf("at %s: %s has stored generation %d, want %d", w.clock(), name, v.Stored, rec.Generation)
		}
		live := l.running()
		for p := range s.PodsOn(name) {
			if live[p.UID] == "" || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
				w.t.Errorf("at %s: pod %s on %s: runs %v, %s, to be deleted %v", w.clock(), p.Name, name, live[p.UID] != "",
					p.Status.Phase, p.DeletionTimestamp)
			}
			delete(live, p.UID)
		}
		if len(live) > 0 {
			w.t.Errorf("at %s: %s runs %v, which should not run", w.clock(), name, live)
		}
	}
	for d := range s.All(state.Deployments, metav1.NamespaceDefault) {
		d := s.Deployment(d.GetNamespace(), d.GetName())
		if d.Status.ReadyReplicas != *d.Spec.Replicas {
			w.t.Errorf("at %s: deployment %s has %d of %d pods", w.clock(), d.Name, d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
	}
}
