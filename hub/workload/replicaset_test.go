package workload

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

func bare(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default",
		Labels: map[string]string{"app": "kiosk"}}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, e := range edits {
		e(pod)
	}
	return pod
}

func up(node string, since time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
		state.SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, start.Add(since))
	}
}

func TestPodsAreDeletedInKubernetesOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		pods []*corev1.Pod
		goes string
	}{
		{"an unplaced pod before a placed one", []*corev1.Pod{bare("a", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }), bare("b")}, "b"},
		{"a pending pod before a running one", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", 0), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })}, "b"},
		{"an unready pod before a ready one", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", 0), func(p *corev1.Pod) { p.Status.Conditions = nil })}, "b"},
		{"a pod with a low deletion cost", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", 0), func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} })}, "b"},
		{"one of two pods on a node", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", 0)), bare("c", up("n2", 0))}, "b"},
		{"the pod that is ready for the shorter time", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", time.Minute))}, "b"},
		{"the pod that was restarted more often", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", 0), func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} })}, "b"},
		{"the younger pod", []*corev1.Pod{bare("a", up("n1", 0)), bare("b", up("n2", 0), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(start.Add(time.Second)) })}, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			for _, pod := range c.pods {
				f.put(pod)
			}
			f.put(replicaSet("kiosk", int32(len(c.pods)-1))).settle().quiet()
			var left []string
			for _, pod := range f.livePods() {
				left = append(left, pod.Name)
			}
			if len(left) != len(c.pods)-1 || slices.Contains(left, c.goes) {
				t.Errorf("%v remain, want %s deleted", left, c.goes)
			}
		})
	}
}

func TestAReplicaSetAdoptsAndReleasesPods(t *testing.T) {
	f := newFleet(t).put(bare("stray")).put(replicaSet("kiosk", 2)).settle().quiet()
	if !slices.Contains(f.pods(), "stray") || len(f.pods()) != 2 {
		t.Fatalf("pods %v, want the pod without a controller adopted", f.pods())
	}
	f.edit(podKey("stray"), func(o state.Object) { o.SetLabels(map[string]string{"app": "other"}) }).settle().quiet()
	if p := f.s.Pod("default", "stray"); len(p.OwnerReferences) != 0 || len(f.pods()) != 3 {
		t.Errorf("the pod is not released and replaced: %v %v", p.OwnerReferences, f.pods())
	}
	f.put(bare("late")).settle().quiet()
	if len(f.pods()) != 3 || len(f.log) == 0 {
		t.Errorf("pods %v, want a later pod adopted and one deleted", f.pods())
	}
}

func TestATerminatingPodIsReplacedAtOnce(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), replicaSet("kiosk", 1)).settle().run("pi-1").settle()
	old := f.pods()[0]
	c, _ := state.Delete(f.s.Pod("default", old), f.now, nil, "")
	f.apply(c)
	f.settle().quiet()
	if live := f.livePods(); len(live) != 1 || live[0].Name == old || len(f.pods()) != 2 {
		t.Errorf("a terminating pod is not replaced at once: %v", f.pods())
	}
}

func TestCreatedPodsAreAdmitted(t *testing.T) {
	f := newFleet(t)
	f.d.Admit = func(pod *corev1.Pod) {
		if pod.Name == "" || pod.Namespace == "" || len(pod.OwnerReferences) == 0 {
			t.Errorf("Admit gets an incomplete pod: %+v", pod.ObjectMeta)
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "admitted"})
	}
	f.put(replicaSet("kiosk", 2)).put(node("pi-1"), daemonSet()).settle()
	for pod := range f.s.Pods("") {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(tl corev1.Toleration) bool { return tl.Key == "admitted" }) {
			t.Errorf("Admit is not called for %s", pod.Name)
		}
		ref := metav1.GetControllerOf(pod)
		if ref == nil || pod.GenerateName != ref.Name+"-" || len(pod.Name) != len(ref.Name)+6 ||
			pod.Status.Phase != corev1.PodPending || pod.CreationTimestamp.IsZero() {
			t.Errorf("the created pod is %+v", pod.ObjectMeta)
		}
	}
	for _, c := range f.changes {
		if _, is := c.Object.(*corev1.Pod); is && c.Why != "" && (c.Reason != "SuccessfulCreate" || c.About == nil) {
			t.Errorf("the change has no event about its workload: %+v", c)
		}
	}
}

// The replacements of pods that a device rejects back off, so the hub does not create thousands.
func TestRejectedPodsAreReplacedWithBackOff(t *testing.T) {
	for _, c := range []struct {
		name     string
		owner    state.Object
		replicas int
		minutes  int // how long the device rejects pods
		most     int // pods in that time, at most
		reason   string
	}{
		{"one replica", replicaSet("kiosk", 1), 1, 30, 15, "OutOfcpu"},
		{"ten replicas", replicaSet("kiosk", 10), 10, 30, 27, "OutOfcpu"},
		{"ten replicas that the device evicts at once", replicaSet("kiosk", 10), 10, 30, 27, "Evicted"},
		{"a daemon", daemonSet(), 1, 30, 15, "OutOfcpu"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), c.owner).settle()
			made := 0
			for end := f.now.Add(time.Duration(c.minutes) * time.Minute); f.now.Before(end); {
				for _, pod := range f.livePods() {
					made++
					f.edit(state.KeyOf(pod), func(o state.Object) {
						pod := o.(*corev1.Pod)
						pod.Spec.NodeName = "pi-1"
					})
					f.edit(state.KeyOf(pod), func(o state.Object) {
						pod := o.(*corev1.Pod)
						pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, c.reason
						if c.reason == "Evicted" {
							state.SetPodCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
								Reason: corev1.PodReasonTerminationByKubelet}, f.now)
						}
					})
				}
				f.settle().quiet()
				f.pass(time.Second)
			}
			if made > c.most || made < c.replicas+5 {
				t.Errorf("%d pods in %d min, want 1 to %d", made, c.minutes, c.most)
			}
			// Once the device accepts pods again, all are created soon.
			for range 1200 {
				f.run("pi-1")
				f.pass(time.Second)
				if len(f.livePods()) == c.replicas {
					return
				}
			}
			t.Errorf("%d live pods 20 min after the device accepts pods", len(f.livePods()))
		})
	}
}

func TestBudget(t *testing.T) {
	num := func(v string) *intstr.IntOrString { return new(intstr.Parse(v)) }
	for _, c := range []struct {
		name              string
		spec              policyv1.PodDisruptionBudgetSpec
		ready             int // number of ready pods, of 5
		expected, desired int32
		allowed           int32
	}{
		{"minAvailable: pods beyond the minimum may be evicted", policyv1.PodDisruptionBudgetSpec{MinAvailable: num("3")}, 5, 5, 3, 2},
		{"minAvailable: no eviction while too few are healthy", policyv1.PodDisruptionBudgetSpec{MinAvailable: num("3")}, 2, 5, 3, 0},
		{"a percentage rounds up", policyv1.PodDisruptionBudgetSpec{MinAvailable: num("50%")}, 5, 5, 3, 2},
		{"maxUnavailable", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: num("1")}, 5, 5, 4, 1},
		{"maxUnavailable with an unavailable pod", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: num("1")}, 4, 5, 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.Selector = selector
			f := newFleet(t).put(node("pi-1"), deployment(5),
				&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "pdb", Namespace: "default", Generation: 1},
					Spec: c.spec}).settle()
			for _, name := range f.pods()[:c.ready] {
				f.ready(name, "pi-1")
			}
			f.settle().quiet()
			key := state.Key{Kind: state.PodDisruptionBudgets, Namespace: "default", Name: "pdb"}
			st := f.s.Get(key).(*policyv1.PodDisruptionBudget).Status
			if st.ExpectedPods != c.expected || st.DesiredHealthy != c.desired || st.DisruptionsAllowed != c.allowed ||
				st.CurrentHealthy != int32(c.ready) {
				t.Fatalf("the status is %+v, want %d expected, %d healthy, %d evictions", st, c.expected, c.desired, c.allowed)
			}
			// An allowed eviction counts until its pod is removed, at most for 2 min.
			f.edit(key, func(o state.Object) {
				o.(*policyv1.PodDisruptionBudget).Status.DisruptedPods = map[string]metav1.Time{f.pods()[0]: metav1.NewTime(f.now)}
			}).settle().quiet()
			if st := f.s.Get(key).(*policyv1.PodDisruptionBudget).Status; st.CurrentHealthy != int32(c.ready)-1 {
				t.Errorf("after an allowed eviction: %+v", st)
			}
			f.pass(state.DisruptedFor).quiet()
			if st := f.s.Get(key).(*policyv1.PodDisruptionBudget).Status; st.CurrentHealthy != int32(c.ready) ||
				len(st.DisruptedPods) != 0 {
				t.Errorf("2 min after the eviction: %+v", st)
			}
		})
	}
}
