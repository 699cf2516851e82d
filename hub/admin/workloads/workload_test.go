package workloads

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

func TestWhatStandsBehindAWorkloadIsCounted(t *testing.T) {
	m := admintest.Work(t)
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"})
	for i := range 3 {
		m.Put(t, admintest.Pod(fmt.Sprintf("shop-%d", i), "pi-1", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs,
				rs.GetObjectKind().GroupVersionKind())}
			if i < 2 {
				p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web",
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
						Message: "no such image"}}}
			}
		}))
	}
	d := m.Snapshot().Deployment("default", "shop")
	chain := workloadChain(admintest.Ask(m.Snapshot(), admintest.Now, nil), d, podsOf(m.Snapshot(), d))
	if want := "2 pods: Container web: ImagePullBackOff, no such image"; !slices.Contains(chain, want) {
		t.Errorf("the reasons are %q, want %q among them", chain, want)
	}
}

// Pods on nodes that are not ready are counted by site. Replaced pods come last, even if they are the
// most.
func TestWhyPodsAreMissingIsCountedBySite(t *testing.T) {
	m := admintest.Work(t)
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"})
	for i, name := range []string{"dark-0", "dark-1", "dark-2"} {
		m.Put(t, admintest.Node(name, []string{"moss", "moss", "voss"}[i],
			admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x")))
	}
	for i, node := range []string{"dark-0", "dark-1", "dark-2", "pi-1", "pi-1", "pi-1", "pi-1"} {
		m.Put(t, admintest.Pod(fmt.Sprintf("shop-%d", i), node, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs,
				state.ReplicaSets.GroupVersionKind())}
			if node == "pi-1" {
				p.Status.Phase, p.Status.Message = corev1.PodFailed, "Pod was rejected: OutOfmemory"
			}
		}))
	}
	d := m.Snapshot().Deployment("default", "shop")
	chain := workloadChain(admintest.Ask(m.Snapshot(), admintest.Now, nil), d, podsOf(m.Snapshot(), d))
	want := []string{"3 pods are on nodes that do not answer (moss: 2, voss: 1).",
		"4 pods, replaced since: Pod was rejected: OutOfmemory"}
	if len(chain) < 2 || !slices.Equal(chain[len(chain)-2:], want) {
		t.Errorf("the reasons are %q, want them to end with %q", chain, want)
	}
}
