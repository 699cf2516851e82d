package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

// Termination messages work for root and for another user, with a read-only root file system, and
// from the log.
func TestRealEngineShowsTerminationMessages(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("last", "write /dev/termination-log bye", "write /dev/termination-log somebody",
			"cat /no-such-file",
			"write /else/where there")
		p.UID = types.UID("uid-last-" + d.node)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		user, yes := int64(1234), true
		p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: &user, ReadOnlyRootFilesystem: &yes}
		p.Spec.Containers[2].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		p.Spec.Containers[3].TerminationMessagePath = "/else/where"
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		d.await("the pod has ended", func() bool { st := d.pod("last"); return st != nil && plan.IsFinal(st.Phase) })
		for i, want := range []string{"bye", "somebody", "no-such-file", "there"} {
			s := d.pod("last").ContainerStatuses[i].State.Terminated
			if s == nil || !strings.Contains(s.Message, want) {
				t.Errorf("the state of container %d is %+v, want the message %q", i, s, want)
			}
		}
	})
}
