package workloads

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
)

func TestAPodsFaultInFewWords(t *testing.T) {
	waits := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
		}
	}
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	for _, c := range []struct {
		name, node string
		change     func(*corev1.Pod)
		want       string
	}{
		{"nothing", "pi-1", nil, ""},
		{"no image", "pi-1", waits("ErrImagePull",
			"pull image registry.example/kiosk:1.4.2: not found: manifest unknown"), "image not found: kiosk:1.4.2"},
		{"a crash", "pi-1", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "")(p)
			p.Status.ContainerStatuses[0].LastTerminationState = ended(1, "Error")
		}, "crash loop, exit 1"},
		{"out of memory", "pi-1", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "")(p)
			p.Status.ContainerStatuses[0].LastTerminationState = ended(137, "OOMKilled")
		}, "crash loop, out of memory"},
		{"between two crashes", "pi-1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State, p.Status.ContainerStatuses[0].RestartCount = ended(2, "Error"), 3
		}, "crash loop, exit 2"},
		{"a missing key of a secret", "pi-1", waits("CreateContainerConfigError", "no secret"),
			"CreateContainerConfigError"},
		{"failed", "pi-1", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.ContainerStatuses[0].State = corev1.PodFailed, ended(3, "Error")
		}, "failed, exit 3"},
		{"evicted", "pi-1", func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" },
			"failed: Evicted"},
		{"a silent node", "pi-2", nil, "pi-2 does not answer"},
		{"a node that is not ready", "bone-2", nil, "bone-2 is not ready"},
		{"a gate", "", func(p *corev1.Pod) {
			admintest.Pending(p)
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/paid"}}
		}, "held by the scheduling gate example.com/paid"},
		{"no place", "", func(p *corev1.Pod) { admintest.Pending(p); p.Spec.NodeSelector = map[string]string{"gpu": "true"} }, "no node has gpu=true"},
		{"not ready", "pi-1", func(p *corev1.Pod) { p.Status.Conditions[1].Status = "False" },
			"runs, but is not ready"},
		{"not started", "pi-1", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.ContainerStatuses[0].State = corev1.PodPending, corev1.ContainerState{}
		}, "has not started on pi-1"},
	} {
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds", Namespace: "default", UID: "ds"}}
		p := admintest.Pod("p", c.node, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ds,
				appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
			if c.change != nil {
				c.change(p)
			}
		})
		because := &causes{Request: admintest.Ask(admintest.New(append(admintest.Sample(), ds, p)...).Snapshot(),
			admintest.Now, nil)}
		want := cause{}
		if c.want != "" {
			want = cause{c.want, "/pods/default/p"}
		}
		if got := because.of(ds); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
}

// A pod's own fault comes before a silent node. Pods on several silent nodes are counted.
func TestAPodsOwnFaultComesBeforeASilentNode(t *testing.T) {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds", Namespace: "default", UID: "ds"}}
	pod := func(name, node string, crashes bool) *corev1.Pod {
		return admintest.Pod(name, node, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ds,
				appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
			if crashes {
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			}
		})
	}
	two := &causes{Request: admintest.Ask(admintest.New(append(admintest.Sample(), ds, pod("a", "pi-2", false),
		pod("b", "pi-2", false), pod("c", "bone-2", false))...).Snapshot(), admintest.Now, nil)}
	if got, want := two.of(ds), (cause{"3 pods on 2 nodes that are not ready",
		"/pods?namespace=default&owner=daemonset%2Fds"}); got != want {
		t.Errorf("pods on several nodes: %+v, want %+v", got, want)
	}
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} { // in both orders
		because := &causes{Request: admintest.Ask(admintest.New(append(admintest.Sample(), ds,
			pod(names[0], "pi-2", false), pod(names[1], "pi-1", true))...).Snapshot(), admintest.Now, nil)}
		if got := because.of(ds); got.Href != "/pods/default/"+names[1] {
			t.Errorf("%s is silent, and %s crashes: %+v", names[0], names[1], got)
		}
	}
}
