package admin

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
)

func TestHowOftenAContainerWasStarted(t *testing.T) {
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	for _, c := range []struct {
		name   string
		status corev1.ContainerStatus
		want   string
	}{
		{"its image is not there", corev1.ContainerStatus{State: waiting("ImagePullBackOff")}, "Container web has not been started yet."},
		{"it ended, and has to wait", corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: ended}, "Container web was started once."},
		{"it was started again", corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: ended, RestartCount: 2}, "Container web was started 3 times."},
		{"the history of an end is lost", corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), RestartCount: 2}, "Container web was started 3 times."},
	} {
		p := admintest.Pod("p", "pi-1", func(p *corev1.Pod) {
			c.status.Name = "web"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{c.status}
		})
		s := admintest.New(admintest.Node("pi-1", "oslo", nil), p).Snapshot()
		if chain := podChain(s, s.Pod("default", "p"), admintest.Now); !slices.Contains(chain, c.want) {
			t.Errorf("%s: %q, want %q", c.name, chain, c.want)
		}
	}
}
