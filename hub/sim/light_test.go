package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/node"
	"flotilla.dev/shared/wire"
)

// A light is a device that calls the hub's node.Devices directly, without MQTT and without an
// engine. Two hundred lights simulate a day in seconds. Their pods run at once and stop within two
// seconds.
type light struct {
	w          *world
	name, site string

	inbox chan func()
	rand  *rand.Rand

	lit bool // was switched on at least once

	// The fields below belong to the light's own goroutine.
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
	l := &light{w: w, name: name, site: site, inbox: make(chan func(), 64), live: map[types.UID]string{},
		rand: rand.New(rand.NewPCG(seed, seed)), interval: w.cfg.LeaseInterval}
	w.lights[name] = l
	return l
}

// newLights creates count lights on a site, named SITE-01 and so on.
func (w *world) newLights(site string, count int) (made []*light) {
	for n := range count {
		made = append(made, w.newLight(fmt.Sprintf("%s-%02d", site, n+1), site))
	}
	return made
}

// light switches lights on for the first time, and waits until the hub has received a message of
// each. They run until the world ends.
func (w *world) light(all ...*light) {
	for _, l := range all {
		l.lit = true
		w.shining.Go(func() { l.run(w.day) })
	}
	time.Sleep(3 * time.Second)
}

// lightUp starts the hub, lights and a number of kiosks, and waits until all is right.
func (w *world) lightUp(all []*light, kiosks int32, edits ...func(*corev1.PodSpec)) {
	w.t.Helper()
	w.startHub()
	w.light(all...)
	if kiosks > 0 {
		w.deploy("kiosk", kiosks, edits...)
	}
	time.Sleep(time.Minute)
	w.allLightsRight()
}

// rejoin restores links, and waits until all is right.
func (w *world) rejoin(all ...*light) {
	w.t.Helper()
	w.join(true, all...)
	time.Sleep(time.Minute)
	w.allLightsRight()
}

// join changes the links of many lights.
func (w *world) join(up bool, all ...*light) {
	for _, l := range all {
		l.link(up)
	}
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

// post queues f for the device's goroutine. An overloaded device drops it.
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

// hub returns the loop if the device can reach it.
func (l *light) hub() *node.Devices {
	if l.off || l.cut {
		return nil
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.hub == nil {
		return nil
	}
	return l.w.hub.Loop
}

func (l *light) turn(now time.Time) time.Duration {
	loop := l.hub()
	if loop == nil {
		l.greeted = false
		return 5 * time.Second
	}
	if !l.greeted || !now.Before(l.nextSay) {
		if l.say(loop) {
			l.greeted = true
			l.nextSay = now.Add(time.Duration(float64(5*time.Minute) * (0.5 + 0.5*l.rand.Float64())))
			l.nextLease = now
		} else { // the hub could not store the status; the heartbeat does not depend on that
			l.nextSay = now.Add(time.Second)
		}
	}
	if !now.Before(l.nextLease) {
		l.lease(loop)
	}
	return min(l.nextLease.Sub(now), l.nextSay.Sub(now))
}

func (l *light) lease(loop *node.Devices) {
	l.seq++
	l.nextLease = time.Now().Add(time.Duration(float64(l.interval) * (1 + 0.04*l.rand.Float64())))
	if l.rand.IntN(100) > 0 { // one lease of a hundred is lost
		loop.Lease(node.Caller{Node: l.name}, wire.Lease{Boot: l.boot(), Seq: l.seq, Status: l.status, Pods: l.pods,
			Desired: l.desired.Generation, Time: time.Now()})
	}
}

var lightAllocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
	corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourcePods: resource.MustParse("110")}

// say sends the status and the list of pods.
func (l *light) say(loop *node.Devices) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l.status++
	err := loop.Status(ctx, node.Caller{Node: l.name}, wire.Status{
		Boot: l.boot(), Seq: l.status, Time: time.Now(), MachineID: l.name,
		Registration: wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: l.site}},
		Status: corev1.NodeStatus{Capacity: lightAllocatable, Allocatable: lightAllocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				Message: "well"}}},
	})
	return err == nil && l.list(loop)
}

func (l *light) list(loop *node.Devices) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l.pods++
	said := wire.Pods{Boot: l.boot(), Seq: l.pods, Generation: l.desired.Generation}
	for _, p := range l.desired.Pods {
		if l.runs(p.UID) {
			said.Pods = append(said.Pods, wire.PodStatus{UID: p.UID, Namespace: p.Namespace, Name: p.Name,
				Status: corev1.PodStatus{
					Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				}})
		}
	}
	return loop.Pods(ctx, node.Caller{Node: l.name}, said) == nil
}

func (l *light) runs(uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live[uid] != ""
}

// told handles a desired state of the hub.
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

// obey starts the desired pods. If stop is set, it also stops deleted pods whose time has passed.
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

// power switches the device off or on. After it boots, its pods run again from its stored state.
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

// A switchboard is a Broker for lights and for devices of the real broker.
type switchboard struct {
	node.Broker
	w *world
}

func (s switchboard) Publish(node string, c wire.Channel, payload ...[]byte) error {
	if l := s.w.lights[node]; l != nil {
		l.post(func() { l.told(payload[0]) })
		return nil
	}
	return s.Broker.Publish(node, c, payload...)
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
