package incident_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// A world is a fleet with deciders for lifecycle, eviction and incidents.
type world struct {
	testing.TB
	s       state.Snapshot
	now     time.Time
	settler *control.Settler
	written int // number of changes of incidents
}

func leaveBy(n *corev1.Node, p *corev1.Pod) (time.Time, bool) {
	leave := eviction.LeaveBy(n, p)
	return leave.At, leave.Must
}

var decider = incident.Decider{LeaveBy: leaveBy}

func newWorld(t testing.TB) *world {
	set := lifecycle.Defaults
	set.JudgeDelay = 11 * time.Second
	return &world{TB: t, s: state.Empty("x", noon.Add(-time.Hour)), now: noon, settler: control.NewSettler(nil,
		lifecycle.Flapping{}, lifecycle.Health{Settings: set}, lifecycle.Sites{Settings: set},
		eviction.Decider{Timeouts: state.Timeouts{Grace: 40 * time.Second, Lease: 10 * time.Second}}, decider)}
}

// put applies changes and lets the deciders settle.
func (w *world) put(objects ...state.Object) {
	w.Helper()
	var changes []state.Change
	for _, o := range objects {
		changes = append(changes, state.Put(o, ""))
	}
	w.apply(changes)
}

func (w *world) remove(o state.Object) { w.apply([]state.Change{state.Remove(o, "")}) }

func (w *world) apply(changes []state.Change) {
	w.Helper()
	var done []state.Applied
	w.s, done = state.Apply(w.s, changes)
	w.hear()
	s, made, settled := w.settler.Settle(w.s, done, w.now)
	if !settled {
		w.Fatal("the deciders do not settle")
	}
	for _, a := range made {
		if a.Key.Kind == state.Incidents {
			w.written++
		}
	}
	w.s = s
}

// wait advances the time from alarm to alarm. Ready nodes renew their leases.
func (w *world) wait(d time.Duration) {
	w.Helper()
	for until := w.now.Add(d); ; {
		next := w.settler.Wake()
		if next.IsZero() || next.After(until) {
			w.now = until
			w.apply(nil)
			return
		}
		if next.After(w.now) {
			w.now = next
		}
		w.apply(nil)
	}
}

func (w *world) hear() {
	w.s = w.s.WithAllSeen(func(yield func(string, time.Time) bool) {
		for n := range w.s.Nodes() {
			if state.ReadyOf(n) == corev1.ConditionTrue && n.Annotations["silent"] == "" && !yield(n.Name, w.now) {
				return
			}
		}
	})
}

func node(name, site string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name),
		CreationTimestamp: metav1.NewTime(noon.Add(-48 * time.Hour)),
		Labels:            map[string]string{corev1.LabelTopologyZone: site}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(noon.Add(-48 * time.Hour))}}
	if change != nil {
		change(n)
	}
	return n
}

func (w *world) nodes(site string, n int) {
	w.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", site, i)
		w.put(node(name, site, nil), &state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Boot: "b"})
	}
}

// ready sets a node's condition Ready.
func (w *world) ready(name string, status corev1.ConditionStatus) {
	w.Helper()
	w.condition(name, corev1.NodeReady, status)
}

func (w *world) condition(name string, t corev1.NodeConditionType, status corev1.ConditionStatus) {
	w.Helper()
	w.put(with(w.s.Node(name), t, status, w.now))
}

func with(n *corev1.Node, t corev1.NodeConditionType, status corev1.ConditionStatus, at time.Time) *corev1.Node {
	n = n.DeepCopy()
	c := state.NodeCondition(n, t)
	if c == nil {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: t})
		c = &n.Status.Conditions[len(n.Status.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(at)
	}
	c.Status, c.Reason, c.Message = status, "Because", "the device says so"
	return n
}

func pod(name, node string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name),
		CreationTimestamp: metav1.NewTime(noon.Add(-24 * time.Hour))}}
	p.Spec = corev1.PodSpec{NodeName: node, Priority: new(int32(0)), RestartPolicy: corev1.RestartPolicyAlways,
		Containers: []corev1.Container{{Name: "c", Image: "shop/kiosk:1"}}}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: p.CreationTimestamp}, {Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: p.CreationTimestamp}}}
	if change != nil {
		change(p)
	}
	return p
}

func deployment(name string, want, have int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID("deployment-" + name)}, Spec: appsv1.DeploymentSpec{Replicas: &want},
		Status: appsv1.DeploymentStatus{ReadyReplicas: have}}
}

func replicaSet(name, of string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID("replicaset-" + name),
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: of, UID: types.UID("deployment-" + of),
			Controller: new(true)}}}, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0))}}
}

func owned(by string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: by, UID: types.UID("replicaset-" + by),
			Controller: new(true)}}
	}
}

func waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 3,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2,
				Reason: "Error"}}}}
		notReady(p)
	}
}

func unplaced(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Message: "no node"}}}
}

func notReady(p *corev1.Pod) { state.PodCondition(p, corev1.PodReady).Status = corev1.ConditionFalse }

func all(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, f := range changes {
			f(p)
		}
	}
}

// open returns the open incidents in the order of their names.
func (w *world) open() (found []*fleet.Incident) {
	for i := range state.Each[*fleet.Incident](w.s, state.Incidents, "") {
		if i.State == fleet.IncidentOpen {
			found = append(found, i)
		}
	}
	return found
}

// shows compares the open incidents with want, whose form is "cause about counts".
func (w *world) shows(rule string, want ...string) {
	w.Helper()
	var got []string
	for _, i := range w.open() {
		line := fmt.Sprintf("%s %s %d %d %d", i.Cause, i.About.Name, i.Count.Nodes, i.Count.Pods, i.Count.Workloads)
		if i.PartOf != "" {
			line += " part"
		}
		got = append(got, line)
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		w.Errorf("%s:\n got %q\nwant %q", rule, got, want)
	}
}
