package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

// A crash loop that pauses stays amber as long as its incident may stay open.
func TestAPausedCrashLoopIsNotGreen(t *testing.T) {
	three := int32(3)
	for _, c := range []struct {
		name     string
		ago      time.Duration
		restarts int32
		exit     int32
		nodes    [3]string
		want     string // "": complete
	}{
		{"all on one node", 5 * time.Minute, 6, 1, [3]string{"pi-1", "pi-1", "pi-1"}, "3 pods restarted up to 6 times, last 5 min ago, all on node pi-1."},
		{"on several", 5 * time.Minute, 6, 1, [3]string{"pi-1", "pi-2", "pi-1"}, "3 pods restarted up to 6 times, last 5 min ago."},
		{"it is over", 11 * time.Minute, 6, 1, [3]string{"pi-1", "pi-1", "pi-1"}, ""},
		{"one crash is no loop", time.Minute, 1, 1, [3]string{"pi-1", "pi-1", "pi-1"}, ""},
		{"they ended as they should", time.Minute, 6, 0, [3]string{"pi-1", "pi-1", "pi-1"}, ""},
	} {
		owns := func(kind, name string) []metav1.OwnerReference {
			yes := true
			return []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: &yes}}
		}
		objects := []state.Object{
			admintest.Node("pi-1", "oslo", nil), admintest.Node("pi-2", "oslo", nil),
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "till", Namespace: "default", UID: "uid-till"}, Spec: appsv1.DeploymentSpec{Replicas: &three, Selector: &metav1.LabelSelector{}},
				Status: appsv1.DeploymentStatus{Replicas: 3, ReadyReplicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}},
			&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "till-1", Namespace: "default", UID: "uid-till-1", OwnerReferences: owns("Deployment", "till")}},
		}
		now := time.Now()
		for i, node := range c.nodes {
			objects = append(objects, admintest.Pod(fmt.Sprintf("till-1-%d", i), node, func(p *corev1.Pod) {
				p.OwnerReferences = owns("ReplicaSet", "till-1")
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", Ready: true, RestartCount: c.restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: c.exit, FinishedAt: metav1.NewTime(now.Add(-c.ago - time.Second))}}}}
			}))
		}
		srv := start(t, configOf(admintest.New(objects...)))
		for _, path := range []string{"/workloads", "/workloads/deployments/default/till"} {
			_, body := srv.ask(t, "viewer", "GET", path, nil)
			if amber := strings.Contains(body, `<span class="pill warn">Crashed lately</span>`); amber != (c.want != "") || !strings.Contains(body, c.want) {
				t.Errorf("%s: %s: %.1500s", c.name, path, mainOf(body))
			}
		}
	}
}
