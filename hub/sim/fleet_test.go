package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// detection is how late the hub may be at a deadline.
const detection = 50 * time.Millisecond

func TestFleetAReturningDeviceFirstStopsItsEvictedPod(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo", "bergen")
		w.deploy("kiosk", 2)
		w.settleWithin(5*time.Second, "the deployment")
		pod := w.pods("kiosk")[0]
		lost := w.on(pod.Spec.NodeName)
		time.Sleep(33 * time.Second)

		w.freeze(lost)
		seen := w.hub.Loop.Liveness(lost.name).Seen
		w.until(time.Minute, "Ready=Unknown", func() bool { return w.ready(lost.name) == corev1.ConditionUnknown })
		said := w.look.sentences("node " + lost.name + " Ready=Unknown")
		unknown := w.born.Add(said[0].at)
		if late := unknown.Sub(seen) - w.cfg.NodeMonitorGracePeriod; late < 0 || late > detection {
			t.Errorf("Unknown %s after the grace", late)
		}
		if ours(w.node(lost.name)) != nil {
			t.Error("a node is tainted before the minimum delay")
		}
		judge := lifecycle.JudgeAfter(w.cfg.NodeMonitorPeriod, w.cfg.LeaseInterval)
		w.until(judge+detection, "NoExecute", func() bool { return ours(w.node(lost.name)) != nil })
		taint := ours(w.node(lost.name)).TimeAdded.Time
		if after := w.hub.Loop.Now().Sub(unknown.Truncate(time.Millisecond)); after < judge { // the hub stores milliseconds
			t.Errorf("NoExecute %s after Ready left True, want %s", after, judge)
		}
		if w.pods("kiosk")[0].DeletionTimestamp != nil {
			t.Error("the pod is evicted at once, although it tolerates the taint for 5 min")
		}

		w.until(6*time.Minute, "the eviction", func() bool { return len(w.look.sentences("evict "+pod.Name)) > 0 })
		evicted := w.look.sentences("evict " + pod.Name)[0].at
		if after := w.born.Add(evicted).Sub(taint); after < 5*time.Minute || after > 5*time.Minute+detection {
			t.Errorf("evicted %s after the taint, want 5 min", after)
		}
		w.until(5*time.Second, "a replacement that runs", func() bool {
			live := 0
			for _, p := range w.pods("kiosk") {
				if p.DeletionTimestamp == nil && p.Spec.NodeName != lost.name && p.Status.Phase == corev1.PodRunning {
					live++
				}
			}
			return live == 2
		})
		time.Sleep(10 * time.Minute)
		if !lost.runs(pod.UID) {
			t.Error("the device without a hub has stopped its pod")
		}
		if p := w.snapshot().Pod(pod.Namespace, pod.Name); p == nil || p.DeletionTimestamp == nil {
			t.Error("the pod is not Terminating before its device reports its end")
		}

		w.heal(lost)
		w.until(70*time.Second, "connected again", func() bool { return w.hub.Loop.Liveness(lost.name).Connected })
		w.settleWithin(twoLeases, "the return")
		if lost.runs(pod.UID) || w.snapshot().Pod(pod.Namespace, pod.Name) != nil {
			t.Error("the old pod was not removed")
		}
	})
}

func TestFleetACutSiteLosesItsPodsAtItsRateAndKeepsThemWithHold(t *testing.T) {
	t.Parallel()
	for _, policy := range []fleet.DisruptionPolicy{fleet.Evict, fleet.Hold} {
		t.Run(string(policy), func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.startHub()
				w.fleet(6, "oslo")
				w.fleet(2, "bergen")
				w.policy("oslo", policy)
				w.deploy("kiosk", 8)
				w.daemonSet("meter")
				w.settleWithin(10*time.Second, "the workloads")
				time.Sleep(47 * time.Second)

				w.cut(w.at("oslo")...)
				time.Sleep(10 * time.Minute)
				var evicted, tainted int
				for _, p := range w.pods("kiosk") {
					if d := w.on(p.Spec.NodeName); d != nil && d.site == "oslo" && p.DeletionTimestamp != nil {
						evicted++
					}
				}
				for _, d := range w.at("oslo") {
					if ours(w.node(d.name)) != nil {
						tainted++
					}
				}
				switch site := w.snapshot().Site("oslo"); {
				case site.Status.State != fleet.SiteFullDisruption:
					t.Errorf("the site is %s", site.Status.State)
				case policy == fleet.Evict && (evicted < 4 || tainted != 6):
					t.Errorf("%d nodes tainted, %d pods evicted, want 6 nodes and all pods", tainted, evicted)
				case policy == fleet.Hold && (evicted > 0 || tainted > 0):
					t.Errorf("%d nodes tainted and %d pods evicted although the site holds its pods", tainted, evicted)
				}
				if n := len(w.look.sentences("evict meter")); n > 0 {
					t.Errorf("%d pods of the daemon set were evicted", n)
				}

				w.heal(w.at("oslo")...)
				w.until(70*time.Second, "all connected", func() bool { return w.connected() == 8 })
				w.settleWithin(twoLeases, "the heal")
				if policy == fleet.Hold && len(w.look.sentences("evict ")) > 0 {
					t.Error("a pod was evicted although the site holds its pods")
				}
			})
		})
	}
}

func TestFleetWhenEverySiteIsDarkNoPodIsEvicted(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(3, "oslo", "bergen")
		w.deploy("kiosk", 6)
		w.settleWithin(10*time.Second, "the deployment")
		time.Sleep(31 * time.Second)
		w.cut(w.devices...)
		time.Sleep(2 * time.Hour)
		if said := w.look.sentences("evict "); len(said) > 0 {
			t.Errorf("evicted while every site is dark: %v", said)
		}
		for _, d := range w.devices {
			if ours(w.node(d.name)) != nil {
				t.Errorf("%s has NoExecute while every site is dark", d.name)
			}
		}

		w.heal(w.on("bergen-2")) // the other sites' nodes get NoExecute one by one
		w.until(70*time.Second, "bergen-2 ready", func() bool { return w.ready("bergen-2") == corev1.ConditionTrue })
		light := w.clock()
		w.until(time.Minute, "all of oslo tainted", func() bool {
			for _, d := range w.at("oslo") {
				if ours(w.node(d.name)) == nil {
					return false
				}
			}
			return true
		})
		if took := w.clock() - light; took < 30*time.Second {
			t.Errorf("three nodes tainted within %s, at 0.1/s", took)
		}
		w.until(6*time.Minute, "all pods on bergen", func() bool {
			live := 0
			for _, p := range w.pods("kiosk") {
				if p.DeletionTimestamp == nil && p.Spec.NodeName == "bergen-2" {
					live++
				}
			}
			return live >= 4 // with two of three nodes not ready, bergen is Normal and evicts too
		})
		w.heal(w.devices...)
		w.until(70*time.Second, "all connected", func() bool { return w.connected() == len(w.devices) })
		w.settleWithin(twoLeases, "the heal")
	})
}

func TestFleetAFlappingLinkEvictsNoPod(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		name        string
		down, up    time.Duration
		transitions int // most changes of Ready in the hour
		flapping    bool
	}{
		{"5 s down and 5 s up is not noticed", 5 * time.Second, 5 * time.Second, 0, false},
		{"90 s down and 70 s up is flapping", 90 * time.Second, 70 * time.Second, 2*23 + 1, true},
	} {
		t.Run(f.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.startHub()
				w.fleet(2, "oslo")
				w.deploy("kiosk", 2)
				w.settleWithin(10*time.Second, "the deployment")
				d := w.on("oslo-1")
				commits, before, flapped := w.hub.Loop.Commits(), w.lines.total(), false
				for end := w.clock() + time.Hour; w.clock() < end; {
					w.cut(d)
					time.Sleep(f.down)
					w.heal(d)
					time.Sleep(f.up)
					c := state.NodeCondition(w.node(d.name), fleet.ConditionFlapping)
					flapped = flapped || c != nil && c.Status == corev1.ConditionTrue
				}
				if n := w.look.transitions(d.name); n > f.transitions {
					t.Errorf("%d changes of Ready, want at most %d", n, f.transitions)
				}
				if flapped != f.flapping {
					t.Errorf("flapping: %v, want %v", flapped, f.flapping)
				}
				if said := w.look.sentences("evict "); len(said) > 0 {
					t.Errorf("evicted: %v", said)
				}
				cycles := int(time.Hour / (f.down + f.up))
				if n := int(w.hub.Loop.Commits() - commits); n > 8*f.transitions+10 {
					t.Errorf("%d commits in %d cycles", n, cycles)
				}
				if n := w.lines.total() - before; n > 14*cycles {
					t.Errorf("%d lines of log in %d cycles", n, cycles)
				}
				w.until(70*time.Second, "connected", func() bool { return w.connected() == 2 })
				w.settleWithin(twoLeases, "the last heal")
			})
		})
	}
}

// connected counts the devices with a link to the hub.
func (w *world) connected() (n int) {
	for _, d := range w.devices {
		if w.hub.Loop.Liveness(d.name).Connected && w.reached(d) && w.hub.Broker.Online(d.name) {
			n++
		}
	}
	return n
}

func TestFleetTheClockOfADeviceDecidesNothing(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.clocksLie = true
		jump := map[string]func() time.Time{
			"oslo-1": func() time.Time { return time.Unix(0, 0) },
			"oslo-2": func() time.Time { return time.Date(2106, 2, 7, 0, 0, 0, 0, time.UTC) },
			"oslo-3": func() time.Time {
				return time.Now().Add(time.Duration(w.rand.Int64N(int64(4*time.Hour))) - 2*time.Hour)
			},
		}
		w.tap = func(p *packet) []time.Duration {
			if now := jump[p.device]; now != nil && p.dir == toHub && p.payload > 0 {
				p.replace(withClock(p.body(), now()))
			}
			return untouched
		}
		w.startHub()
		w.fleet(3, "oslo")
		w.deploy("kiosk", 3)
		w.settleWithin(10*time.Second, "the deployment")
		for _, d := range w.devices {
			if n := w.look.transitions(d.name); n > 0 {
				t.Errorf("%s: %d changes of Ready", d.name, n)
			}
		}
		commits := w.hub.Loop.Commits()
		time.Sleep(time.Hour)
		for _, d := range w.devices {
			if n := w.look.transitions(d.name); n > 0 {
				t.Errorf("%s: %d changes of Ready in an hour", d.name, n)
			}
		}
		if n := w.hub.Loop.Commits() - commits; n > 10 {
			t.Errorf("%d commits in an hour because clocks jump", n)
		}
		if skew := w.hub.Loop.Liveness("oslo-1").Skew; skew > -29*365*24*time.Hour {
			t.Errorf("the skew of a clock at 1970 is %s", skew)
		}
	})
}

func TestFleetTheFirstOfTwoDevicesWithOneNameStays(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo")
		w.deploy("kiosk", 2)
		w.settleWithin(10*time.Second, "the deployment")
		incumbent := w.on("oslo-1")
		clone := w.newClone("the-clone", "oslo-1", "oslo")
		clone.start()
		time.Sleep(time.Hour)
		if rec := w.snapshot().Record("oslo-1"); rec.Boot != incumbent.boot || rec.MachineID != incumbent.machine {
			t.Errorf("the hub has machine %s, boot %s", rec.MachineID, rec.Boot)
		}
		c := state.NodeCondition(w.node("oslo-1"), fleet.ConditionIdentityConflict)
		if c == nil || c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, clone.machine) ||
			!strings.Contains(c.Message, incumbent.machine) {
			t.Errorf("IdentityConflict = %+v", c)
		}
		if n := len(clone.running()); n > 0 {
			t.Errorf("the newcomer runs %d pods", n)
		}
		if n := w.look.transitions("oslo-1"); n > 0 {
			t.Errorf("%d changes of Ready", n)
		}
		w.settleWithin(twoLeases, "the newcomer was refused")

		// A hub that has just started knows no link, but still refuses the other device.
		incumbent.kill()
		w.crashHub()
		w.startHub()
		time.Sleep(25 * time.Second)
		incumbent.start()
		w.until(5*time.Second, "the incumbent connected", func() bool { return w.hub.Loop.Liveness("oslo-1").Connected })
		if rec := w.snapshot().Record("oslo-1"); rec.Boot != incumbent.boot {
			t.Errorf("after a restart the hub has boot %s", rec.Boot)
		}
		clone.kill()
		w.settleWithin(twoLeases, "the newcomer was switched off")

		// The incumbent's hardware breaks. After its lease has ended, another machine takes its
		// place.
		incumbent.kill()
		time.Sleep(45 * time.Second)
		clone.start()
		w.until(70*time.Second, "the new machine is the node",
			func() bool { return w.snapshot().Record("oslo-1").MachineID == clone.machine })
		w.until(twoLeases, "the condition ended", func() bool {
			return state.NodeCondition(w.node("oslo-1"), fleet.ConditionIdentityConflict) == nil &&
				w.ready("oslo-1") == corev1.ConditionTrue
		})
	})
}

func TestFleetADeviceThatBootsWithoutAHubRunsItsPods(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo")
		w.deploy("kiosk", 4)
		w.daemonSet("meter")
		w.settleWithin(10*time.Second, "the workloads")
		d := w.on("oslo-1")
		had := d.running()
		w.crashHub()
		time.Sleep(time.Minute)
		d.powerCut()
		time.Sleep(time.Minute)
		if n := len(d.running()); n > 0 {
			t.Fatalf("%d containers run without power", n)
		}
		d.powerOn()
		w.until(time.Minute, "everything runs again", func() bool { return len(d.running()) == len(had) })
		for uid, name := range had {
			if !d.runs(uid) {
				t.Errorf("%s does not run", name)
			}
		}
		time.Sleep(time.Hour)
		w.startHub()
		w.until(70*time.Second, "all connected", func() bool { return w.connected() == 2 })
		w.settleWithin(twoLeases, "the hub is back")
		if said := w.look.sentences("evict "); len(said) > 0 {
			t.Errorf("%v", said)
		}
	})
}

// running lists the running pods of each device.
func (w *world) running() string {
	var out []string
	for _, d := range w.devices {
		var names []string
		for _, name := range d.running() {
			names = append(names, name)
		}
		slices.Sort(names)
		out = append(out, d.name+": "+strings.Join(names, " "))
	}
	return strings.Join(out, "\n")
}
