package finding

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
)

// fixText is a fix on one line.
func fixText(f fix) string {
	text := f.Node
	for _, s := range f.Steps {
		text += " ["
		for i, w := range s.Ways {
			if i > 0 {
				text += " | "
			}
			text += w.Text
			for _, p := range w.Pods {
				text += " " + p.Name
			}
			if w.Command != "" {
				text += " {" + w.Command + "}"
			}
			if w.Do != nil {
				text += " >" + w.Do.Label
			}
		}
		text += "]"
	}
	return text
}

func TestAPodThatFindsNoPlaceSaysWhatItNeedsAndWhatWouldHelp(t *testing.T) {
	a := admintest.Ask(admintest.Stuck(t).Snapshot(), admintest.Now, nil)
	a.May = func(string, string) bool { return true }
	for _, c := range []struct {
		pod   string
		needs []string
		fixes []string
	}{
		{"vision-6f9c-x2x4z", []string{"Needs gpu=true: 22 of 24 nodes do not have it.",
			"1 of 24 nodes is not ready, or does not answer.",
			"Does not tolerate the taint camera=broken:NoSchedule, which 1 of 24 nodes has.",
			"1 of 24 nodes is cordoned."}, []string{
			"brg-0003 [Uncordon it {kubectl uncordon brg-0003} >Uncordon]",
			`brg-0007 [Tolerate the taint, in Deployment vision {tolerations: [{key: camera, operator: Equal, value: "broken", effect: NoSchedule}]} >Edit | Take the taint off it {kubectl taint node brg-0007 camera=broken:NoSchedule-} >Taint]`,
			"brg-0000 [Give it the label gpu=true {kubectl label node brg-0000 gpu=true} >Label | Do not ask for gpu=true, in Deployment vision >Edit]",
		}},
		{"ledger-6f9c-x2x4z", []string{"Needs 64Gi of memory: brg-0000 has the most free, 3.7Gi.",
			"1 of 24 nodes is not ready, or does not answer.", "Does not tolerate the taint camera=broken:NoSchedule, which 1 of 24 nodes has.", "1 of 24 nodes is cordoned."}, []string{
			"brg-0000 [Ask for 3.7Gi of memory at most, in Deployment ledger {kubectl set resources deployment/ledger --requests=memory=3.7Gi} >Edit]",
		}},
	} {
		d := PlacementOf(a, a.Pod("default", c.pod))
		if d.Why != "None of the 24 nodes can take it." || !slices.Equal(d.Needs, c.needs) {
			t.Errorf("%s: %s %q, want\n%q", c.pod, d.Why, d.Needs, c.needs)
		}
		if len(d.Rows) != 20 || d.More != "and 4 more" {
			t.Errorf("%s: %d rows %s", c.pod, len(d.Rows), d.More)
		}
		var fixes []string
		for _, f := range d.Fixes {
			fixes = append(fixes, fixText(f))
		}
		if !slices.Equal(fixes, c.fixes) {
			t.Errorf("%s: would help\n%s\nwant\n%s", c.pod, strings.Join(fixes, "\n"), strings.Join(c.fixes, "\n"))
		}
	}
	a.May = func(verb, _ string) bool { return verb == "get" || verb == "list" }
	for _, f := range PlacementOf(a, a.Pod("default", "vision-6f9c-x2x4z")).Fixes {
		if text := fixText(f); strings.Contains(text, ">") {
			t.Errorf("a viewer is offered %s", text)
		}
	}
}

func TestWhyAPodWaitsInOneSentence(t *testing.T) {
	claim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}
	for _, c := range []struct {
		name  string
		nodes int
		pod   func(*corev1.Pod)
		why   string
		short string
	}{
		{"no node", 0, func(*corev1.Pod) {}, "There is no node yet that could take it.", "no node yet"},
		{"a claim that does not exist", 2, claim, `No node can take it: persistentvolumeclaim "c" not found.`,
			`persistentvolumeclaim "c" not found`},
		{"nothing", 2, func(*corev1.Pod) {}, "It is about to be placed: a node can take it now.",
			"about to be placed"},
		{"one node", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"gpu": "true"} },
			"The only node cannot take it.", "no node has gpu=true"},
		{"a resource that no node has", 2, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/tpu": resource.MustParse("1")}
		}, "None of the 2 nodes can take it.", "no node has 1 example.com/tpu free"},
		{"a gate", 2, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/paid"}} }, "It is held by its scheduling gates until somebody takes them away: example.com/paid.", ""},
		{"another's scheduler", 2, func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" },
			"It names the scheduler mine, which is not the hub's, so it is not placed.", ""},
	} {
		var objects []state.Object
		for i := range c.nodes {
			objects = append(objects, admintest.Node(fmt.Sprintf("n-%d", i), "oslo", nil))
		}
		p := admintest.Pod("p", "", func(p *corev1.Pod) { admintest.Pending(p); c.pod(p) })
		a := admintest.Ask(admintest.New(append(objects, p)...).Snapshot(), admintest.Now, nil)
		a.May = func(string, string) bool { return true }
		if d := PlacementOf(a, p); d.Why != c.why {
			t.Errorf("%s: %q, want %q", c.name, d.Why, c.why)
		}
		if got := ShortReason(a.Snapshot, p, admintest.Now); c.short != "" && got != c.short {
			t.Errorf("%s: %q, want %q", c.name, got, c.short)
		}
	}
}

func TestWhatIsFreeIsNeverSaidToBeMore(t *testing.T) {
	for q, want := range map[string]string{"7372Mi": "7.1Gi", "3884Mi": "3.7Gi", "512Mi": "512Mi", "1Gi": "1Gi",
		"1000": "1000", "-1Gi": "0", "1536Ki": "1.5Mi"} {
		got := freeText(corev1.ResourceMemory, resource.MustParse(q))
		if got != want {
			t.Errorf("%s: %q, want %q", q, got, want)
		}
		if said, have := resource.MustParse(got), resource.MustParse(q); have.Sign() > 0 && said.Cmp(have) > 0 {
			t.Errorf("%s is more than %s", got, q)
		}
	}
}

func TestEveryReasonHasWords(t *testing.T) {
	for r := schedule.Fits + 1; r.String() != ""; r++ {
		w := reasonWords[r]
		if r == schedule.NoVolume { // the same for every node: the claim's sentence says it
			continue
		}
		if w.need == nil || w.against == nil || w.short == nil {
			t.Errorf("the page has no words for %s", r)
		}
	}
}

func TestWhyAPodIsNotPlaced(t *testing.T) {
	large := admintest.Pod("large", "", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("8Gi")}
		// The condition's message is for people and is not parsed.
		p.Status = corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False",
				Message: "0/9 nodes are available: 9 of us."}}}
	})
	cordoned := admintest.Node("n-3", "oslo", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	s := admintest.New(admintest.Node("n-1", "oslo", nil), admintest.Node("n-2", "oslo", nil), cordoned,
		large).Snapshot()
	a := admintest.Ask(s, admintest.Now, nil)
	a.May = func(string, string) bool { return true }
	d := PlacementOf(a, s.Pod("default", "large"))
	want := []string{"Needs 8Gi of memory: n-1 has the most free, 3.7Gi.", "1 of 3 nodes is cordoned."}
	if !slices.Equal(d.Needs, want) {
		t.Errorf("%q, want %q", d.Needs, want)
	}
	if len(d.Rows) != 3 || d.Rows[0].Name != "n-1" ||
		!slices.Equal(d.Rows[2].Against, []string{"cordoned", "memory: 3.7Gi free, 8Gi needed"}) {
		t.Errorf("the nodes that come nearest are %+v", d.Rows)
	}
}
