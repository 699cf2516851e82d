package address

import (
	"fmt"
	"maps"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var (
	noon  = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	small = Decider{netip.MustParsePrefix("10.64.0.0/22"), 24} // four blocks
)

// node returns a node created at a minute, with blocks that a user wrote.
func node(name string, minute int, blocks ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(minute) * time.Minute))}}
	if len(blocks) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = blocks[0], blocks
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// A world is a fleet with the decider of this package.
type world struct {
	t *testing.T
	d Decider
	s state.Snapshot
	// the warnings so far
	warnings []string
}

func begin(t *testing.T, d Decider) *world { return &world{t: t, d: d, s: state.Empty("test", noon)} }

// do makes changes and runs the decider until it settles.
func (w *world) do(changes ...state.Change) {
	w.t.Helper()
	next, log := state.Apply(w.s, changes)
	for round := 0; ; round++ {
		plan := w.d.Decide(next, state.Touched(w.d.Touches, log), noon)
		if len(plan.Changes) == 0 {
			break
		}
		if round == 3 {
			w.t.Fatalf("the decider does not settle: %v", plan.Changes)
		}
		for _, c := range plan.Changes {
			if c.Warn {
				w.warnings = append(w.warnings, c.Object.GetName()+" "+c.Reason)
			}
		}
		next, log = state.Apply(next, plan.Changes)
	}
	if plan := w.d.Decide(next, w.d.Subjects(next), noon); len(plan.Changes) > 0 {
		w.t.Fatalf("asked about everything, the decider still wants %v", plan.Changes)
	}
	w.s = next
}

func (w *world) add(nodes ...*corev1.Node) {
	w.t.Helper()
	var changes []state.Change
	for _, n := range nodes {
		changes = append(changes, state.Put(n, ""))
	}
	w.do(changes...)
}

func (w *world) remove(name string) {
	w.t.Helper()
	w.do(state.Remove(w.s.Node(name), ""))
}

func (w *world) has(want ...string) {
	w.t.Helper()
	var got []string
	for n := range w.s.Nodes() {
		line := n.Name + " " + strings.Join(n.Spec.PodCIDRs, ",")
		if c := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable); c != nil {
			line = n.Name + " " + strings.Join(n.Spec.PodCIDRs, ",") + " " + c.Reason
			if last := n.Status.Conditions[len(n.Status.Conditions)-1]; last.Type != corev1.NodeReady ||
				c.Status != corev1.ConditionFalse || c.Message == "" {
				w.t.Errorf("the conditions of %s are %+v, want one with a message before Ready", n.Name, n.Status.Conditions)
			}
		}
		if len(n.Spec.PodCIDRs) > 0 && n.Spec.PodCIDR != n.Spec.PodCIDRs[0] {
			w.t.Errorf("podCIDR of %s is %s, want the first of podCIDRs", n.Name, n.Spec.PodCIDR)
		}
		got = append(got, strings.TrimSpace(line))
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (w *world) warned(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.warnings, want) {
		w.t.Errorf("warnings are %q, want %q", w.warnings, want)
	}
	w.warnings = nil
}

func TestEachNodeGetsTheFirstFreeBlockForItsLife(t *testing.T) {
	w := begin(t, small)
	w.add(node("c", 0), node("a", 1), node("b", 1))
	w.has("a 10.64.1.0/24", "b 10.64.2.0/24", "c 10.64.0.0/24") // the oldest node first, then by name
	n := w.s.Node("a").DeepCopy()
	n.Status.Phase = "changed"
	w.add(n)
	w.remove("c")
	w.add(node("d", 9))
	w.has("a 10.64.1.0/24", "b 10.64.2.0/24", "d 10.64.0.0/24")
	w.warned()
}

func TestTouchesOnlyChangesOfBlocks(t *testing.T) {
	s, log := state.Apply(state.Empty("test", noon),
		[]state.Change{state.Put(node("a", 0), ""), state.Put(node("far", 0, "10.64.2.0/24"), "")})
	for _, c := range []struct {
		rule   string
		change func() []state.Change
		want   string
	}{
		{"a node without a block, and one with a block", func() []state.Change { return nil }, "[a far]"},
		{"the decider's own change", func() []state.Change { return small.Decide(s, small.Subjects(s), noon).Changes }, "[]"},
		{"another change of a node", func() []state.Change { return []state.Change{state.Put(s.Node("a").DeepCopy(), "")} }, "[]"},
		{"a node with a block is deleted", func() []state.Change { return []state.Change{state.Remove(s.Node("a"), "")} }, "[a]"},
		{"a user's block, and the node that it overlaps", func() []state.Change { return []state.Change{state.Put(node("b", 0, "10.64.2.0/23"), "")} }, "[b far]"},
	} {
		if changes := c.change(); changes != nil {
			s, log = state.Apply(s, changes)
		}
		nodes := small.nodes(s, state.Touched(small.Touches, log))
		if got := fmt.Sprint(slices.Sorted(maps.Keys(nodes))); got != c.want {
			t.Errorf("%s: %v, want %v", c.rule, got, c.want)
		}
	}
}

func TestAFreedBlockGoesToTheLongestWaiting(t *testing.T) {
	w := begin(t, small)
	w.add(node("a", 0), node("b", 0), node("c", 0), node("d", 0))
	w.add(node("young", 2))
	w.add(node("old", 1))
	w.warned("young CIDRNotAvailable", "old CIDRNotAvailable")
	w.has("a 10.64.0.0/24", "b 10.64.1.0/24", "c 10.64.2.0/24", "d 10.64.3.0/24", "old  CIDRNotAvailable",
		"young  CIDRNotAvailable")
	if c := state.NodeCondition(w.s.Node("old"),
		fleet.ConditionPodCIDRAvailable); !strings.Contains(c.Message, "all 4 are taken") ||
		!strings.Contains(c.Message, "--cluster-cidr") {
		t.Errorf("the message has no advice: %s", c.Message)
	}
	w.remove("b")
	w.has("a 10.64.0.0/24", "c 10.64.2.0/24", "d 10.64.3.0/24", "old 10.64.1.0/24", "young  CIDRNotAvailable")
	w.warned()
}

func TestABlockWrittenByAUserStays(t *testing.T) {
	for _, c := range []struct {
		rule         string
		nodes        []*corev1.Node
		want, warned []string
	}{
		{"a user's block is not assigned again", []*corev1.Node{node("hand", 5, "10.64.0.0/24"), node("pi", 0)},
			[]string{"hand 10.64.0.0/24", "pi 10.64.1.0/24"}, nil},
		{"a larger block takes every block that it covers", []*corev1.Node{node("hand", 5, "10.64.0.0/23"), node("pi", 0)},
			[]string{"hand 10.64.0.0/23", "pi 10.64.2.0/24"}, nil},
		{"a part of a block takes the whole block, and two parts do not overlap", []*corev1.Node{node("h1", 5, "10.64.0.0/26"), node("h2", 5, "10.64.0.64/26"), node("pi", 0)},
			[]string{"h1 10.64.0.0/26", "h2 10.64.0.64/26", "pi 10.64.1.0/24"}, nil},
		{"of two nodes with one block the younger has a condition", []*corev1.Node{node("h1", 6, "10.64.0.0/24"), node("h2", 5, "10.64.0.0/24")},
			[]string{"h1 10.64.0.0/24 CIDRConflict", "h2 10.64.0.0/24"}, []string{"h1 CIDRConflict"}},
		{"of two overlapping nodes the younger has a condition", []*corev1.Node{node("h1", 5, "10.64.0.128/25"), node("h2", 6, "10.64.0.0/23")},
			[]string{"h1 10.64.0.128/25", "h2 10.64.0.0/23 CIDRConflict"}, []string{"h2 CIDRConflict"}},
		{"a node outside the range has a condition", []*corev1.Node{node("hand", 5, "192.168.7.0/24"), node("pi", 0)},
			[]string{"hand 192.168.7.0/24 CIDROutOfRange", "pi 10.64.0.0/24"}, []string{"hand CIDROutOfRange"}},
		{"a block larger than the range has a condition and takes everything", []*corev1.Node{node("hand", 5, "10.0.0.0/8"), node("pi", 0)},
			[]string{"hand 10.0.0.0/8 CIDROutOfRange", "pi  CIDRNotAvailable"},
			[]string{"hand CIDROutOfRange", "pi CIDRNotAvailable"}},
		{"a second address family belongs to the administrator", []*corev1.Node{node("hand", 5, "10.64.0.0/24", "fd00::/64"), node("pi", 0)},
			[]string{"hand 10.64.0.0/24,fd00::/64", "pi 10.64.1.0/24"}, nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := begin(t, small)
			w.add(c.nodes...)
			w.has(c.want...)
			w.warned(c.warned...)
		})
	}
}

func TestAConflictEndsWithOneOfItsNodes(t *testing.T) {
	w := begin(t, small)
	w.add(node("a", 0))
	w.add(node("hand", 1, "10.64.0.0/24"))
	w.warned("hand CIDRConflict")
	w.remove("a")
	w.has("hand 10.64.0.0/24")
	w.warned()
}

func TestAnIPv6RangeWorksAlike(t *testing.T) {
	w := begin(t, Decider{netip.MustParsePrefix("fd64:1:2::/63"), 64})
	w.add(node("a", 0), node("b", 1), node("c", 2))
	w.has("a fd64:1:2::/64", "b fd64:1:2:1::/64", "c  CIDRNotAvailable")
}

func TestWithoutARangeOldConditionsAreRemoved(t *testing.T) {
	w := begin(t, small)
	w.add(node("a", 0), node("out", 1, "192.168.7.0/24"))
	w.warned("out CIDROutOfRange")
	w.d = Decider{}
	w.do(w.d.Decide(w.s, w.d.Subjects(w.s), noon).Changes...)
	w.add(node("b", 2))
	w.has("a 10.64.0.0/24", "b", "out 192.168.7.0/24")
}

// FuzzBlocks checks that our blocks never overlap, that every node gets the first free block if
// there is one, and that each problem is reported at the right node. do checks that incremental
// decisions equal a decision about everything.
func FuzzBlocks(f *testing.F) {
	for seed := range int64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		d := Decider{netip.MustParsePrefix("10.64.0.0/20"), 24}
		w := begin(t, d)
		for step := range 100 {
			name, age := fmt.Sprintf("n%d", r.Intn(24)), r.Intn(9)
			before := taken(d, w.s)
			switch n := w.s.Node(name); {
			case n != nil && r.Intn(2) == 0:
				w.remove(name)
			case n == nil && r.Intn(4) == 0:
				w.add(node(name, age, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(r.Intn(20)), 0}),
					22+r.Intn(4)).Masked().String()))
			case n == nil:
				w.add(node(name, age))
				first := slices.Index(before, false)
				if got := w.s.Node(name).Spec.PodCIDR; first >= 0 && got != d.block(first).String() {
					t.Fatalf("seed %d step %d: %s gets %s, but %s was the first free block", seed, step, name, got, d.block(first))
				}
			}
			for n := range w.s.Nodes() {
				c := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable)
				want := ""
				if !state.HasBlock(n) {
					want = notAvailable
				} else if b := state.BlocksOf(n)[0]; !d.Cluster.Contains(b.Addr()) {
					want = outOfRange
				}
				for m := range w.s.Nodes() {
					if m != n && state.HasBlock(m) && state.HasBlock(n) && state.BlocksOf(m)[0].Overlaps(state.BlocksOf(n)[0]) &&
						byAge(m, n) < 0 && want == "" {
						want = conflict
					}
				}
				if c == nil && want != "" || c != nil && c.Reason != want && want != outOfRange {
					t.Fatalf("seed %d step %d: %s %s has the conditions %v, want %q", seed, step, n.Name, n.Spec.PodCIDR, c, want)
				}
				if want == notAvailable && slices.Contains(taken(d, w.s), false) {
					t.Fatalf("seed %d step %d: %s waits although a block is free", seed, step, n.Name)
				}
			}
		}
	})
}

// taken returns for each block of the range whether it is taken. It checks the blocks one by one.
func taken(d Decider, s state.Snapshot) []bool {
	out := make([]bool, d.size())
	for n := range s.Nodes() {
		for _, b := range state.BlocksOf(n) {
			for i := range out {
				out[i] = out[i] || b.Overlaps(d.block(i))
			}
		}
	}
	return out
}

// BenchmarkOneMoreNode measures the decision on one more node in a large fleet whose only free
// block is the last.
func BenchmarkOneMoreNode(b *testing.B) {
	for _, size := range []int{100, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			d := Decider{netip.MustParsePrefix("10.0.0.0/8"), 26}
			s := state.Empty("test", noon)
			var puts []state.Change
			for i := range size {
				puts = append(puts, state.Put(node(fmt.Sprintf("n%06d", i), 0, d.block(i).String()), ""))
			}
			s, _ = state.Apply(s, puts)
			s, log := state.Apply(s, []state.Change{state.Put(node("new", 1), "")})
			subjects := state.Touched(d.Touches, log)
			b.ReportAllocs()
			for b.Loop() {
				if plan := d.Decide(s, subjects, noon); len(plan.Changes) != 1 {
					b.Fatal(plan)
				}
			}
		})
	}
}

// BenchmarkAnotherChange measures a change that does not concern addresses. It must cost almost
// nothing.
func BenchmarkAnotherChange(b *testing.B) {
	s, log := state.Apply(state.Empty("test", noon), []state.Change{state.Put(node("a", 0, "10.64.0.0/24"), "")})
	s, log = state.Apply(s, []state.Change{state.Put(log[0].New.(*corev1.Node).DeepCopy(), "")})
	for b.Loop() {
		small.Decide(s, state.Touched(small.Touches, log), noon)
	}
}
