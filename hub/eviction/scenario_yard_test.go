package eviction_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
	sites "flotilla.dev/shared/fleet"
)

// A yard is a fleet with only the eviction decider, and a clock.
type yard struct {
	t       *testing.T
	s       state.Snapshot
	now     time.Time
	alarms  map[state.Subject]time.Time
	left    map[string]time.Duration // when each pod was evicted, since noon
	changes []state.Change
}

func newYard(t *testing.T) *yard {
	return &yard{t: t, s: state.Empty("test", noon.Add(-time.Hour)), now: noon, alarms: map[state.Subject]time.Time{},
		left: map[string]time.Duration{}}
}

func (y *yard) put(objects ...state.Object) *yard {
	y.t.Helper()
	var changes []state.Change
	for _, o := range objects {
		changes = append(changes, state.Put(o, ""))
	}
	var recent []state.Applied
	y.s, recent = state.Apply(y.s, changes)
	y.settle(recent)
	return y
}

func (y *yard) settle(recent []state.Applied) {
	y.t.Helper()
	d := eviction.Decider{Timeouts: state.Timeouts{Grace: 40 * time.Second, Lease: 10 * time.Second}}
	for range 10 {
		subjects := state.Touched(d.Touches, recent)
		for q, at := range y.alarms {
			if !at.After(y.now) {
				subjects = append(subjects, q)
				delete(y.alarms, q)
			}
		}
		if len(subjects) == 0 {
			y.whole()
			return
		}
		plan := d.Decide(y.s, subjects, y.now)
		for _, a := range plan.Alarms {
			delete(y.alarms, a.Subject)
			if !a.At.IsZero() {
				y.alarms[a.Subject] = a.At
			}
		}
		for _, c := range plan.Changes {
			if at, twice := y.left[c.Object.GetName()]; twice {
				y.t.Errorf("%s is evicted at %s and again at %s", c.Object.GetName(), at, y.now.Sub(noon))
			}
			y.left[c.Object.GetName()] = y.now.Sub(noon)
			y.changes = append(y.changes, c)
		}
		y.s, recent = state.Apply(y.s, plan.Changes)
	}
	y.t.Fatal("eviction does not settle")
}

// whole checks that a decision about everything changes nothing.
func (y *yard) whole() {
	y.t.Helper()
	d := eviction.Decider{Timeouts: state.Timeouts{Grace: 40 * time.Second, Lease: 10 * time.Second}}
	if plan := d.Decide(y.s, d.Subjects(y.s), y.now); len(plan.Changes) > 0 {
		y.t.Errorf("asked about everything, the decider still wants %s", plan.Changes[0])
	}
}

// wait advances the time from alarm to alarm.
func (y *yard) wait(d time.Duration) *yard {
	y.t.Helper()
	end := y.now.Add(d)
	for {
		next := end
		for _, at := range y.alarms {
			if at.Before(next) {
				next = at
			}
		}
		if next.After(y.now) {
			y.now = next
		}
		y.settle(nil)
		if !y.now.Before(end) {
			return y
		}
	}
}

// gone lists the evicted pods with the times, such as "a@0s b@1s".
func (y *yard) gone() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(y.left)) {
		out = append(out, fmt.Sprintf("%s@%s", name, y.left[name]))
	}
	return strings.Join(out, " ")
}

func (y *yard) want(gone string) {
	y.t.Helper()
	if got := y.gone(); got != gone {
		y.t.Errorf("evicted: %q, want %q", got, gone)
	}
}

// pi returns the node pi-1 with taints added now.
func (y *yard) pi(keys ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}
	for _, key := range keys {
		n.Spec.Taints = append(n.Spec.Taints, taint(key, corev1.TaintEffectNoExecute, y.now.Sub(noon)))
	}
	return n
}

// calling returns a pod with a name, on pi-1.
func calling(name string, tolerations ...corev1.Toleration) *corev1.Pod {
	p := pod("pi-1", tolerations...)
	p.Name = name
	return p
}

// After its start a hub waits for a node's grace period. If that becomes shorter meanwhile, no pod
// stays on a dead node for longer than the new grace period.
func TestAShorterGraceAppliesAtOnce(t *testing.T) {
	const shop, ship = "shop", "ship"
	in := func(site string, n *corev1.Node) *corev1.Node {
		n.Labels = map[string]string{corev1.LabelTopologyZone: site}
		return n
	}
	grace := func(name string, d time.Duration) *sites.Site {
		return &sites.Site{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: sites.SiteSpec{NodeMonitorGracePeriod: &metav1.Duration{Duration: d}}}
	}
	lives := func(seconds int32) *state.Record {
		return &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Boot: "b", LeaseSeconds: seconds}
	}
	for what, change := range map[string]state.Object{
		"the grace period of the site": grace(ship, time.Minute),
		"its site":                     in(shop, newYard(t).pi(corev1.TaintNodeUnreachable)),
		"the interval of leases":       lives(10),
	} {
		t.Run(what, func(t *testing.T) {
			y := newYard(t)
			y.s.Started = noon // the hub has just started
			y.put(grace(shop, time.Minute), grace(ship, time.Hour), lives(10), in(ship, y.pi(corev1.TaintNodeUnreachable)),
				calling("web"))
			if _, is := change.(*state.Record); is {
				y.put(grace(ship, time.Minute), lives(1000))
			}
			y.wait(30 * time.Second).put(change).wait(time.Hour).want("web@1m0s")
		})
	}
}
