package lifecycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// A world is a fleet with only the deciders of this package.
type world struct {
	t         *testing.T
	s         state.Snapshot
	now       time.Time
	set       lifecycle.Settings
	alarms    [3]map[state.Subject]time.Time // alarms of each decider
	sentences []string
	byHand    bool // no device reports; the test writes the nodes
}

// newWorld returns a world without the minimum delay before NoExecute; see judge_test.go.
func newWorld(t *testing.T, set lifecycle.Settings) *world {
	set.JudgeDelay = 0
	return &world{t: t, s: state.Empty("test", noon), now: noon, set: set, alarms: noAlarms()}
}

// A decider is one of the three deciders.
type decider interface {
	Touches(c state.Applied) []state.Subject
	Subjects(s state.Snapshot) []state.Subject
	Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan
}

// deciders returns the three deciders in order.
func (w *world) deciders() [3]decider {
	return [3]decider{lifecycle.Flapping{}, lifecycle.Health{Settings: w.set}, lifecycle.Sites{Settings: w.set}}
}

func noAlarms() (all [3]map[state.Subject]time.Time) {
	for i := range all {
		all[i] = map[state.Subject]time.Time{}
	}
	return all
}

func node(name, site string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon)}}
	if site != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: site}
	}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready,
			LastTransitionTime: metav1.NewTime(noon), LastHeartbeatTime: metav1.NewTime(noon)}}
	}
	return n
}

// put changes objects and settles, like the loop.
func (w *world) put(objects ...state.Object) {
	w.t.Helper()
	var changes []state.Change
	for _, o := range objects {
		if n, ok := o.(*corev1.Node); ok && state.ReadyOf(n) != "" && w.s.Record(n.Name) == nil && !w.byHand {
			// a device has reported
			changes = append(changes, state.Put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Boot: "b"}, ""))
		}
		changes = append(changes, state.Put(o.DeepCopyObject().(state.Object), ""))
	}
	w.apply(changes)
}

func (w *world) apply(changes []state.Change) {
	w.t.Helper()
	var recent []state.Applied
	w.s, recent = state.Apply(w.s, changes)
	for _, a := range recent { // a report is a heartbeat
		if a.Key.Kind == state.Nodes && a.New != nil && state.ReadyOf(a.New.(*corev1.Node)) != corev1.ConditionUnknown {
			w.s = w.s.WithSeen(a.Key.Name, w.now)
		}
	}
	w.settle(recent)
}

func (w *world) settle(recent []state.Applied) {
	w.t.Helper()
	var heard [3]int
	for range 20 {
		quiet := true
		for i, d := range w.deciders() {
			subjects := state.Touched(d.Touches, recent[heard[i]:])
			heard[i] = len(recent)
			for q, at := range w.alarms[i] {
				if !at.After(w.now) {
					subjects = append(subjects, q)
					delete(w.alarms[i], q)
				}
			}
			if len(subjects) == 0 {
				continue
			}
			quiet = false
			plan := d.Decide(w.s, subjects, w.now)
			var done []state.Applied
			w.s, done = state.Apply(w.s, plan.Changes)
			recent = append(recent, done...)
			if plan.ResetSeen {
				w.s = w.s.ResetSeen(w.now)
			}
			w.wake(i, plan.Alarms)
			for _, c := range plan.Changes {
				if c.Why != "" {
					w.sentences = append(w.sentences, fmt.Sprintf("%s %s", w.now.Sub(noon), c.Why))
				}
			}
		}
		if quiet {
			return
		}
	}
	w.t.Fatal("lifecycle does not settle")
}

func (w *world) wake(i int, alarms []state.Alarm) {
	for _, a := range alarms {
		delete(w.alarms[i], a.Subject)
		if !a.At.IsZero() {
			w.alarms[i][a.Subject] = a.At
		}
	}
}

// wait advances the time from alarm to alarm. The nodes in alive renew their leases.
func (w *world) wait(d time.Duration, alive ...string) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		next := end
		for _, alarms := range w.alarms {
			for _, at := range alarms {
				if at.Before(next) {
					next = at
				}
			}
		}
		if next.After(w.now) {
			w.now = next
		}
		for _, n := range alive {
			w.s = w.s.WithSeen(n, w.now)
		}
		w.settle(nil)
		if !w.now.Before(end) {
			return
		}
	}
}

func (w *world) ready(name string) corev1.ConditionStatus { return state.ReadyOf(w.s.Node(name)) }

func (w *world) taints(name string) string {
	var out []string
	for _, t := range w.s.Node(name).Spec.Taints {
		out = append(out, strings.TrimPrefix(t.ToString(), "node.kubernetes.io/"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *world) expel() (names []string) {
	for n := range w.s.Nodes() {
		if state.NoExecuteOf(n) != nil {
			names = append(names, n.Name)
		}
	}
	return names
}

func names(prefix string, count int) (out []string) {
	for i := range count {
		out = append(out, fmt.Sprintf("%s-%02d", prefix, i))
	}
	return out
}

func (w *world) site(name string, ready, notReady int) {
	w.t.Helper()
	for _, n := range names(name, ready+notReady) {
		w.put(node(n, name, corev1.ConditionTrue))
	}
}

func TestStateOfASite(t *testing.T) {
	for _, tt := range []struct {
		notReady, ready int
		want            fleet.SiteState
	}{
		{0, 1, fleet.SiteNormal}, {0, 0, fleet.SiteNormal}, {1, 0, fleet.SiteFullDisruption}, {3, 0, fleet.SiteFullDisruption},
		{11, 9, fleet.SitePartialDisruption}, {22, 18, fleet.SitePartialDisruption}, {33, 27, fleet.SitePartialDisruption}, {55, 45, fleet.SitePartialDisruption},
		{6, 5, fleet.SiteNormal}, {3, 3, fleet.SiteNormal}, {2, 1, fleet.SiteNormal}, {2, 0, fleet.SiteFullDisruption}, {3, 2, fleet.SitePartialDisruption},
	} {
		t.Run(fmt.Sprintf("%d of %d not ready is %s", tt.notReady, tt.notReady+tt.ready, tt.want), func(t *testing.T) {
			if got := lifecycle.StateOf(state.SiteCount{Ready: tt.ready, NotReady: tt.notReady}, 0.55); got != tt.want {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestExpiryIsStrictlyAfterTheGrace(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("a", "oslo", corev1.ConditionTrue), node("b", "oslo", corev1.ConditionTrue))
	w.wait(40*time.Second, "b")
	if got := w.ready("a"); got != corev1.ConditionTrue {
		t.Errorf("Ready at the deadline = %s, want True", got)
	}
	w.wait(1, "b")
	if got := w.ready("a"); got != corev1.ConditionUnknown {
		t.Errorf("Ready just after the deadline = %s, want Unknown", got)
	}
	c := state.NodeCondition(w.s.Node("a"), corev1.NodeReady)
	if c.Reason != "NodeStatusUnknown" || c.Message != "Kubelet stopped posting node status." ||
		!c.LastHeartbeatTime.Time.Equal(noon) {
		t.Errorf("Ready = %+v", c)
	}
	for _, typ := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure} {
		if c := state.NodeCondition(w.s.Node("a"), typ); c == nil || c.Reason != "NodeStatusNeverUpdated" {
			t.Errorf("%s = %+v, want never updated", typ, c)
		}
	}
	if got, want := w.taints("a"), "unreachable:NoExecute unreachable:NoSchedule"; got != want {
		t.Errorf("taints = %q, want %q: the first of a healthy site is tainted at once", got, want)
	}
	if w.ready("b") != corev1.ConditionTrue || w.taints("b") != "" {
		t.Errorf("b: %s %s", w.ready("b"), w.taints("b"))
	}
}

func TestANodeThatNeverReportedBecomesUnknown(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("new", "oslo", ""), node("ok", "oslo", corev1.ConditionTrue))
	if got := w.taints("new"); got != "not-ready:NoSchedule" {
		t.Errorf("a new node has taints %q", got)
	}
	w.wait(60*time.Second, "ok")
	if got := w.ready("new"); got != "" {
		t.Errorf("Ready within the startup grace = %q, want none", got)
	}
	w.wait(1, "ok")
	c := state.NodeCondition(w.s.Node("new"), corev1.NodeReady)
	if c == nil || c.Reason != "NodeStatusNeverUpdated" || c.Message != "Kubelet never posted node status." ||
		!c.LastHeartbeatTime.Time.Equal(noon) {
		t.Errorf("Ready = %+v", c)
	}
	if got := w.s.Site("oslo").Status; got.NeverSeen != 1 || got.NotReady != 0 || got.State != fleet.SiteNormal {
		t.Errorf("a node that has never reported counts for its site: %+v", got)
	}
}

func TestALeaseAloneDoesNotMakeReady(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("a", "oslo", corev1.ConditionTrue), node("b", "oslo", corev1.ConditionTrue))
	w.wait(time.Minute, "b")
	w.wait(time.Minute, "a", "b")
	if got := w.ready("a"); got != corev1.ConditionUnknown {
		t.Errorf("Ready = %s, want Unknown until a status comes", got)
	}
	w.put(node("a", "oslo", corev1.ConditionTrue))
	if w.ready("a") != corev1.ConditionTrue || w.taints("a") != "" {
		t.Errorf("after a status: Ready=%s, taints %q", w.ready("a"), w.taints("a"))
	}
}

func TestTaintsByCondition(t *testing.T) {
	for _, tt := range []struct {
		condition corev1.NodeConditionType
		status    corev1.ConditionStatus
		want      string
	}{
		{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "network-unavailable:NoSchedule"},
		{corev1.NodeMemoryPressure, corev1.ConditionTrue, "memory-pressure:NoSchedule"},
		{corev1.NodeDiskPressure, corev1.ConditionTrue, "disk-pressure:NoSchedule"},
		{corev1.NodePIDPressure, corev1.ConditionTrue, "pid-pressure:NoSchedule"},
		{fleet.ConditionOutOfDisk, corev1.ConditionTrue, "out-of-disk:NoSchedule"},
		{corev1.NodeMemoryPressure, corev1.ConditionUnknown, ""},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, ""},
	} {
		t.Run(fmt.Sprintf("%s=%s adds %q, and its end removes it", tt.condition, tt.status, tt.want), func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			n := node("a", "oslo", corev1.ConditionTrue)
			n.Spec.Taints = []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoSchedule}}
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: tt.condition, Status: tt.status})
			w.put(n)
			want := strings.TrimSpace("mine:NoSchedule " + tt.want)
			if tt.want != "" && tt.want < "mine" {
				want = tt.want + " mine:NoSchedule"
			}
			if got := w.taints("a"); got != want {
				t.Errorf("taints %q, want %q", got, want)
			}
			n = w.s.Node("a").DeepCopy()
			n.Status.Conditions = n.Status.Conditions[:1]
			w.put(n)
			if got := w.taints("a"); got != "mine:NoSchedule" {
				t.Errorf("afterwards taints %q", got)
			}
		})
	}
	t.Run("cordon adds the taint unschedulable, uncordon removes it", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		n := node("a", "", corev1.ConditionTrue)
		n.Spec.Unschedulable = true
		w.put(n)
		if got := w.taints("a"); got != "unschedulable:NoSchedule" {
			t.Errorf("taints %q", got)
		}
		n = w.s.Node("a").DeepCopy()
		n.Spec.Unschedulable = false
		w.put(n)
		if got := w.taints("a"); got != "" {
			t.Errorf("taints %q", got)
		}
	})
}

func TestAReplacedTaintHasItsOwnTimeAndTheFirstIsStored(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("a", "oslo", corev1.ConditionTrue), node("b", "oslo", corev1.ConditionTrue))
	w.wait(41*time.Second, "b")
	first := state.NoExecuteOf(w.s.Node("a"))
	if first == nil || first.Key != corev1.TaintNodeUnreachable {
		t.Fatalf("taint %v", first)
	}
	w.wait(time.Minute, "b")
	sick := w.s.Node("a").DeepCopy()
	state.NodeCondition(sick, corev1.NodeReady).Status = corev1.ConditionFalse
	w.put(sick)
	got := state.NoExecuteOf(w.s.Node("a"))
	if got == nil || got.Key != corev1.TaintNodeNotReady || !got.TimeAdded.Time.Equal(noon.Add(101*time.Second)) {
		t.Errorf("after the swap %v", got)
	}
	past := state.OutageOf(w.s.Node("a"))
	if past == nil || len(past.TaintPeriods) != 1 || past.TaintPeriods[0].Key != first.Key ||
		!past.TaintPeriods[0].From.Equal(first.TimeAdded) || !past.TaintPeriods[0].To.Equal(got.TimeAdded) {
		t.Errorf("the record stores %v of %v", past, first)
	}
	for range 30 { // a device that alternates between not-ready and unreachable
		for _, ready := range []corev1.ConditionStatus{corev1.ConditionUnknown, corev1.ConditionFalse} {
			w.wait(time.Second, "b")
			w.becomes("a", ready)
		}
	}
	if past := state.OutageOf(w.s.Node("a")); len(past.TaintPeriods) > 8 ||
		!past.TaintPeriods[0].From.Equal(first.TimeAdded) {
		t.Errorf("the record stores %d periods, the first since %s", len(past.TaintPeriods), past.TaintPeriods[0].From)
	}
	if n := w.s.Node("a"); !past.Since.Time.Equal(state.OutageOf(n).Since.Time) {
		t.Errorf("the outage began at %s, and later at %s", past.Since, state.OutageOf(n).Since)
	}
	w.becomes("a", up)
	if past := state.OutageOf(w.s.Node("a")); past != nil {
		t.Errorf("a ready node stores %v", past)
	}
}

func TestNodesAreTaintedAtTheRateOfTheirSite(t *testing.T) {
	silence := func(w *world, site string, alive []string, d time.Duration) []string {
		w.wait(40*time.Second+1, alive...)
		w.wait(d, alive...)
		return slices.DeleteFunc(w.expel(), func(n string) bool { return !strings.HasPrefix(n, site) })
	}
	t.Run("in a normal site one node per 10 s gets NoExecute, the first at once", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.site("oslo", 10, 0)
		alive := names("oslo", 10)[4:]
		for i, d := range []time.Duration{0, 9 * time.Second, time.Second, 10 * time.Second, 10 * time.Second} {
			want := []int{1, 1, 2, 3, 4}[i]
			var got []string
			if i == 0 {
				got = silence(w, "oslo", alive, 0)
			} else {
				w.wait(d, alive...)
				got = w.expel()
			}
			if len(got) != want {
				t.Fatalf("step %d: %v tainted, want %d", i, got, want)
			}
		}
	})
	t.Run("E6' in a small partially disrupted site no node gets NoExecute", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.site("oslo", 5, 0)
		w.site("bergen", 1, 0)
		if got := silence(w, "oslo", append(names("oslo", 5)[3:], "bergen-00"), time.Hour); len(got) != 0 {
			t.Errorf("tainted %v", got)
		}
		if st := w.s.Site("oslo").Status; st.State != fleet.SitePartialDisruption || st.Held == "" || st.Waiting != 3 {
			t.Errorf("status %+v", st)
		}
	})
	t.Run("in a large partially disrupted site one node per 100 s gets NoExecute", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.site("oslo", 60, 0)
		if got := silence(w, "oslo", names("oslo", 60)[40:], 250*time.Second); len(got) != 3 {
			t.Errorf("tainted %v, want 3 after 250 s", got)
		}
	})
	t.Run("E3 in a fully disrupted site nodes get NoExecute at the normal rate if another site is healthy",
		func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.site("oslo", 3, 0)
			w.site("bergen", 1, 0)
			if got := silence(w, "oslo", []string{"bergen-00"}, 10*time.Second); len(got) != 2 {
				t.Errorf("tainted %v, want 2 after 10 s", got)
			}
		})
	t.Run("Hold stops evictions in a fully disrupted site", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Spec: fleet.SiteSpec{DisruptionPolicy: fleet.Hold}})
		w.site("oslo", 3, 0)
		w.site("bergen", 1, 0)
		if got := silence(w, "oslo", []string{"bergen-00"}, time.Hour); len(got) != 0 {
			t.Errorf("tainted %v", got)
		}
	})
	t.Run("maintenance stops evictions, and its end resumes them", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.put(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"},
			Spec: fleet.SiteSpec{Maintenance: &fleet.Maintenance{Until: metav1.NewTime(noon.Add(10 * time.Minute))}}})
		w.site("oslo", 3, 0)
		if got := silence(w, "oslo", names("oslo", 3)[1:], 5*time.Minute); len(got) != 0 {
			t.Errorf("tainted %v during maintenance", got)
		}
		w.wait(5*time.Minute, names("oslo", 3)[1:]...)
		if got := w.expel(); len(got) != 1 {
			t.Errorf("tainted %v after maintenance, want one", got)
		}
	})
	t.Run("a node that recovers while it waits uses no token", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.site("oslo", 10, 0)
		alive := names("oslo", 10)[3:]
		silence(w, "oslo", alive, 0)
		w.put(node("oslo-01", "oslo", corev1.ConditionTrue))
		alive = append(alive, "oslo-01")
		w.wait(10*time.Second, alive...)
		if got := w.expel(); !slices.Equal(got, []string{"oslo-00", "oslo-02"}) {
			t.Errorf("tainted %v", got)
		}
	})
	t.Run("a new rate applies from the next pass", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		w.site("oslo", 10, 0)
		alive := names("oslo", 10)[4:]
		silence(w, "oslo", alive, 0)
		site := w.s.Site("oslo").DeepCopy()
		fast := 1.0
		site.Spec.NodeEvictionRate = &fast
		w.put(site)
		w.wait(2*time.Second, alive...)
		if got := w.expel(); len(got) != 3 {
			t.Errorf("tainted %v, want 3 two seconds after the rate became 1/s", got)
		}
	})
}

func TestWithoutAReadyNodeNoNodeIsTainted(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.site("oslo", 2, 0)
	w.site("bergen", 2, 0)
	w.wait(41*time.Second, "bergen-00", "bergen-01")
	if got := w.expel(); len(got) != 1 {
		t.Fatalf("tainted %v, want one of oslo", got)
	}
	w.wait(41 * time.Second)
	if got := w.expel(); len(got) != 0 {
		t.Errorf("while no site has a ready node, %v are tainted", got)
	}
	if got := w.taints("oslo-00"); got != "unreachable:NoSchedule" {
		t.Errorf("taints %q: NoSchedule stays", got)
	}
	w.wait(time.Hour)
	if got := w.expel(); len(got) != 0 {
		t.Errorf("tainted %v", got)
	}
	// One device returns.
	w.put(node("bergen-00", "bergen", corev1.ConditionTrue))
	if got := w.expel(); len(got) != 0 {
		t.Errorf("after the disruption %v are tainted at once: the first node waits 1/rate", got)
	}
	w.wait(10*time.Second, "bergen-00")
	if got := w.expel(); len(got) != 2 {
		t.Errorf("10 s later %v are tainted, want one of each site", got)
	}
	w.wait(10*time.Second, "bergen-00")
	if got := w.expel(); len(got) != 3 {
		t.Errorf("20 s later %v are tainted, want three", got)
	}
}

func TestTheOnlyHealthyNodeIsExcluded(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	healthy := node("oslo-09", "oslo", corev1.ConditionTrue)
	healthy.Labels[fleet.LabelExcludeDisruption] = ""
	w.put(healthy)
	w.site("oslo", 2, 0)
	w.wait(time.Hour, "oslo-09")
	if got := w.expel(); len(got) != 0 {
		t.Errorf("%v are tainted although the only healthy node is excluded", got)
	}
}

func TestANodeFlapsAfterManyChangesOfReady(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("b", "oslo", corev1.ConditionTrue))
	for i, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue,
		corev1.ConditionFalse, corev1.ConditionTrue} {
		n := node("a", "oslo", ready)
		if have := w.s.Node("a"); have != nil {
			n = have.DeepCopy()
			state.NodeCondition(n, corev1.NodeReady).Status = ready
		}
		w.put(n)
		w.wait(10*time.Second, "a", "b")
		c := state.NodeCondition(w.s.Node("a"), fleet.ConditionFlapping)
		if flaps := c != nil && c.Status == corev1.ConditionTrue; flaps != (i == 4) {
			t.Errorf("after %d changes of Ready, flapping = %v", i, flaps)
		}
	}
	if got := w.taints("a"); got != "flotilla.dev/flapping:PreferNoSchedule" {
		t.Errorf("taints %q", got)
	}
	w.wait(10*time.Minute, "a", "b")
	if c := state.NodeCondition(w.s.Node("a"), fleet.ConditionFlapping); c.Status != corev1.ConditionFalse ||
		w.taints("a") != "" {
		t.Errorf("ten quiet minutes later %+v, taints %q", c, w.taints("a"))
	}
}

func TestAfterMasterDisruptionEveryNodeCountsAsSeen(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	out := node("b", "bergen", corev1.ConditionTrue) // ready, but excluded from the state of its site
	out.Labels[fleet.LabelExcludeDisruption] = ""
	w.put(node("a", "oslo", corev1.ConditionTrue), out)
	w.wait(time.Minute, "b") // a falls silent, so every site is dark
	if got := w.s.Site("oslo").Status.HeldReason; got != fleet.HeldInMasterDisruption {
		t.Fatalf("held: %q", got)
	}
	w.wait(30 * time.Second) // b falls silent too
	w.put(node("a", "oslo", corev1.ConditionTrue))
	w.wait(40*time.Second, "a")
	if got := w.ready("b"); got != corev1.ConditionTrue {
		t.Errorf("Ready after 70 s of silence, 40 s of them after the disruption = %s, want True", got)
	}
	w.wait(1, "a")
	if got := w.ready("b"); got != corev1.ConditionUnknown {
		t.Errorf("Ready one grace period after the disruption = %s, want Unknown", got)
	}
}

func TestSilenceChangesOnlyWatchedConditions(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	n := node("a", "oslo", corev1.ConditionTrue)
	earlier := metav1.NewTime(noon.Add(-time.Hour))
	for _, c := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
	}{{corev1.NodeMemoryPressure, corev1.ConditionTrue}, {corev1.NodeDiskPressure,
		corev1.ConditionFalse}, {corev1.NodeNetworkUnavailable, corev1.ConditionFalse}, {fleet.ConditionOutOfDisk,
		corev1.ConditionTrue}} {
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: c.kind, Status: c.status, Reason: "Said", LastHeartbeatTime: earlier,
				LastTransitionTime: earlier})
	}
	w.put(n, node("b", "oslo", corev1.ConditionTrue))
	w.wait(40*time.Second+1, "b")
	for kind, want := range map[corev1.NodeConditionType]string{
		corev1.NodeReady: "Unknown NodeStatusUnknown", corev1.NodeMemoryPressure: "Unknown NodeStatusUnknown",
		corev1.NodeDiskPressure: "Unknown NodeStatusUnknown",
		corev1.NodePIDPressure:  "Unknown NodeStatusNeverUpdated", corev1.NodeNetworkUnavailable: "False Said",
		fleet.ConditionOutOfDisk: "Unknown NodeStatusUnknown",
	} {
		c := state.NodeCondition(w.s.Node("a"), kind)
		if c == nil || fmt.Sprintf("%s %s", c.Status, c.Reason) != want {
			t.Errorf("%s = %+v, want %s", kind, c, want)
			continue
		}
		if c.Reason == "Said" && !c.LastTransitionTime.Equal(&earlier) ||
			c.Reason != "Said" && !c.LastTransitionTime.Time.Equal(w.now) {
			t.Errorf("%s changed at %s", kind, c.LastTransitionTime)
		}
	}
	if c := state.NodeCondition(w.s.Node("a"), corev1.NodeDiskPressure); !c.LastHeartbeatTime.Equal(&earlier) {
		t.Errorf("the last heartbeat of DiskPressure is %s, want it unchanged", c.LastHeartbeatTime)
	}
	if got, want := w.taints("a"), "unreachable:NoExecute unreachable:NoSchedule"; got != want {
		t.Errorf("taints %q, want %q: the pressure is unknown now", got, want)
	}
}

func TestATaintIsItsKeyAndEffect(t *testing.T) {
	at := func(d time.Duration) *metav1.Time { t := metav1.NewTime(noon.Add(d)); return &t }
	w := newWorld(t, lifecycle.Defaults)
	n := node("a", "oslo", corev1.ConditionUnknown)
	n.Spec.Taints = []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute, TimeAdded: at(-time.Minute)},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: at(-time.Second)},
		{Key: corev1.TaintNodeUnreachable, Value: "old", Effect: corev1.TaintEffectNoSchedule, TimeAdded: at(-time.Second)},
	}
	w.put(n, node("b", "oslo", corev1.ConditionTrue))
	if got, want := w.taints("a"),
		"unreachable:NoExecute unreachable:PreferNoSchedule unreachable=old:NoSchedule"; got != want {
		t.Errorf("taints %q, want %q: one NoExecute of not-ready and unreachable, and the user's own", got, want)
	}
	if got := state.NoExecuteOf(w.s.Node("a")).TimeAdded; !got.Equal(at(-time.Second)) {
		t.Errorf("the taint's time is %s, want its own", got)
	}
	if past := state.OutageOf(w.s.Node("a")); len(past.TaintPeriods) != 1 ||
		!past.TaintPeriods[0].From.Equal(at(-time.Minute)) {
		t.Errorf("the record stores %v, want the replaced taint", past)
	}
	w.becomes("a", up)
	if got, want := w.taints("a"), "unreachable:PreferNoSchedule"; got != want {
		t.Errorf("a ready node has the taints %q, want %q", got, want)
	}
}

func TestARateOfExactlyOneResumesAfterADisruption(t *testing.T) {
	set := lifecycle.Defaults
	set.Rate = 1
	w := newWorld(t, set)
	w.site("oslo", 6, 0)
	w.site("bergen", 1, 0)
	w.wait(time.Hour) // every site is dark
	if got := w.expel(); len(got) > 0 {
		t.Fatalf("tainted %v", got)
	}
	w.becomes("bergen-00", up)
	w.wait(3*time.Second, "bergen-00")
	if got := w.expel(); len(got) != 3 {
		t.Errorf("3 s after the disruption %v are tainted, want 3", got)
	}
	w.becomes("oslo-04", up)
	w.becomes("oslo-05", up) // 4 of 6 not ready: partially disrupted and small
	if st := w.s.Site("oslo").Status; st.EvictionRate != "0" {
		t.Fatalf("status %+v", st)
	}
	w.wait(time.Minute, "bergen-00", "oslo-04", "oslo-05")
	w.becomes("oslo-03", up)
	w.becomes("oslo-03", down)
	w.becomes("oslo-02", up)
	w.becomes("oslo-01", up) // 2 of 6 not ready: Normal
	if got := w.expel(); !slices.Equal(got, []string{"oslo-00"}) {
		t.Errorf("in the normal site %v are tainted at once: a rate of 0 fills no bucket", got)
	}
	w.wait(time.Second, "bergen-00", "oslo-01", "oslo-02", "oslo-04", "oslo-05")
	if got := w.expel(); !slices.Equal(got, []string{"oslo-00", "oslo-03"}) {
		t.Errorf("a second later %v are tainted, want the waiting one", got)
	}
}

func TestTheHistoryOfANodeIsStored(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.put(node("a", "oslo", corev1.ConditionTrue), node("b", "oslo", corev1.ConditionTrue))
	begin := w.now
	w.wait(time.Minute, "b") // a falls silent and is tainted
	n := w.s.Node("a").DeepCopy()
	*state.NodeCondition(n, corev1.NodeReady) = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", LastTransitionTime: metav1.NewTime(w.now)}
	w.put(n)
	w.wait(10*time.Second, "a", "b")
	var got []string
	last := begin.Add(-time.Hour)
	for _, turn := range w.s.Record("a").History {
		got = append(got, fmt.Sprintf("%s/%v", turn.Ready, turn.Out))
		if turn.At.Before(&metav1.MicroTime{Time: last}) || turn.At.After(w.now) {
			t.Errorf("the change to %s is stored at %s, after %s", turn.Ready, turn.At, last)
		}
		last = turn.At.Time
	}
	if want := "[True/false Unknown/false Unknown/true True/false]"; fmt.Sprint(got) != want {
		t.Errorf("the history is %v, want %s", got, want)
	}
	if rec := w.s.Record("b"); rec != nil && len(rec.History) > 0 {
		t.Errorf("a node that never changed has the history %v", rec.History)
	}
}
