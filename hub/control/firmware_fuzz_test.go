package control_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// FuzzFirmware plays random rollouts on random fleets. A site never has too many turns, and two
// sites never have turns together. No turn begins while the site is disrupted, its window is
// closed, or the rollout is paused or stopped. At the end, without disturbances, every node has
// kept the configuration or rolled it back.
func FuzzFirmware(f *testing.F) {
	seeds := int64(8)
	switch {
	case nodetest.Raced:
		seeds = 1
	case nodetest.Long:
		seeds = 24
	}
	for seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		g := newStage(t, acting()...)
		g.hush = true
		sites, size := 1+r.Intn(3), 2+r.Intn(8)
		most, began := map[string]int32{}, map[string]time.Time{}
		g.watch = func(s state.Snapshot, made []state.Applied, now time.Time) {
			at := turns(s)
			if len(at) > 1 {
				t.Fatalf("seed %d, %s: %v have turns on %v at once", seed, now.Sub(g.start), at, sitesOf(at))
			}
			for site, nodes := range at {
				for _, n := range nodes {
					a := s.Record(n).Assigned
					if most[a.Rollout] < int32(len(nodes)) {
						t.Fatalf("seed %d, %s: %v of %s have their turn, want at most %d", seed, now.Sub(g.start), nodes, site,
							most[a.Rollout])
					}
					if a.Step != fleet.FirmwareDraining || began[n].Equal(a.Since.Time) {
						continue
					}
					began[n] = a.Since.Time
					ro := s.Rollout(a.Rollout)
					if site := s.Site(site); site == nil || site.Status.State != fleet.SiteNormal {
						t.Fatalf("seed %d: %s begins on a site that is disrupted", seed, n)
					}
					if w := ro.Spec.Window; w != nil {
						zone, err := time.LoadLocation(s.Site(site).Annotations[fleet.AnnotationTimeZone])
						if clock := now.In(zone).Format("15:04"); err != nil || clock < w.From || clock >= w.To {
							t.Fatalf("seed %d: %s begins at %s outside of its window %s-%s in %s", seed, n, clock, w.From, w.To, zone)
						}
					}
					if p := ro.Status.Phase; ro.Spec.Paused || p == fleet.RolloutPaused || p == fleet.RolloutStopped ||
						p == fleet.RolloutPending {
						t.Fatalf("seed %d: %s begins although the rollout is %s", seed, n, p)
					}
				}
			}
			for _, a := range made {
				before, _ := a.Old.(*state.Record)
				after, _ := a.New.(*state.Record)
				if before == nil || after == nil || after.Assigned == nil || after.Assigned.Step != fleet.FirmwareTrying ||
					before.Assigned.Step == fleet.FirmwareTrying {
					continue
				}
				if n := s.Node(a.Key.Name); n != nil && !n.Spec.Unschedulable {
					t.Fatalf("seed %d: %s may try although it is not cordoned", seed, a.Key.Name)
				}
				for p := range s.PodsOn(a.Key.Name) {
					if state.ReadyOf(s.Node(a.Key.Name)) == corev1.ConditionTrue && p.Labels["app"] == "kiosk" &&
						!state.Terminated(p) {
						t.Fatalf("seed %d: %s may try although %s runs on it", seed, a.Key.Name, p.Name)
					}
				}
			}
		}
		switch r.Intn(3) { // the clocks change during some rollouts
		case 0:
			g.now = time.Date(2027, 3, 27, 23, 50, 0, 0, time.UTC)
		case 1:
			g.now = time.Date(2026, 10, 24, 23, 30, 0, 0, time.UTC)
		}
		g.start = g.now
		g.do("profile", []string{"pi", "quiet"})
		for i := range size {
			g.do("node", []string{fmt.Sprint("n-", i), fmt.Sprint("site=s", i%sites), "profile=pi"})
		}
		g.do("deployment", []string{"kiosk", "replicas=3"})
		g.do("wait", []string{"5s"})
		for i := range sites {
			if zone := []string{"", "Europe/Oslo", "America/Caracas"}[r.Intn(3)]; zone != "" &&
				g.s.Site(fmt.Sprint("s", i)) != nil {
				g.do("zone", []string{fmt.Sprint("s", i), zone})
			}
		}
		window := func() string {
			return "window=" + []string{"12:10-13:00", "01:30-04:00", "00:10-02:40", "20:00-23:59"}[r.Intn(4)]
		}
		part := ""
		if sites > 1 && r.Intn(2) == 0 {
			part = "zone=s0"
		}
		firmware := func(more ...string) {
			limit := int32(1 + r.Intn(6))
			most["a"] = max(most["a"], limit) // turns that began under the old limit may end
			g.do("firmware", append([]string{"a", "profile=pi", part, fmt.Sprint("batch=", 1+r.Intn(4)),
				fmt.Sprint("unavailable=", limit), fmt.Sprint("pause=", r.Intn(2) == 0), fmt.Sprint("threshold=", 1+r.Intn(100))},
				more...))
		}
		if r.Intn(2) == 0 {
			firmware(window())
		} else {
			firmware()
		}
		if part != "" { // a second rollout has the other sites
			most["b"] = 1
			g.do("firmware", []string{"b", "profile=pi", "pause=false", "threshold=1"})
		}
		others := map[string]bool{} // nodes that a user has cordoned
		for range 30 {
			n := fmt.Sprint("n-", r.Intn(size))
			rebooting := g.boards[n] != nil && !g.boards[n].until.IsZero()
			switch r.Intn(15) {
			case 0:
				if !rebooting {
					g.do("silence", []string{n})
				}
			case 1:
				if !rebooting {
					g.do("return", []string{n})
				}
			case 2:
				g.do("fate", []string{n, []string{"breaks", "refuses", ""}[r.Intn(3)]})
			case 3:
				verb := []string{"cordon", "uncordon"}[r.Intn(2)]
				others[n] = others[n] || verb == "cordon"
				g.do(verb, []string{n})
			case 4:
				g.do("restart", nil)
			case 5:
				firmware("paused=true")
			case 6:
				firmware(fmt.Sprint("retry=", r.Intn(3)))
			case 7:
				firmware(window())
			case 8:
				g.do("profile", []string{"pi", "quiet", []string{"a", "b"}[r.Intn(2)]})
			case 9:
				others[n] = true
				g.do("drain", []string{n})
			case 10:
				firmware("undo=true")
			case 11: // disrupt a site, but keep one node alive
				for i := sites; i < size; i += sites {
					if b := g.boards[fmt.Sprint("n-", i)]; b == nil || b.until.IsZero() {
						g.do("silence", []string{fmt.Sprint("n-", i)})
					}
				}
				g.do("wait", []string{"1m"})
			case 12:
				if r.Intn(3) == 0 {
					g.do("delete-firmware", []string{"a"})
					firmware()
				}
			case 13: // a device begins or stops to report falsely
				lie := [][]string{nil, {"state=UpToDate", "has=yes"}, {"state=Staged", "wants=yes"}, {"state=Trial", "wants=yes"},
					{"state=RolledBack"}, {"state=Failed", "wants=yes"}}[r.Intn(6)]
				g.do("lie", append([]string{n}, lie...))
			default:
				g.do("wait", []string{fmt.Sprintf("%ds", 1+r.Intn(400))})
			}
		}
		// From here on nothing disturbs the rollout.
		for i := range size {
			n := fmt.Sprint("n-", i)
			g.do("lie", []string{n})
			if b := g.boards[n]; b == nil || b.until.IsZero() {
				g.do("return", []string{n})
			}
			if len(turns(g.s)[state.SiteOf(g.s.Node(n))]) == 0 {
				g.do("stop-drain", []string{n})
				g.do("uncordon", []string{n})
			}
		}
		most["a"] = max(most["a"], 2)
		undone := r.Intn(2) == 0
		g.do("firmware", []string{"a", "profile=pi", part, "unavailable=2", "pause=false", "threshold=1",
			fmt.Sprint("undo=", undone)})
		for range 60 {
			g.do("wait", []string{"10m"})
			for i := range size { // cordoned by a user during its turn
				n := fmt.Sprint("n-", i)
				if a := g.s.Record(n).Assigned; others[n] && g.s.Node(n).Spec.Unschedulable && (a == nil || a.Step == "") {
					g.do("stop-drain", []string{n})
					g.do("uncordon", []string{n})
				}
			}
			over := true
			for ro := range state.Each[*fleet.FirmwareRollout](g.s, state.FirmwareRollouts, "") {
				over = over && (ro.Status.Phase == fleet.RolloutComplete || ro.Status.Phase == fleet.RolloutStopped)
			}
			if over {
				break
			}
		}
		st := g.s.Rollout("a").Status
		if st.Phase == fleet.RolloutStopped && (st.Kept == 0 || undone) { // too many of the first nodes rolled back
			return
		}
		for _, n := range st.NodeStates {
			want := fleet.FirmwareKept
			if undone {
				want = fleet.FirmwareUndone
			}
			if n.State != want && n.State != fleet.FirmwareBad {
				t.Fatalf("seed %d: %s ends as %s (%s): %s %s", seed, n.Name, n.State, n.Message, st.Phase, st.Sentence)
			}
		}
		for n := range g.s.Nodes() {
			if n.Spec.Unschedulable {
				t.Fatalf("seed %d: %s stays cordoned", seed, n.Name)
			}
		}
	})
}
