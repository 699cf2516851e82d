package plan

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/wire"
)

// A container of an earlier agent has another hash. It does not restart when the agent is upgraded.
func TestAContainerOfAnEarlierAgentIsNotRestarted(t *testing.T) {
	p := makePod("p", "wait")
	c := &withResources(p, 0, "20m/30m 35Mi/45Mi").Spec.Containers[0]
	earlier := specHash(c)
	c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory,
		RestartPolicy: corev1.RestartContainer}}
	if strings.Contains(earlier, "-") || resized(earlier, c) || !strings.HasPrefix(specHash(c), earlier+"-") {
		t.Errorf("an earlier agent's hash is %s, this agent's %s", earlier, specHash(c))
	}
	changed := *c
	changed.Image = "newer"
	if resized(specHash(&changed), c) || resized(specHash(c), c) {
		t.Error("a changed image is treated as a resize")
	}
}

// One write stores the granted and the requested resources, so that a crash cannot separate them.
func TestGrantedAndRequestedResourcesAreStoredTogether(t *testing.T) {
	state := func(generation int64, pods ...corev1.Pod) wire.Desired {
		return wire.Desired{Generation: generation, Hub: "h", Pods: pods}
	}
	p := makePod("p", "wait", "wait")
	first, second, third := withResources(p, 0, "1/2 1Mi/2Mi"), withResources(p, 0, "2/2 1Mi/2Mi"),
		withResources(p, 0, "3/3 1Mi/2Mi")
	at := func(d wire.Desired) (run, requested string) {
		r, a := SplitGrants(d)
		run = DescribeSizes(&r.Pods[0])
		if p := a["uid-p"]; p != nil {
			requested = DescribeSizes(p)
		}
		if len(r.Pods[0].Status.ContainerStatuses) > 0 {
			t.Errorf("the granted resources stay in the status: %+v", r.Pods[0].Status)
		}
		return run, requested
	}
	one := KeepGrants(wire.Desired{}, state(1, first))
	two := KeepGrants(one, state(2, second))
	three := KeepGrants(two, state(3, third))
	back := KeepGrants(three, state(4, withResources(p, 0, "1000m/2 1Mi/2048Ki")))
	for i, c := range []struct {
		d              wire.Desired
		run, requested corev1.Pod
	}{{one, first, corev1.Pod{}}, {two, first, second}, {three, first, third}, {back, first, corev1.Pod{}}} {
		run, requested := at(c.d)
		want := ""
		if len(c.requested.Spec.Containers) > 0 {
			want = DescribeSizes(&c.requested)
		}
		if run != DescribeSizes(&c.run) || requested != want {
			t.Errorf("row %d: runs %s, requested %q; want %s and %q", i, run, requested, DescribeSizes(&c.run), want)
		}
	}
	other := second
	other.UID = "another"
	if run, requested := SplitGrants(KeepGrants(one, state(2, other))); len(requested) != 0 ||
		DescribeSizes(&run.Pods[0]) != DescribeSizes(&second) {
		t.Error("another pod with the same name gets the granted resources")
	}
	lie := second
	lie.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c0",
		Resources: &third.Spec.Containers[0].Resources}}
	if _, requested := SplitGrants(KeepGrants(wire.Desired{}, state(1, lie))); len(requested) != 0 {
		t.Error("resources in the hub's status are treated as granted")
	}
	if DescribeSizes(&first) == DescribeSizes(&second) ||
		len(first.Status.ContainerStatuses)+len(second.Status.ContainerStatuses) > 0 {
		t.Error("KeepGrants changed its argument")
	}
}

// The CPUs of a guaranteed pod are on the NUMA nodes of its devices and memory, so they do not
// change.
func TestPinnedCPUsAreNotResized(t *testing.T) {
	p := makePod("p", "wait")
	w := newWorld(withResources(p, 0, "1/1 100Mi/100Mi"))
	w.o.Node.Topology = SingleNUMANode
	w.o.Node.NUMA = []hardware.NUMANode{{ID: 0, CPUs: "0-1"}, {ID: 1, CPUs: "2-3"}}
	w.settle(t)
	ask := func(text string, want ...string) {
		t.Helper()
		requested := withResources(p, 0, text)
		w.o.Requested = map[types.UID]*corev1.Pod{p.UID: &requested}
		w.o.RecordOf(p.UID).ResizePending = nil
		if got := sentences(w.look()); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	ask("2/2 100Mi/100Mi", `defer default/p: Infeasible: Resize is infeasible for the processors of Guaranteed Pods alongside topology manager policy "single-numa-node"`)
	ask("1/1 200Mi/200Mi", "grant default/p")
	w.o.Node.Topology = AnyTopology
	ask("2/2 100Mi/100Mi", "grant default/p")
}
