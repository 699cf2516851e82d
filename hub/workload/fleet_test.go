package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

var start = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// A fleet is a snapshot, a clock and the alarms: package control without its loop.
type fleet struct {
	t       testing.TB
	d       Decider
	s       state.Snapshot
	now     time.Time
	recent  []state.Applied
	alarms  map[state.Subject]time.Time
	log     []string
	changes []state.Change
}

func newFleet(t testing.TB) *fleet {
	return &fleet{t: t, s: state.Empty("test", start), now: start, alarms: map[state.Subject]time.Time{}}
}

func (f *fleet) apply(changes ...state.Change) {
	var done []state.Applied
	f.s, done = state.Apply(f.s, changes)
	f.recent = append(f.recent, done...)
	for _, c := range changes {
		if c.Why != "" {
			f.log = append(f.log, c.Why)
		}
		f.changes = append(f.changes, c)
	}
}

func (f *fleet) put(objects ...state.Object) *fleet {
	for _, o := range objects {
		if o.GetCreationTimestamp().Time.IsZero() {
			o.SetCreationTimestamp(metav1.NewTime(f.now))
		}
		f.apply(state.Put(o, ""))
	}
	return f
}

func (f *fleet) remove(k state.Key) *fleet {
	f.apply(state.Remove(f.s.Get(k), ""))
	return f
}

// settle calls the decider until it changes nothing.
func (f *fleet) settle() *fleet {
	f.t.Helper()
	for range 200 {
		subjects := state.Touched(f.d.Touches, f.recent)
		bySubject := func(a, b state.Subject) int { return cmp.Or(byKey(a.Key, b.Key), strings.Compare(a.Part, b.Part)) }
		for _, q := range slices.SortedFunc(maps.Keys(f.alarms), bySubject) {
			if !f.alarms[q].After(f.now) {
				subjects = append(subjects, q)
				delete(f.alarms, q)
			}
		}
		if f.recent = nil; len(subjects) == 0 {
			return f
		}
		f.carry(f.d.Decide(f.s, subjects, f.now))
	}
	f.t.Fatalf("the decider does not settle; the last steps:\n%s", strings.Join(f.log[max(0, len(f.log)-20):], "\n"))
	return f
}

func (f *fleet) carry(plan state.Plan) {
	f.t.Helper()
	for _, a := range plan.Alarms {
		f.alarms[a.Subject] = a.At
		if !a.At.After(f.now) {
			f.t.Fatalf("the alarm for %s at %s is not in the future", a.Subject, a.At)
		}
	}
	for _, c := range plan.Changes {
		if c.Object.GetUID() == "" && f.s.Get(state.KeyOf(c.Object)) != nil {
			f.t.Fatalf("%s: creates an object that exists", c.Why)
		}
	}
	for _, c := range plan.Changes {
		f.apply(c)
		if c.Reason != "" { // the event that package control writes has a revision too
			f.apply(state.Put(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("event-%d", f.s.Revision),
				Namespace: "default", CreationTimestamp: metav1.NewTime(f.now)}}, ""))
		}
	}
}

// quiet fails if a full recomputation changes something.
func (f *fleet) quiet() *fleet {
	f.t.Helper()
	for _, c := range f.d.Decide(f.s, f.d.Subjects(f.s), f.now).Changes {
		f.t.Fatalf("a full recomputation changes %s: %s (delete=%v)\nold: %+v\nnew: %+v", state.KeyOf(c.Object), c.Why,
			c.Delete, f.s.Get(state.KeyOf(c.Object)), c.Object)
	}
	return f
}

// pass advances the clock from alarm to alarm by d.
func (f *fleet) pass(d time.Duration) *fleet {
	f.t.Helper()
	f.settle()
	end := f.now.Add(d)
	for {
		next := end
		for _, at := range f.alarms {
			if at.Before(next) {
				next = at
			}
		}
		if next.After(f.now) {
			f.now = next
		}
		f.settle()
		if !f.now.Before(end) {
			return f
		}
	}
}

func (f *fleet) edit(k state.Key, change func(state.Object)) *fleet {
	f.t.Helper()
	o := f.s.Get(k)
	if o == nil {
		f.t.Fatalf("%s does not exist", k)
	}
	o = o.DeepCopyObject().(state.Object)
	change(o)
	f.apply(state.Put(o, ""))
	return f
}

// run binds every pending pod, and makes it running and ready. A DaemonSet's pod is bound to its
// own node.
func (f *fleet) run(nodes ...string) *fleet {
	i := 0
	var pods []*corev1.Pod
	for pod := range f.s.Pods("") {
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			if pod.Spec.NodeName != "" && f.s.Node(pod.Spec.NodeName) != nil {
				f.apply(state.Remove(pod, "")) // the device reports that the pod has stopped
			}
			continue
		}
		if pod.Status.Phase != corev1.PodPending {
			continue
		}
		node := targetOf(pod)
		if node == "" {
			node = nodes[i%len(nodes)]
			i++
		}
		f.ready(pod.Name, node)
	}
	return f
}

func podKey(name string) state.Key {
	return state.Key{Kind: state.Pods, Namespace: "default", Name: name}
}

func (f *fleet) ready(name, node string) *fleet {
	return f.edit(podKey(name), func(o state.Object) {
		pod := o.(*corev1.Pod)
		pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
		state.SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, f.now)
	})
}

func (f *fleet) phase(name string, phase corev1.PodPhase) *fleet {
	return f.edit(podKey(name), func(o state.Object) { o.(*corev1.Pod).Status.Phase = phase })
}

func (f *fleet) pods() (names []string) {
	for pod := range f.s.Pods("") {
		names = append(names, pod.Name)
	}
	return names
}

func (f *fleet) livePods() (pods []*corev1.Pod) {
	for pod := range f.s.Pods("") {
		if active(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (f *fleet) sets(namespace string) (out []*appsv1.ReplicaSet) {
	for rs := range state.Each[*appsv1.ReplicaSet](f.s, state.ReplicaSets, namespace) {
		out = append(out, rs)
	}
	slices.SortFunc(out, func(a, b *appsv1.ReplicaSet) int { return int(revisionOf(a) - revisionOf(b)) })
	return out
}

func (f *fleet) deploy() *appsv1.Deployment { return f.s.Deployment("default", "kiosk") }

func (f *fleet) daemonSet() *appsv1.DaemonSet {
	return f.s.Get(state.Key{Kind: state.DaemonSets, Namespace: "default", Name: "probe"}).(*appsv1.DaemonSet)
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "kiosk"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
}

var selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}

func deployment(replicas int32) *appsv1.Deployment {
	quarter := intstr.FromString("25%")
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "default", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: selector, Template: template("kiosk:1"), ProgressDeadlineSeconds: new(int32(600)),
			RevisionHistoryLimit: new(int32(10)),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}},
		},
	}
}

func replicaSet(name string, replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Generation: 1},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: template("kiosk:1")},
	}
}

func daemonSet() *appsv1.DaemonSet {
	one := intstr.FromInt32(1)
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: "default", Generation: 1},
		Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template("probe:1"), RevisionHistoryLimit: new(int32(10)),
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one},
			}},
	}
}

func node(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
			Status: corev1.ConditionTrue}}},
	}
}

func nodes(f *fleet, n int) {
	for i := range n {
		f.put(node(fmt.Sprintf("pi-%d", i+1)))
	}
}

var deployKey = state.Key{Kind: state.Deployments, Namespace: "default", Name: "kiosk"}
var probeKey = state.Key{Kind: state.DaemonSets, Namespace: "default", Name: "probe"}

// spec changes a Deployment as the API does.
func (f *fleet) spec(change func(*appsv1.DeploymentSpec)) *fleet {
	return f.edit(deployKey, func(o state.Object) {
		d := o.(*appsv1.Deployment)
		was := d.Spec.DeepCopy()
		change(&d.Spec)
		if !equality.Semantic.DeepEqual(was, &d.Spec) {
			d.Generation++
		}
	})
}

func (f *fleet) progressing() *appsv1.DeploymentCondition {
	for _, c := range f.deploy().Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return &c
		}
	}
	return &appsv1.DeploymentCondition{}
}

// rolledOut is the condition of "kubectl rollout status".
func (f *fleet) rolledOut() bool {
	d := f.deploy()
	st := d.Status
	return d.Generation <= st.ObservedGeneration && st.UpdatedReplicas >= *d.Spec.Replicas &&
		st.Replicas <= st.UpdatedReplicas && st.AvailableReplicas >= st.UpdatedReplicas
}
