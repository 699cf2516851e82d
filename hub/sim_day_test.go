package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
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
		time.Sleep(15 * time.Minute) // they tell which images they have
		loop := w.hub.loop
		commits, passes, before := loop.Commits(), loop.Passes(), w.hub.broker.Stats().Messages
		time.Sleep(time.Hour)
		after := w.hub.broker.Stats().Messages
		leases, others := after["lease"]-before["lease"], after["status"]+after["pods"]+after["event"]-before["status"]-before["pods"]-before["event"]
		if leases < 4*3600/11 {
			t.Fatalf("%d leases in an hour of four devices", leases)
		}
		if n := loop.Commits() - commits; n > 0 {
			t.Errorf("%d commits in a quiet hour", n)
		}
		// A node's deadline is looked at once per grace less the age of its lease.
		if n, looks := loop.Passes()-passes, uint64(4*3600/29); n > looks+others {
			t.Errorf("%d passes in a quiet hour with %d leases, %d other messages and at most %d deadlines", n, leases, others, looks)
		}
		commits, passes = loop.Commits(), loop.Passes()
		v := loop.Liveness("oslo-1")
		for n := range uint64(10_000) {
			loop.Lease("oslo-1", wire.Lease{Boot: v.Boot, Seq: v.Lease + 1 + n, Desired: v.Wanted})
		}
		if c, p := loop.Commits()-commits, loop.Passes()-passes; c > 0 || p > 0 {
			t.Errorf("ten thousand leases cause %d commits and %d passes", c, p)
		}
	})
}

// A light is a device that speaks the protocol with the hub's door directly,
// without MQTT and without an engine: two hundred of them live a day in seconds.
// Its pods run as soon as it wants them to, and stop within two seconds.
type light struct {
	w          *world
	name, site string

	inbox chan func()
	rand  *rand.Rand

	// Only its own goroutine looks at these.
	boots              int
	seq, status, pods  uint64
	desired            wire.Desired
	off, cut, greeted  bool
	interval           time.Duration
	nextLease, nextSay time.Time

	mu   sync.Mutex
	live map[types.UID]string
}

func (w *world) newLight(name, site string) *light {
	seed := w.rand.Uint64()
	l := &light{w: w, name: name, site: site, inbox: make(chan func(), 64), live: map[types.UID]string{}, rand: rand.New(rand.NewPCG(seed, seed)), interval: w.cfg.LeaseInterval}
	w.lights[name] = l
	return l
}

func (l *light) running() map[types.UID]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[types.UID]string, len(l.live))
	for k, v := range l.live {
		out[k] = v
	}
	return out
}

func (l *light) boot() string { return fmt.Sprint(l.name, "-", l.boots) }

// post tells the device something; one that has too much to do does not hear.
func (l *light) post(f func()) {
	select {
	case l.inbox <- f:
	default:
	}
}

func (l *light) run(ctx context.Context) {
	timer := time.NewTimer(time.Duration(l.rand.Int64N(int64(time.Second))))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-l.inbox:
			f()
		case <-timer.C:
		}
		timer.Reset(l.turn(time.Now()))
	}
}

// hub is the loop if the device can reach it now.
func (l *light) hub() *control.Loop {
	if l.off || l.cut {
		return nil
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.hub == nil {
		return nil
	}
	return l.w.hub.loop
}

func (l *light) turn(now time.Time) time.Duration {
	loop := l.hub()
	if loop == nil {
		l.greeted = false
		return 5 * time.Second
	}
	if !l.greeted || !now.Before(l.nextSay) {
		if !l.say(loop) {
			return time.Second
		}
		l.greeted = true
		l.nextSay = now.Add(time.Duration(float64(5*time.Minute) * (0.5 + 0.5*l.rand.Float64())))
		l.nextLease = now
	}
	if !now.Before(l.nextLease) {
		l.lease(loop)
	}
	return min(l.nextLease.Sub(now), l.nextSay.Sub(now))
}

func (l *light) lease(loop *control.Loop) {
	l.seq++
	l.nextLease = time.Now().Add(time.Duration(float64(l.interval) * (1 + 0.04*l.rand.Float64())))
	if l.rand.IntN(100) > 0 { // one of a hundred is lost
		loop.Lease(l.name, wire.Lease{Boot: l.boot(), Seq: l.seq, Status: l.status, Pods: l.pods, Desired: l.desired.Generation, Time: time.Now()})
	}
}

var lightAllocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourcePods: resource.MustParse("110")}

// say sends status and pods.
func (l *light) say(loop *control.Loop) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l.status++
	err := loop.Status(ctx, l.name, wire.Status{
		Boot: l.boot(), Seq: l.status, Time: time.Now(), MachineID: l.name,
		Registration: wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: l.site}},
		Status: corev1.NodeStatus{Capacity: lightAllocatable, Allocatable: lightAllocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "well"}}},
	})
	return err == nil && l.list(loop)
}

func (l *light) list(loop *control.Loop) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l.pods++
	said := wire.Pods{Boot: l.boot(), Seq: l.pods, Generation: l.desired.Generation}
	for _, p := range l.desired.Pods {
		if l.runs(p.UID) {
			said.Pods = append(said.Pods, wire.PodStatus{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Status: corev1.PodStatus{
				Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			}})
		}
	}
	return loop.Pods(ctx, l.name, said) == nil
}

func (l *light) runs(uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live[uid] != ""
}

// told is what the hub publishes to the device.
func (l *light) told(payload []byte) {
	var d wire.Desired
	if err := json.Unmarshal(payload, &d); err != nil {
		l.w.look.broken("desired state of %s: %v", l.name, err)
		return
	}
	loop := l.hub()
	if loop == nil || l.desired.Hub == d.Hub && d.Generation < l.desired.Generation {
		return
	}
	l.desired = d
	l.obey(false)
	l.lease(loop)
	l.list(loop)
	time.AfterFunc(time.Duration(l.rand.Int64N(int64(2*time.Second))), func() {
		l.post(func() {
			l.obey(true)
			if loop := l.hub(); loop != nil {
				l.list(loop)
			}
		})
	})
}

// obey runs what is desired; what is to stop stops when its time has come.
func (l *light) obey(stop bool) {
	if l.off {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := map[types.UID]bool{}
	for _, p := range l.desired.Pods {
		if p.DeletionTimestamp == nil {
			wanted[p.UID] = true
			l.live[p.UID] = p.Namespace + "/" + p.Name
		}
	}
	for uid := range l.live {
		if !wanted[uid] && stop {
			delete(l.live, uid)
		}
	}
}

// power switches the device off, or boots it again: its pods run from memory.
func (l *light) power(on bool) {
	l.post(func() {
		l.off, l.greeted = !on, false
		if !on {
			l.mu.Lock()
			clear(l.live)
			l.mu.Unlock()
			return
		}
		l.boots++
		l.seq, l.status, l.pods = 0, 0, 0
		l.obey(true)
	})
}

func (l *light) link(up bool) { l.post(func() { l.cut, l.greeted = !up, false }) }

// A switchboard reaches lights beside the devices of the broker.
type switchboard struct {
	control.Broker
	w *world
}

func (s switchboard) Publish(node string, c wire.Channel, payload []byte) error {
	if l := s.w.lights[node]; l != nil {
		l.post(func() { l.told(payload) })
		return nil
	}
	return s.Broker.Publish(node, c, payload)
}

func (s switchboard) Request(node, id string, r wire.Request) error {
	if l := s.w.lights[node]; l != nil {
		l.post(func() {
			if loop := l.hub(); loop != nil && r.Type == wire.RequestRefresh {
				l.say(loop)
			}
		})
		return nil
	}
	return s.Broker.Request(node, id, r)
}

// TestFleetADay is a day of two hundred devices on eight sites, one of them with
// Hold: devices lose power or their link, sites their uplink, the hub is restarted,
// and once nobody can reach it.
func TestFleetADay(t *testing.T) {
	t.Parallel()
	hours := 24
	if testing.Short() || raced {
		hours = 4
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
		// A slower pulse, so that a day passes in seconds.
		w.cfg.LeaseInterval, w.cfg.NodeMonitorGracePeriod = time.Minute, 4*time.Minute
		w.look.every = 53 * time.Second
		const sites, each = 8, 25
		var all []*light
		site := func(n int) string { return fmt.Sprint("site-", n) }
		for n := range sites * each {
			all = append(all, w.newLight(fmt.Sprintf("pi-%03d", n+1), site(n%sites)))
		}
		w.startHub()
		w.policy(site(0), fleet.Hold)
		ctx, cancel := context.WithCancel(context.Background())
		var ends sync.WaitGroup
		for _, l := range all {
			ends.Go(func() { l.run(ctx) })
		}
		defer func() {
			cancel()
			ends.Wait()
		}()
		w.deploy("kiosk", 300)
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
				for _, l := range all {
					l.link(false)
				}
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
				w.deploy("kiosk", int32(250+w.rand.IntN(100)))
			}
		}
		time.Sleep(45 * time.Minute) // everything that was to come back is back
		for _, l := range all {
			l.link(true)
		}
		time.Sleep(2 * w.cfg.LeaseInterval * 104 / 100)
		w.allLightsRight()
		said := func(s string) int { return len(w.look.sentences(s)) }
		t.Logf("%d h: %d times Unknown, %d NoExecute, %d pods evicted, %d passes of the last hub; log %d lines",
			hours, said("Ready=Unknown"), said("NoExecute"), said("evict "), w.hub.loop.Passes(), w.lines.total())
		if said("evict ") == 0 || said("FullDisruption") == 0 {
			t.Error("it was a day without failures")
		}
	})
}

// allLightsRight checks that hub and devices agree.
func (w *world) allLightsRight() {
	w.t.Helper()
	s := w.snapshot()
	for name, l := range w.lights {
		n, rec := s.Node(name), s.Record(name)
		if n == nil || state.ReadyOf(n) != corev1.ConditionTrue || ours(n) != nil {
			w.t.Errorf("at %s: node %s is not right: %+v", w.clock(), name, n)
			return
		}
		if v := w.hub.loop.Liveness(name); v.Stored != rec.Generation {
			w.t.Errorf("at %s: %s has stored %d and should have %d", w.clock(), name, v.Stored, rec.Generation)
		}
		live := l.running()
		for p := range s.PodsOn(name) {
			if live[p.UID] == "" || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
				w.t.Errorf("at %s: pod %s on %s: runs %v, %s, to be deleted %v", w.clock(), p.Name, name, live[p.UID] != "", p.Status.Phase, p.DeletionTimestamp)
			}
			delete(live, p.UID)
		}
		if len(live) > 0 {
			w.t.Errorf("at %s: %s runs %v, which nobody wants", w.clock(), name, live)
		}
	}
	for d := range s.All(state.Deployments, metav1.NamespaceDefault) {
		d := s.Deployment(d.GetNamespace(), d.GetName())
		if d.Status.ReadyReplicas != *d.Spec.Replicas {
			w.t.Errorf("at %s: deployment %s has %d of %d pods", w.clock(), d.Name, d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
	}
}
