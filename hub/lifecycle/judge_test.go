package lifecycle_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// newJudgingWorld returns a world with the minimum delay before a site's first NoExecute.
func newJudgingWorld(t *testing.T) *world {
	w := newWorld(t, lifecycle.Defaults)
	w.set.JudgeDelay = lifecycle.Defaults.JudgeDelay
	return w
}

// TestASiteThatIsCutOffIsTaintedAfterTheMinimumDelay silences nodes of a site at one moment.
// Because leases come every 10 to 10.4 s, the nodes reach their deadlines at different times.
func TestASiteThatIsCutOffIsTaintedAfterTheMinimumDelay(t *testing.T) {
	for _, tt := range []struct{ of, silent int }{{20, 11}, {40, 22}, {60, 33}, {100, 55}, {3, 3}, {5, 3}, {4, 4},
		{200, 110}} {
		for seed := range int64(3) {
			t.Run(fmt.Sprintf("%d of %d nodes, seed %d", tt.silent, tt.of, seed), func(t *testing.T) {
				r := rand.New(rand.NewSource(seed))
				w := newJudgingWorld(t)
				w.site("oslo", tt.of, 0)
				w.site("bergen", 2, 0)
				all := names("oslo", tt.of)
				alive := append(slices.Clone(all[tt.silent:]), names("bergen", 2)...)
				w.wait(20*time.Second, append(slices.Clone(all), alive...)...)
				cut := w.now
				for _, n := range all[:tt.silent] {
					w.s = w.s.WithSeen(n, cut.Add(-time.Duration(r.Int63n(int64(10400*time.Millisecond)))))
				}
				w.alarms = noAlarms()
				for i, d := range w.deciders() {
					w.wake(i, d.Decide(w.s, d.Subjects(w.s), w.now).Alarms)
				}
				w.wait(51*time.Second, alive...)
				got := w.expel()
				if st := w.s.Site("oslo").Status; tt.silent < tt.of && len(got) > 0 && tt.of <= 50 {
					t.Errorf("%v are tainted while the site becomes %s", got, st.State)
				} else if st.State == fleet.SiteNormal {
					t.Errorf("the site is %s", st.State)
				}
				if len(got) > 1 {
					t.Errorf("%d nodes are tainted", len(got))
				}
			})
		}
	}
}

// checkJudgement checks that a is tainted once the grace periods of b and c have passed, and not
// before.
func checkJudgement(t *testing.T, w *world) {
	t.Helper()
	w.wait(40*time.Second+lifecycle.Defaults.JudgeDelay-time.Millisecond, "b", "c")
	if got := w.expel(); len(got) > 0 {
		t.Errorf("%v tainted too early", got)
	}
	w.wait(time.Millisecond, "b", "c")
	if got := w.expel(); len(got) != 1 {
		t.Errorf("%v tainted, want a", got)
	}
}

func TestNoNodeIsTaintedBeforeTheMinimumDelay(t *testing.T) {
	w := newJudgingWorld(t)
	w.put(node("a", "oslo", up), node("b", "oslo", up))
	w.wait(40*time.Second+1, "b")
	if w.ready("a") != down || w.taints("a") != "unreachable:NoSchedule" {
		t.Fatalf("at the deadline: %s, %s", w.ready("a"), w.taints("a"))
	}
	w.wait(lifecycle.Defaults.JudgeDelay-2*time.Millisecond, "b")
	if got := w.expel(); len(got) > 0 {
		t.Errorf("%v tainted too early", got)
	}
	w.wait(2*time.Millisecond, "b")
	if got := w.expel(); len(got) != 1 {
		t.Errorf("%v tainted, want a", got)
	}
	t.Run("a starting hub taints only after every node's grace period", func(t *testing.T) {
		w := newJudgingWorld(t)
		n := node("a", "oslo", down)
		n.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
		w.put(n, node("b", "oslo", up), node("c", "oslo", up))
		checkJudgement(t, w)
	})
	t.Run("a hub that stood still waits for every node's grace period too", func(t *testing.T) {
		w := newJudgingWorld(t)
		w.put(node("a", "oslo", up), node("b", "oslo", up), node("c", "oslo", up))
		w.wait(40*time.Second+1, "b", "c")
		w.s = w.s.Listen(w.now)
		checkJudgement(t, w)
	})
	t.Run("a site's own grace period counts", func(t *testing.T) {
		w := newJudgingWorld(t)
		w.put(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"},
			Spec: fleet.SiteSpec{NodeMonitorGracePeriod: &metav1.Duration{Duration: 5 * time.Minute}}})
		for _, n := range names("oslo", 5) {
			w.put(node(n, "oslo", up))
		}
		w.site("bergen", 2, 0)
		w.wait(5*time.Minute+1, append(names("oslo", 5)[1:], names("bergen", 2)...)...)
		w.s = w.s.Listen(w.now)
		w.wait(5*time.Minute+lifecycle.Defaults.JudgeDelay+time.Second,
			append(names("oslo", 5)[3:], names("bergen", 2)...)...)
		if got, st := w.expel(), w.s.Site("oslo").Status; len(got) > 0 || st.State != fleet.SitePartialDisruption {
			t.Errorf("%v tainted, the site is %s", got, st.State)
		}
	})
	for _, tt := range []struct {
		period, lease, want time.Duration
	}{
		{5 * time.Second, 10 * time.Second, 11 * time.Second},
		{30 * time.Second, 10 * time.Second, 31 * time.Second},
		{5 * time.Second, time.Second, 6 * time.Second},
		{5 * time.Second, 5 * time.Minute, 313 * time.Second},
	} {
		if got := lifecycle.JudgeAfter(tt.period, tt.lease); got != tt.want {
			t.Errorf("JudgeAfter with a period of %s and leases every %s: %s, want %s", tt.period, tt.lease, got, tt.want)
		}
	}
}

// When the rate changes, the tokens collected so far do not count, unless the bucket was full.
func TestAChangedRateTaintsNoNodeAtOnce(t *testing.T) {
	spec := func(change func(*fleet.SiteSpec)) func(*world) {
		return func(w *world) {
			site := w.s.Site("oslo").DeepCopy()
			change(&site.Spec)
			w.put(site)
		}
	}
	until := metav1.NewTime(noon.Add(10 * time.Minute))
	for _, tt := range []struct {
		name           string
		size, silent   int
		before, change func(*world)
		alive          func() []string
		wait           time.Duration // time from the change to the next taint
		within         time.Duration // time from the first taint to the change
		first          int           // nodes tainted before the change
	}{
		{"maintenance ends", 10, 2, spec(func(s *fleet.SiteSpec) { s.Maintenance = &fleet.Maintenance{Until: until} }),
			func(w *world) { w.wait(until.Sub(w.now), append(names("oslo", 10)[2:], "bergen-00")...) }, nil, 10 * time.Second, 0,
			0},
		{"a slower rate", 10, 3, nil, spec(func(s *fleet.SiteSpec) { s.NodeEvictionRate = new(0.05) }), nil, 20 * time.Second, 5 * time.Second, 1},
		{"a faster rate", 10, 3, nil, spec(func(s *fleet.SiteSpec) { s.NodeEvictionRate = new(0.5) }), nil, 2 * time.Second, 5 * time.Second, 1},
		{"the rate was 0 for a while", 10, 3, spec(func(s *fleet.SiteSpec) { s.NodeEvictionRate = new(0.0) }),
			spec(func(s *fleet.SiteSpec) { s.NodeEvictionRate = nil }), nil, 10 * time.Second, time.Hour, 0},
		{"a small partially disrupted site becomes Normal", 5, 3, nil, func(w *world) { w.becomes("oslo-00", up) }, func() []string { return []string{"oslo-00", "oslo-03", "oslo-04"} }, 10 * time.Second, time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.site("oslo", tt.size, 0)
			w.site("bergen", 1, 0)
			if tt.before != nil {
				tt.before(w)
			}
			alive := append(names("oslo", tt.size)[tt.silent:], "bergen-00")
			w.wait(40*time.Second+1, alive...)
			w.wait(tt.within, alive...)
			if got := w.expel(); len(got) != tt.first {
				t.Fatalf("%v are tainted, want %d", got, tt.first)
			}
			if tt.alive != nil {
				alive = append(tt.alive(), "bergen-00")
			}
			tt.change(w)
			w.wait(tt.wait-2*time.Millisecond, alive...)
			if got := w.expel(); len(got) != tt.first {
				t.Errorf("%v are tainted within %s, want %d", got, tt.wait, tt.first)
			}
			w.wait(4*time.Millisecond, alive...)
			if got := w.expel(); len(got) != tt.first+1 {
				t.Errorf("%v are tainted after %s, want %d", got, tt.wait, tt.first+1)
			}
		})
	}
}

func TestANodeMadeByHandCountsFromItsCreation(t *testing.T) {
	for _, ready := range []corev1.ConditionStatus{"", up, corev1.ConditionFalse} {
		t.Run(fmt.Sprintf("with Ready=%q in its status", ready), func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.byHand = true
			w.put(node("b", "bergen", ""))
			w.wait(10 * time.Minute)
			n := node("a", "oslo", ready)
			n.CreationTimestamp = metav1.NewTime(w.now)
			w.put(n)
			if got := w.ready("a"); got != ready {
				t.Fatalf("the first Ready is %s", got)
			}
			w.wait(60 * time.Second)
			if got := w.ready("a"); got != ready {
				t.Errorf("Ready after 60 s is %s", got)
			}
			w.wait(time.Millisecond)
			c := state.NodeCondition(w.s.Node("a"), corev1.NodeReady)
			if c == nil || c.Status != down || c.Reason != "NodeStatusNeverUpdated" ||
				!c.LastHeartbeatTime.Equal(&n.CreationTimestamp) {
				t.Errorf("Ready after the startup grace is %+v", c)
			}
		})
	}
}
