package sim

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// tainted returns the nodes of a site with NoExecute.
func (w *world) tainted(site string) (names []string) {
	for n := range w.snapshot().NodesIn(site) {
		if ours(n) != nil {
			names = append(names, n.Name)
		}
	}
	return names
}

// status returns a site's status, and checks its counts against the nodes.
func (w *world) status(site string) fleet.SiteStatus {
	w.t.Helper()
	synctest.Wait()
	s := w.snapshot()
	is := s.Site(site).Status
	var ready, not, waiting int32
	for n := range s.NodesIn(site) {
		switch r := state.ReadyOf(n); {
		case r == corev1.ConditionTrue:
			ready++
		case r != "":
			not++
			if ours(n) == nil {
				waiting++
			}
		}
	}
	if is.Ready != ready || is.NotReady != not || is.Waiting != waiting {
		w.t.Errorf("at %s: site %s has %+v; %d nodes are ready, %d not, %d wait", w.clock(), site, is, ready, not, waiting)
	}
	return is
}

// stands checks the state and rate of a site in the form of kubectl.
func (w *world) stands(what, site string, want fleet.SiteState, rate string) {
	w.t.Helper()
	if is := w.status(site); is.State != want || is.EvictionRate != rate {
		w.t.Errorf("at %s, %s: site %s is %s, rate %s; want %s, rate %s", w.clock(), what, site, is.State, is.EvictionRate,
			want, rate)
	}
}

// given counts the nodes of a site that get NoExecute within a time.
func (w *world) given(site string, in time.Duration) int {
	before := len(w.look.sentences("taint " + site + "-"))
	time.Sleep(in)
	synctest.Wait()
	return len(w.look.sentences("taint "+site+"-")) - before
}

// restartHub cuts the hub's power for a while.
func (w *world) restartHub(away time.Duration) {
	w.t.Helper()
	w.crashHub()
	time.Sleep(away)
	w.startHub()
}

// becomes waits until a site is in a state.
func (w *world) becomes(site string, want fleet.SiteState) {
	w.t.Helper()
	w.until(2*time.Minute, fmt.Sprintf("site %s is %s", site, want),
		func() bool { return w.snapshot().Site(site).Status.State == want })
}

func TestFleetALargeSiteThatIsPartlyDarkLosesItsNodesSlowly(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		oslo, bergen := w.newLights("oslo", 61), w.newLights("bergen", 2)
		w.lightUp(slices.Concat(oslo[:60], bergen), 62)

		w.join(false, oslo[:32]...)
		time.Sleep(2 * time.Minute)
		w.stands("32 of 60 silent", "oslo", fleet.SiteNormal, "0.1")
		w.join(false, oslo[32]) // 33 of 60 are 55 %
		w.becomes("oslo", fleet.SitePartialDisruption)
		w.stands("33 of 60 silent", "oslo", fleet.SitePartialDisruption, "0.01")
		if n := w.given("oslo", 1000*time.Second); n < 9 || n > 10 {
			t.Errorf("%d nodes got NoExecute in 1000 s, at 0.01/s", n)
		}

		// The site shrinks to the threshold, and is then a small site.
		for _, l := range oslo[50:60] {
			l.power(false)
			w.do(func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
				return []state.Change{state.Remove(s.Node(l.name), "")}, nil
			})
		}
		w.stands("33 of 50 silent", "oslo", fleet.SitePartialDisruption, "0")
		if held := w.status("oslo").Held; held != "partially disrupted, and not larger than 50 nodes" {
			t.Errorf("the reason is %q", held)
		}
		if n := w.given("oslo", 20*time.Minute); n > 0 {
			t.Errorf("%d nodes got NoExecute although the site is small now", n)
		}
		w.restartHub(20 * time.Second)
		if n := w.given("oslo", 20*time.Minute); n > 0 {
			t.Errorf("%d nodes got NoExecute after the hub's restart", n)
		}

		// The site grows over the threshold. The next node follows after 1/rate, because a rate of
		// 0 fills no bucket.
		before := len(w.tainted("oslo"))
		w.light(oslo[60])
		w.until(5*time.Second, "the new node is ready", func() bool {
			n := w.snapshot().Node("oslo-61")
			return n != nil && state.ReadyOf(n) == corev1.ConditionTrue
		})
		w.stands("33 of 51 silent", "oslo", fleet.SitePartialDisruption, "0.01")
		if n := len(w.tainted("oslo")); n != before {
			t.Errorf("%d nodes have NoExecute, want %d", n, before)
		}
		next := w.status("oslo").NextEviction
		w.restartHub(20 * time.Second)
		if after := w.status("oslo").NextEviction; after == nil || !after.Equal(next) {
			t.Errorf("the next eviction was due at %v, and after the hub's restart at %v", next, after)
		}
		if n := w.given("oslo", 5*time.Minute); n != 3 {
			t.Errorf("%d nodes got NoExecute in 300 s around the hub's restart, at 0.01/s", n)
		}

		// With fewer than 55 % not ready the site is Normal.
		w.join(true, oslo[28:33]...)
		w.becomes("oslo", fleet.SiteNormal)
		w.stands("28 of 51 silent", "oslo", fleet.SiteNormal, "0.1")
		w.join(true, oslo[:28]...)
		time.Sleep(time.Minute)
		for _, l := range oslo[50:60] {
			l.lit = false
		}
		w.allLightsRight()
	})
}

func TestFleetASiteOverrideAppliesFromTheNextPass(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		oslo, bergen := w.newLights("oslo", 20), w.newLights("bergen", 2)
		w.lightUp(slices.Concat(oslo, bergen), 44)
		w.join(false, oslo[:12]...)
		w.becomes("oslo", fleet.SitePartialDisruption)
		w.stands("12 of 20 silent", "oslo", fleet.SitePartialDisruption, "0")
		first := w.tainted("oslo")
		if len(first) > 0 || len(w.look.sentences("taint oslo")) > 0 {
			t.Errorf("%v are tainted while the site was still Normal: the minimum delay comes first", first)
		}
		if n := w.given("oslo", time.Hour); n > 0 {
			t.Errorf("%d nodes of a small site that is partly dark got NoExecute", n)
		}
		for _, said := range w.look.sentences("evict ") { // nodes that were already tainted lose the taint
			if !slices.ContainsFunc(first, func(n string) bool { return said.of(n) }) {
				t.Errorf("%s", said.text)
			}
		}

		spec := func(what, rate string, edit func(*fleet.SiteSpec)) int {
			t.Helper()
			before := len(w.tainted("oslo"))
			if is := w.site("oslo", edit); is.EvictionRate != rate {
				t.Errorf("%s: the rate is %s in the same pass, want %s", what, is.EvictionRate, rate)
			}
			return len(w.tainted("oslo")) - before
		}
		if n := spec("the site counts as large", "0.01",
			func(s *fleet.SiteSpec) { s.LargeClusterSizeThreshold = new(int32(19)) }); n != 0 {
			t.Errorf("%d nodes got NoExecute at once, want none: a rate of 0 fills no bucket", n)
		}
		w.restartHub(15 * time.Second)
		if n := w.given("oslo", 190*time.Second); n != 2 {
			t.Errorf("%d nodes got NoExecute in 205 s at 0.01/s", n)
		}
		if n := spec("the secondary rate is raised", "0.05",
			func(s *fleet.SiteSpec) { s.SecondaryNodeEvictionRate = new(0.05) }); n > 1 {
			t.Errorf("%d nodes got NoExecute at once", n)
		}
		if n := w.given("oslo", 40*time.Second); n != 2 {
			t.Errorf("%d nodes got NoExecute in 40 s at 0.05/s", n)
		}
		if n := spec("the rate is 0", "0", func(s *fleet.SiteSpec) { s.SecondaryNodeEvictionRate = new(0.0) }); n > 0 {
			t.Errorf("%d nodes got NoExecute at rate 0", n)
		}
		if n := w.given("oslo", time.Hour); n > 0 {
			t.Errorf("%d nodes got NoExecute in an hour at rate 0", n)
		}
		spec("60 % count as Normal", "0.1", func(s *fleet.SiteSpec) { s.UnhealthyZoneThreshold = new(0.61) })
		w.stands("60 % count as Normal", "oslo", fleet.SiteNormal, "0.1")
		spec("the rate is 1", "1", func(s *fleet.SiteSpec) { s.NodeEvictionRate = new(1.0) })
		before := len(w.tainted("oslo"))
		w.given("oslo", 1500*time.Millisecond)
		if n := len(w.tainted("oslo")) - before; n < 1 || n > 2 {
			t.Errorf("%d nodes got NoExecute in 1.5 s at 1/s", n)
		}
		if n := spec("everything is as before", "0", func(s *fleet.SiteSpec) { *s = fleet.SiteSpec{} }); n > 0 {
			t.Errorf("%d nodes got NoExecute", n)
		}
		w.stands("everything is as before", "oslo", fleet.SitePartialDisruption, "0")
		w.rejoin(oslo...)
	})
}

func TestFleetAChangedGraceAppliesToASilentNode(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		oslo, bergen := w.newLights("oslo", 4), w.newLights("bergen", 2)
		w.lightUp(slices.Concat(oslo, bergen), 0)
		grace := func(d time.Duration) {
			t.Helper()
			w.site("oslo", func(s *fleet.SiteSpec) { s.NodeMonitorGracePeriod = &metav1.Duration{Duration: d} })
		}
		// silent returns the time since the node's last heartbeat.
		silent := func(l *light) time.Duration { return w.hub.Loop.Now().Sub(w.hub.Loop.Liveness(l.name).Seen) }
		unknown := func(l *light) func() bool {
			return func() bool { return w.ready(l.name) == corev1.ConditionUnknown }
		}
		expect := func(l *light, after time.Duration) {
			t.Helper()
			w.until(10*time.Minute, l.name+" Unknown", unknown(l))
			if late := silent(l) - after; late < 0 || late > 2*detection+50*time.Millisecond {
				t.Errorf("%s is Unknown after %s of silence, want %s", l.name, silent(l), after)
			}
		}
		w.join(false, oslo[0])
		time.Sleep(30 * time.Second)
		grace(5 * time.Minute)
		expect(oslo[0], 5*time.Minute)

		w.join(false, oslo[1])
		time.Sleep(100 * time.Second)
		if unknown(oslo[1])() {
			t.Fatal("Unknown although the site's grace is 5 min")
		}
		grace(time.Minute)
		if !unknown(oslo[1])() {
			t.Error("a grace period that has already passed does not count at once")
		}

		w.join(false, oslo[2])
		time.Sleep(20 * time.Second)
		grace(2 * time.Minute)
		w.crashHub() // after the hub's start every silent node gets a full grace period
		time.Sleep(20 * time.Second)
		w.startHub()
		began := w.clock()
		w.until(3*time.Minute, "Unknown after the restart", unknown(oslo[2]))
		if took := w.clock() - began; took < 2*time.Minute || took > 2*time.Minute+detection+50*time.Millisecond {
			t.Errorf("Unknown %s after the hub's start, want the site's 2 min", took)
		}
		w.rejoin(oslo...)
	})
}

func TestFleetNothingIsEvictedDuringMaintenance(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"at its end", "at its end, without a hub at that time", "earlier",
		"by removing the setting"} {
		t.Run("maintenance ends "+end, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				oslo, bergen := w.newLights("oslo", 6), w.newLights("bergen", 3)
				w.lightUp(slices.Concat(oslo, bergen), 18, tolerating(2*time.Minute))
				w.join(false, oslo...)
				w.until(2*time.Minute, "three of six get NoExecute", func() bool { return len(w.tainted("oslo")) == 3 })
				until := w.hub.Loop.Now().Add(time.Hour).Truncate(time.Second)
				w.site("oslo", func(s *fleet.SiteSpec) {
					s.Maintenance = &fleet.Maintenance{Until: metav1.NewTime(until), Reason: "the mast is painted"}
				})
				if names := w.tainted("oslo"); len(names) > 0 {
					t.Errorf("in the pass in which maintenance begins %v still have NoExecute", names)
				}
				w.stands("maintenance", "oslo", fleet.SiteFullDisruption, "0")
				if is := w.status("oslo"); is.Held != "maintenance until "+until.UTC().Format(time.RFC3339) ||
					is.NextEviction != nil {
					t.Errorf("status %+v", is)
				}
				time.Sleep(20 * time.Minute)
				w.restartHub(20 * time.Second)
				time.Sleep(20 * time.Minute)
				switch end {
				case "at its end":
					time.Sleep(until.Sub(w.hub.Loop.Now()) - time.Second)
					if n := len(w.look.sentences("evict ")); n > 0 || len(w.tainted("oslo")) > 0 {
						t.Errorf("%d pods evicted during maintenance", n)
					}
					time.Sleep(time.Second)
				case "at its end, without a hub at that time":
					w.crashHub()
					time.Sleep(time.Hour)
					w.startHub()
				case "earlier":
					w.site("oslo", func(s *fleet.SiteSpec) {
						s.Maintenance.Until = metav1.NewTime(w.hub.Loop.Now().Truncate(time.Second))
					})
				default:
					w.site("oslo", func(s *fleet.SiteSpec) { s.Maintenance = nil })
				}
				synctest.Wait()
				over := w.clock()
				if n := len(w.look.sentences("evict ")); n > 0 {
					t.Errorf("%d pods were evicted during maintenance", n)
				}
				w.stands("the end of maintenance", "oslo", fleet.SiteFullDisruption, "0.1")
				if n := len(w.tainted("oslo")); n != 0 {
					t.Errorf("%d nodes have NoExecute at the end of maintenance, want none: a rate of 0 fills no bucket", n)
				}
				first := 10 * time.Second
				if end == "at its end, without a hub at that time" {
					// the hub first waits for the grace period and the minimum delay
					first = 51 * time.Second
				}
				time.Sleep(first + 41*time.Second)
				if n := len(w.tainted("oslo")); n != 5 {
					t.Errorf("%d nodes have NoExecute %s after the end of maintenance, want 5", n, first+41*time.Second)
				}
				w.until(4*time.Minute, "every pod on bergen", func() bool {
					for _, p := range w.pods("kiosk") {
						if p.DeletionTimestamp == nil && state.SiteOf(w.node(p.Spec.NodeName)) != "bergen" {
							return false
						}
					}
					return true
				})
				if at := w.look.sentences("evict ")[0].at - over; at < first+2*time.Minute ||
					at > first+2*time.Minute+time.Second+detection {
					t.Errorf("the first pod was evicted %s after the end of maintenance, want its toleration of 2 min after %s", at,
						first)
				}
				w.rejoin(oslo...)
			})
		})
	}
}

func TestFleetHoldMayBeTurnedOnAndOffDuringADisruption(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		oslo, bergen := w.newLights("oslo", 6), w.newLights("bergen", 3)
		w.lightUp(slices.Concat(oslo, bergen), 18)
		w.join(false, oslo...)
		w.until(2*time.Minute, "three of six get NoExecute", func() bool { return len(w.tainted("oslo")) == 3 })
		time.Sleep(time.Minute)
		w.policy("oslo", fleet.Hold)
		if names := w.tainted("oslo"); len(names) > 0 {
			t.Errorf("in the pass in which the site begins to hold %v still have NoExecute", names)
		}
		w.stands("Hold", "oslo", fleet.SiteFullDisruption, "0")
		time.Sleep(time.Hour)
		w.restartHub(20 * time.Second)
		time.Sleep(time.Hour)
		if said := w.look.sentences("evict "); len(said) > 0 {
			t.Errorf("%v", said)
		}
		w.policy("oslo", fleet.Evict)
		w.stands("Evict", "oslo", fleet.SiteFullDisruption, "0.1")
		if names := w.tainted("oslo"); len(names) > 0 {
			t.Errorf("%v get NoExecute at once; even the first has to wait", names)
		}
		if n := w.given("oslo", 60500*time.Millisecond); n != 6 {
			t.Errorf("%d nodes got NoExecute in the first minute", n)
		}
		w.rejoin(oslo...)
		if said := w.look.sentences("evict "); len(said) > 0 {
			t.Errorf("the nodes came back before the tolerations had run out, but %v", said)
		}
	})
}
