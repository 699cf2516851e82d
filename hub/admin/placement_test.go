package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
)

// pending makes a pod wait for a node.
func pending(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Reason: "Unschedulable", Message: "0/9 nodes are available: 9 of us."}}}
}

// stuck is a fleet in which pods of two deployments find no place: one for a label, one for memory.
func stuck(t testing.TB) *memory {
	m := newMemory(stuckFleet()...)
	for i, name := range []string{"vision", "ledger"} {
		stuckWorkload(t, m, name, func(p *corev1.PodSpec) {
			if i == 0 {
				p.NodeSelector = map[string]string{"gpu": "true"}
			} else {
				p.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("64Gi"), "cpu": resource.MustParse("1")}
			}
		})
	}
	return m
}

func stuckFleet() (all []state.Object) {
	for i := range 24 {
		all = append(all, testNode(fmt.Sprintf("brg-%04d", i), []string{"bergen", "oslo"}[i%2], func(n *corev1.Node) {
			switch i {
			case 3:
				n.Spec.Unschedulable = true
				n.Labels["gpu"] = "true"
			case 5:
				n.Status.Allocatable["memory"] = resource.MustParse("7372Mi")
			case 7:
				n.Spec.Taints = []corev1.Taint{{Key: "camera", Value: "broken", Effect: "NoSchedule"}}
				n.Labels["gpu"] = "true"
			case 9:
				condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: "NoSchedule"}}
			}
		}))
	}
	return append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, testPod("big", "brg-0005", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("6Gi")
	}))
}

// stuckWorkload adds a Deployment of one pod, which waits.
func stuckWorkload(t testing.TB, m *memory, name string, change func(*corev1.PodSpec)) {
	t.Helper()
	one := int32(1)
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/" + name + ":2"}}}}},
		Status: appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1}}
	change(&d.Spec.Template.Spec)
	admission.Default(d, admission.Settings{})
	m.put(t, d)
	d = m.Snapshot().Deployment("default", name)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name + "-6f9c", Namespace: "default", Labels: labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &one, Selector: d.Spec.Selector, Template: d.Spec.Template}}
	m.put(t, rs)
	made := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: rs.Name})
	m.put(t, testPod(rs.Name+"-x2x4z", "", func(p *corev1.Pod) {
		p.Labels, p.Spec = labels, *d.Spec.Template.Spec.DeepCopy()
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(made, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		pending(p)
	}))
}

// fixText is a fix in a line.
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
	a := askAt(stuck(t).Snapshot(), now0, nil)
	a.may = func(string, string) bool { return true }
	for _, c := range []struct {
		pod   string
		needs []string
		fixes []string
	}{
		{"vision-6f9c-x2x4z", []string{"Needs gpu=true: 22 of 24 nodes do not have it.", "1 of 24 nodes is not ready, or does not answer.", "Does not tolerate the taint camera=broken:NoSchedule, which 1 of 24 nodes has.", "1 of 24 nodes is cordoned."}, []string{
			"brg-0003 [Uncordon it {kubectl uncordon brg-0003} >Uncordon]",
			`brg-0007 [Tolerate the taint, in Deployment vision {tolerations: [{key: camera, operator: Equal, value: "broken", effect: NoSchedule}]} >Edit | Take the taint off it {kubectl taint node brg-0007 camera=broken:NoSchedule-} >Taint]`,
			"brg-0000 [Give it the label gpu=true {kubectl label node brg-0000 gpu=true} >Label | Do not ask for gpu=true, in Deployment vision >Edit]",
		}},
		{"ledger-6f9c-x2x4z", []string{"Needs 64Gi of memory: brg-0000 has the most free, 3.7Gi.", "1 of 24 nodes is not ready, or does not answer.", "Does not tolerate the taint camera=broken:NoSchedule, which 1 of 24 nodes has.", "1 of 24 nodes is cordoned."}, []string{
			"brg-0000 [Ask for 3.7Gi of memory at most, in Deployment ledger {kubectl set resources deployment/ledger --requests=memory=3.7Gi} >Edit]",
		}},
	} {
		d := placementOf(a, a.Pod("default", c.pod))
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
	a.may = func(verb, _ string) bool { return verb == "get" || verb == "list" }
	for _, f := range placementOf(a, a.Pod("default", "vision-6f9c-x2x4z")).Fixes {
		if text := fixText(f); strings.Contains(text, ">") {
			t.Errorf("who only looks is offered %s", text)
		}
	}
}

func TestWhyAPodWaitsInOneSentence(t *testing.T) {
	claim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}
	for _, c := range []struct {
		name  string
		nodes int
		pod   func(*corev1.Pod)
		why   string
		short string
	}{
		{"no node", 0, func(*corev1.Pod) {}, "There is no node yet that could take it.", "no node yet"},
		{"a claim that is not there", 2, claim, `No node can take it: persistentvolumeclaim "c" not found.`, `persistentvolumeclaim "c" not found`},
		{"nothing", 2, func(*corev1.Pod) {}, "It is about to be placed: nothing speaks against it any more.", "about to be placed"},
		{"one node", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"gpu": "true"} }, "The only node cannot take it.", "no node has gpu=true"},
		{"a resource that nobody has", 2, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/tpu": resource.MustParse("1")}
		}, "None of the 2 nodes can take it.", "no node has 1 example.com/tpu free"},
		{"a gate", 2, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/paid"}} }, "It is held by its scheduling gates until somebody takes them away: example.com/paid.", ""},
		{"another's scheduler", 2, func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }, "It asks for the scheduler mine, which is not the hub's: nobody places it.", ""},
	} {
		var objects []state.Object
		for i := range c.nodes {
			objects = append(objects, testNode(fmt.Sprintf("n-%d", i), "oslo", nil))
		}
		p := testPod("p", "", func(p *corev1.Pod) { pending(p); c.pod(p) })
		a := askAt(newMemory(append(objects, p)...).Snapshot(), now0, nil)
		a.may = func(string, string) bool { return true }
		if d := placementOf(a, p); d.Why != c.why {
			t.Errorf("%s: %q, want %q", c.name, d.Why, c.why)
		}
		if got := shortly(a.Snapshot, p, now0); c.short != "" && got != c.short {
			t.Errorf("%s: %q, want %q", c.name, got, c.short)
		}
	}
}

func TestWhatIsFreeIsNeverSaidToBeMore(t *testing.T) {
	for q, want := range map[string]string{"7372Mi": "7.1Gi", "3884Mi": "3.7Gi", "512Mi": "512Mi", "1Gi": "1Gi", "1000": "1000", "-1Gi": "0", "1536Ki": "1.5Mi"} {
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
		if r == schedule.NoVolume { // of every node alike: the claim says it
			continue
		}
		if w.need == nil || w.against == nil || w.short == nil {
			t.Errorf("the page has no words for %s", r)
		}
	}
}
