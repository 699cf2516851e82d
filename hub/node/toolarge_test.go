package node_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/shared/wire"
)

// A node whose pods need more than the limit of a desired state receives nothing: no pods to run,
// and none to stop. An event reports that to users.
func TestADesiredStateThatIsTooLargeIsReported(t *testing.T) {
	listening(t, "one event for each state that is too large", func(h *listener) {
		nodetest.Greet(h.t, h.l, "pi-1")
		large := func(name string) {
			h.write(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"},
				Data: map[string]string{"k": name + strings.Repeat("x", wire.MaxDesired)}})
			synctest.Wait()
		}
		h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
			Spec: corev1.PodSpec{NodeName: "pi-1", Containers: []corev1.Container{{Name: "a", Image: "a",
				EnvFrom: []corev1.EnvFromSource{
					{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
				}}}}})
		large("a")
		messages := func() []string { return h.events("DesiredStateTooLarge") }
		if got := messages(); len(got) != 1 || !strings.Contains(got[0], "config maps") {
			t.Fatalf("the events are %q", got)
		}
		for seq := uint64(2); seq < 10; seq++ {
			// the device's leases have an old generation, so the hub tries to publish again
			h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: seq, Status: 1, Pods: 1})
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if got := messages(); len(got) != 1 {
			t.Errorf("one state that is too large is reported %d times", len(got))
		}
		large("b")
		if got := messages(); len(got) != 2 {
			t.Errorf("two states that are too large are reported %d times", len(got))
		}
	})
}
