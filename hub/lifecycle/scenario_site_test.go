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

const (
	up   = corev1.ConditionTrue
	down = corev1.ConditionUnknown
)

// states returns the disruption states of all sites.
func (w *world) states() map[string]fleet.SiteState {
	out := map[string]fleet.SiteState{}
	for site := range state.Each[*fleet.Site](w.s, state.Sites, "") {
		out[site.Name] = site.Status.State
	}
	return out
}

// becomes sets a node's Ready like a report; down: like silence.
func (w *world) becomes(name string, ready corev1.ConditionStatus) {
	w.t.Helper()
	n := w.s.Node(name).DeepCopy()
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions,
		func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	n.Status.Conditions = append(n.Status.Conditions,
		corev1.NodeCondition{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(w.now)})
	w.put(n)
}

// alive returns the ready nodes, which renew their leases.
func (w *world) alive() (out []string) {
	for n := range w.s.Nodes() {
		if state.ReadyOf(n) == up {
			out = append(out, n.Name)
		}
	}
	return out
}

func TestScenarioStateOfSites(t *testing.T) {
	type states = map[string]fleet.SiteState
	const normal, partial, full = fleet.SiteNormal, fleet.SitePartialDisruption, fleet.SiteFullDisruption
	excluded := func(n *corev1.Node) *corev1.Node {
		n.Labels[fleet.LabelExcludeDisruption] = ""
		return n
	}
	region := func(n *corev1.Node, region string) *corev1.Node {
		n.Labels[corev1.LabelTopologyRegion] = region
		return n
	}
	five := func(ready ...corev1.ConditionStatus) (out []*corev1.Node) {
		for i, r := range ready {
			out = append(out, node(fmt.Sprint("n", i), "z", r))
		}
		return out
	}
	for _, tt := range []struct {
		name          string
		nodes         []*corev1.Node
		first, second states
		change        func(*world) // made an hour after the first pass
	}{
		{"Z1 one ready node without a site makes the default site Normal",
			[]*corev1.Node{node("n0", "", up)}, states{"default": normal}, states{"default": normal}, nil},
		{"Z2 two sites with one silent node each are fully disrupted, and a site whose node returns is Normal",
			[]*corev1.Node{node("n0", "a", down), node("n1", "b", down)}, states{"a": full, "b": full},
			states{"a": full, "b": normal},
			func(w *world) { w.becomes("n1", up) }},
		{"Z3 ours: nodes that never reported do not count, so their site is Normal; then three of four silent make it Partial",
			five("", "", "", ""), states{"z": normal}, states{"z": partial},
			func(w *world) {
				for i, r := range []corev1.ConditionStatus{down, down, down, up} {
					w.becomes(fmt.Sprint("n", i), r)
				}
			}},
		{"Z4 two silent of five are Normal, the third makes the site Partial",
			five(down, down, up, up, up), states{"z": normal}, states{"z": partial}, func(w *world) { w.becomes("n2", down) }},
		{"Z5 two silent of three are Normal, as at least three must fail; the last one makes the site Full",
			five(down, down, up), states{"z": normal}, states{"z": full}, func(w *world) { w.becomes("n2", down) }},
		{"Z6 a dark site and a healthy site keep their states",
			[]*corev1.Node{node("n0", "a", down), node("n1", "b", up)}, states{"a": full, "b": normal},
			states{"a": full, "b": normal}, nil},
		{"Z7 one zone name in two regions is two sites, both down",
			[]*corev1.Node{region(node("n0", "z", down), "r1"), region(node("n1", "z", down), "r2")},
			states{"r1.z": full, "r2.z": full}, states{"r1.z": full, "r2.z": full}, nil},
		{"Z8 ours: a node without a Ready condition counts as never seen, so its site stays Normal",
			five(up), states{"z": normal}, states{"z": normal}, func(w *world) {
				n := w.s.Node("n0").DeepCopy()
				n.Status.Conditions = nil
				w.put(n)
			}},
		{"Z9 a ready node that is excluded does not save its site: it is fully disrupted, and stays so",
			[]*corev1.Node{node("n0", "z", down), excluded(node("n1", "z", up))}, states{"z": full}, states{"z": full}, nil},
		{"S1.excluded.1 the label without a value excludes a node",
			[]*corev1.Node{node("n0", "z", up), excluded(node("n1", "z", down))}, states{"z": normal}, states{"z": full},
			func(w *world) { w.becomes("n0", down) }},
		{"S1.excluded.2 a node called master-abc is a node like every other",
			[]*corev1.Node{node("master-abc", "z", down)}, states{"z": full}, states{"z": full}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			for _, n := range tt.nodes {
				w.put(n)
			}
			check := func(look string, want states) {
				t.Helper()
				if got := w.states(); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s pass: %v, want %v", look, got, want)
				}
			}
			check("first", tt.first)
			w.wait(time.Hour, w.alive()...)
			if tt.change != nil {
				tt.change(w)
			}
			check("second", tt.second)
		})
	}
}

func TestScenarioRateOfASmallSite(t *testing.T) {
	for _, tt := range []struct {
		name  string
		large *int32
		want  int
	}{
		{"E6' three silent of five stop evictions at the defaults, as the site has at most 50 nodes", nil, 0},
		{"E6 three silent of five are evicted if the site's own threshold makes it large", new(int32(4)), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lifecycle.Defaults)
			w.put(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"},
				Spec: fleet.SiteSpec{LargeClusterSizeThreshold: tt.large, Description: "x"}})
			w.site("oslo", 5, 0)
			w.site("bergen", 1, 0)
			w.wait(time.Hour, "oslo-03", "oslo-04", "bergen-00")
			if got := w.expel(); len(got) != tt.want || w.states()["oslo"] != fleet.SitePartialDisruption {
				t.Errorf("site %s, tainted %v, want %d", w.states()["oslo"], got, tt.want)
			}
		})
	}
}

func TestScenarioExcludedNode(t *testing.T) {
	t.Run("E4 if the only healthy node is excluded, no pod is evicted", func(t *testing.T) {
		w := newWorld(t, lifecycle.Defaults)
		healthy := node("healthy", "oslo", up)
		healthy.Labels[fleet.LabelExcludeDisruption] = ""
		w.put(healthy)
		w.site("oslo", 2, 0)
		w.wait(time.Hour, "healthy")
		if got := w.expel(); len(got) != 0 || w.states()["oslo"] != fleet.SiteFullDisruption {
			t.Errorf("site %s, tainted %v", w.states()["oslo"], got)
		}
	})
}

// Kubernetes has a queue with a rate limiter. Here it corresponds to the order in which a site's
// nodes wait for their NoExecute taint.
func TestScenarioQueue(t *testing.T) {
	// silent returns a site of 20 nodes whose first n have just fallen silent.
	silent := func(t *testing.T, n int, spec fleet.SiteSpec) (w *world, alive []string) {
		w = newWorld(t, lifecycle.Defaults)
		spec.Description = "x" // so that the Site object stays
		w.put(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "z"}, Spec: spec})
		w.site("z", 20, 0)
		alive = names("z", 20)[n:]
		w.wait(40*time.Second+1, alive...)
		return w, alive
	}
	expect := func(t *testing.T, w *world, want ...string) {
		t.Helper()
		if got := w.expel(); !slices.Equal(got, want) {
			t.Errorf("at %s %v are tainted, want %v", w.now.Sub(noon), got, want)
		}
	}
	heal := func(w *world, alive []string, name string) []string {
		w.becomes(name, up)
		return append(alive, name)
	}
	t.Run("S7.1 a node waits once, however many passes there are", func(t *testing.T) {
		w, alive := silent(t, 3, fleet.SiteSpec{})
		for range 5 {
			w.put(w.s.Node("z-01"), w.s.Node("z-02"))
		}
		if got := w.s.Count("z").Waiting; got != 2 {
			t.Errorf("%d wait, want 2", got)
		}
		w.wait(10*time.Second, alive...)
		expect(t, w, "z-00", "z-01")
	})
	for place, name := range []string{"z-01", "z-02", "z-03"} {
		t.Run(fmt.Sprintf("S7.2 a node that recovers leaves the queue from any place, here %d of 3, and the others keep theirs", place+1), func(t *testing.T) {
			w, alive := silent(t, 4, fleet.SiteSpec{})
			alive = heal(w, alive, name)
			w.wait(20*time.Second, alive...)
			expect(t, w, slices.DeleteFunc(names("z", 4), func(n string) bool { return n == name })...)
		})
	}
	t.Run("S7.3 each node is tainted once, in the order of failure", func(t *testing.T) {
		w, alive := silent(t, 3, fleet.SiteSpec{})
		expect(t, w, "z-00")
		w.wait(10*time.Second, alive...)
		expect(t, w, "z-00", "z-01")
		w.wait(10*time.Second, alive...)
		expect(t, w, "z-00", "z-01", "z-02")
		given := 0
		w.wait(time.Hour, alive...)
		for _, s := range w.sentences {
			if strings.Contains(s, " taint z-") {
				given++
			}
		}
		if given != 3 {
			t.Errorf("NoExecute was given %d times: %q", given, w.sentences)
		}
	})
	t.Run("S7.5 a node that recovers just before its turn is not tainted", func(t *testing.T) {
		w, alive := silent(t, 2, fleet.SiteSpec{})
		w.wait(10*time.Second-time.Millisecond, alive...)
		alive = heal(w, alive, "z-01")
		w.wait(time.Hour, alive...)
		expect(t, w, "z-00")
	})
	t.Run("S7.6 when no site has a ready node the queue is emptied", func(t *testing.T) {
		w, _ := silent(t, 5, fleet.SiteSpec{})
		w.wait(time.Hour)
		expect(t, w)
		if st := w.s.Site("z").Status; st.NextEviction != nil || st.EvictionRate != "0" ||
			st.HeldReason != fleet.HeldInMasterDisruption {
			t.Errorf("status %+v", st)
		}
	})
	t.Run("S7.7 a rate of 0 means never", func(t *testing.T) {
		w, alive := silent(t, 3, fleet.SiteSpec{NodeEvictionRate: new(0.0)})
		w.wait(24*time.Hour, alive...)
		expect(t, w)
	})
	t.Run("S7.8 a rate of 5.5 taints one node at once and then 5.5 per second", func(t *testing.T) {
		w, alive := silent(t, 9, fleet.SiteSpec{NodeEvictionRate: new(5.5), UnhealthyZoneThreshold: new(1.0)})
		expect(t, w, "z-00")
		w.wait(time.Second, alive...)
		expect(t, w, names("z", 6)...)
		w.wait(time.Second, alive...)
		expect(t, w, names("z", 9)...)
	})
	t.Run("S7.8 ours: after a change from 0 to 5.5 no node is tainted at once", func(t *testing.T) {
		w, alive := silent(t, 3, fleet.SiteSpec{NodeEvictionRate: new(0.0)})
		w.wait(time.Minute, alive...)
		site := w.s.Site("z").DeepCopy()
		site.Spec.NodeEvictionRate = new(5.5)
		w.put(site)
		expect(t, w)
		w.wait(time.Second, alive...)
		expect(t, w, "z-00", "z-01", "z-02")
	})
	t.Run("S7.9 writing the same rate again delays no node", func(t *testing.T) {
		w, alive := silent(t, 2, fleet.SiteSpec{NodeEvictionRate: new(0.1)})
		w.wait(5*time.Second, alive...)
		before := w.s.Site("z").Status.NextEviction
		site := w.s.Site("z").DeepCopy()
		site.Spec.Location = "elsewhere"
		w.put(site)
		if after := w.s.Site("z").Status.NextEviction; before == nil || !before.Equal(after) {
			t.Errorf("the next eviction was due at %v, and now at %v", before, after)
		}
		w.wait(5*time.Second-time.Millisecond, alive...)
		expect(t, w, "z-00")
		w.wait(time.Millisecond, alive...)
		expect(t, w, "z-00", "z-01")
	})
	t.Run("S7.10 a tainted node is not queued again while it stays silent", func(t *testing.T) {
		w, alive := silent(t, 1, fleet.SiteSpec{})
		first := state.NoExecuteOf(w.s.Node("z-00")).TimeAdded
		w.put(w.s.Node("z-00"))
		w.wait(time.Hour, alive...)
		if got := state.NoExecuteOf(w.s.Node("z-00")).TimeAdded; !got.Equal(first) || w.s.Count("z").Waiting != 0 {
			t.Errorf("tainted at %v and again at %v; %d wait", first, got, w.s.Count("z").Waiting)
		}
	})
}
