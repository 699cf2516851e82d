package workload

import (
	"fmt"
	"testing"
	"time"

	"flotilla.dev/hub/state"
)

// A workload of thousands is made burst by burst, and made whole.
func TestALargeWorkloadIsMadeInBursts(t *testing.T) {
	const many = burst + 300
	for _, c := range []struct {
		kind  string
		begin func(f *fleet)
	}{
		{"a ReplicaSet", func(f *fleet) { f.put(replicaSet("kiosk", many)) }},
		{"a DaemonSet", func(f *fleet) {
			for i := range many {
				f.put(node(fmt.Sprintf("n-%05d", i)))
			}
			f.settle().put(daemonSet())
		}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			f := newFleet(t)
			c.begin(f)
			f.settle()
			if n := f.s.Len(state.Pods); n != burst {
				t.Errorf("at first it makes %d pods", n)
			}
			f.pass(5 * time.Second).quiet()
			if n := f.s.Len(state.Pods); n != many {
				t.Errorf("in the end there are %d pods, want %d", n, many)
			}
		})
	}
}

// Ten thousand names of five characters meet now and then: no two pods get one.
func TestNoTwoPodsOfAPassGetOneName(t *testing.T) {
	p := &pass{s: state.Empty("x", start), base: state.Empty("x", start)}
	seen := map[string]bool{}
	for range 20_000 {
		name := p.freeName(state.Pods, "default", "probe", "u")
		if seen[name] {
			t.Fatalf("%s is given twice", name)
		}
		seen[name] = true
	}
}
