package schedule

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

var start = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// A fleet is a snapshot and a clock: a minimal version of package control.
type fleet struct {
	t       testing.TB
	s       state.Snapshot
	now     time.Time
	recent  []state.Applied
	alarms  map[state.Subject]time.Time
	changes []state.Change
}

func newFleet(t testing.TB) *fleet {
	return &fleet{t: t, s: state.Empty("test", start), now: start, alarms: map[state.Subject]time.Time{}}
}

func (f *fleet) apply(changes ...state.Change) {
	var done []state.Applied
	f.s, done = state.Apply(f.s, changes)
	f.recent = append(f.recent, done...)
	f.changes = append(f.changes, changes...)
}

func (f *fleet) put(objects ...state.Object) *fleet {
	for _, o := range objects {
		f.apply(state.Put(o, ""))
	}
	return f
}

func (f *fleet) settle() *fleet {
	f.t.Helper()
	for range 50 {
		subjects := f.touched()
		for q, at := range f.alarms {
			if !at.After(f.now) {
				subjects = append(subjects, q)
				delete(f.alarms, q)
			}
		}
		if f.recent = nil; len(subjects) == 0 {
			return f
		}
		plan := Decider{}.Decide(f.s, subjects, f.now)
		for _, a := range plan.Alarms {
			f.alarms[a.Subject] = a.At
		}
		f.apply(plan.Changes...)
	}
	f.t.Fatal("the decider does not settle")
	return f
}

// touched returns the subjects of the recent changes.
func (f *fleet) touched() []state.Subject { return state.Touched(Decider{}.Touches, f.recent) }

// rest advances the time until no work is postponed.
func (f *fleet) rest() *fleet {
	f.t.Helper()
	for range 100 {
		if f.settle(); len(f.alarms) == 0 {
			return f
		}
		f.now = slices.MinFunc(slices.Collect(maps.Values(f.alarms)), time.Time.Compare)
	}
	f.t.Fatalf("work is still postponed: %v", f.alarms)
	return f
}

// quiet fails if a full decision changes something that the incremental ones left.
func (f *fleet) quiet() *fleet {
	f.t.Helper()
	for _, c := range (Decider{}).Decide(f.s, Decider{}.Subjects(f.s), f.now).Changes {
		f.t.Fatalf("a full decision changes %s: %s", state.KeyOf(c.Object), c.Why)
	}
	return f
}

func (f *fleet) on(pod string) string { return f.s.Pod("default", pod).Spec.NodeName }

func (f *fleet) why(pod string) string {
	c := state.PodCondition(f.s.Pod("default", pod), corev1.PodScheduled)
	if c == nil {
		return ""
	}
	return c.Message
}

func (f *fleet) editNode(name string, change func(*corev1.Node)) *fleet {
	n := f.s.Node(name).DeepCopy()
	change(n)
	return f.put(n)
}

func (f *fleet) editPod(name string, change func(*corev1.Pod)) *fleet {
	p := f.s.Pod("default", name).DeepCopy()
	change(p)
	return f.put(p)
}

func (f *fleet) removePod(name string) *fleet {
	f.apply(state.Remove(f.s.Pod("default", name), ""))
	return f
}

func (f *fleet) removeNode(name string) *fleet {
	f.apply(state.Remove(f.s.Node(name), ""))
	return f
}

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return out
}

func node(name, site string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name,
			corev1.LabelTopologyZone: site}},
		Status: corev1.NodeStatus{Allocatable: list("4", "4Gi")},
	}
	n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("110")
	for _, e := range edits {
		e(n)
	}
	return n
}

func pod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Generation: 1,
			CreationTimestamp: metav1.NewTime(start), Labels: map[string]string{"app": "kiosk"}},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "kiosk:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, e := range edits {
		e(p)
	}
	return p
}

func asks(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list(cpu, memory) }
}

func onNode(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func priority(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

func owned(uid string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: uid,
			UID: types.UID(uid), Controller: new(true)}}
	}
}

func taint(key, value string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func tolerate(t corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func hostPort(ip string, protocol corev1.Protocol, port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostIP: ip, Protocol: protocol,
			HostPort: port, ContainerPort: port})
	}
}

func affine(f func(*corev1.Affinity)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Spec.Affinity == nil {
			p.Spec.Affinity = &corev1.Affinity{}
		}
		f(p.Spec.Affinity)
	}
}

func toNode(name string) func(*corev1.Pod) {
	return affine(func(a *corev1.Affinity) {
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}}}}
	})
}

func termOf(app, key string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		TopologyKey: key}
}

func awayFrom(app, key string) func(*corev1.Pod) {
	return affine(func(a *corev1.Affinity) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{termOf(app, key)}}
	})
}

func nearTo(app, key string) func(*corev1.Pod) {
	return affine(func(a *corev1.Affinity) {
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{termOf(app, key)}}
	})
}

func app(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": name} }
}

func count(f *fleet, by func(*corev1.Node) string) map[string]int {
	out := map[string]int{}
	for p := range f.s.Pods("") {
		if n := f.s.Node(p.Spec.NodeName); n != nil {
			out[by(n)]++
		}
	}
	return out
}

func names(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%d", prefix, i+1))
	}
	return slices.Clip(out)
}

func typesUID(prefix string, i int) types.UID { return types.UID(fmt.Sprintf("%s%d", prefix, i)) }
