package admin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
)

func TestAPodThatItsDeviceRefusedSaysWhatLacks(t *testing.T) {
	p := admintest.Pod("large", "pi-1", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfmemory", Message: "Node didn't have enough resource: memory, requested: 67108864, used: 268435456, capacity: 331350016"}
	})
	srv := start(t, configOf(admintest.New(admintest.Node("pi-1", "oslo", nil), p)))
	for _, path := range []string{"/pods", "/pods/default/large", "/nodes/pi-1"} {
		if _, body := srv.ask(t, "viewer", "GET", path, nil); !strings.Contains(body, "No room: memory") || !strings.Contains(body, "it asks for 64 MiB, and 60 MiB of 316 MiB are free") || strings.Contains(body, "67108864") {
			t.Errorf("%s: %s", path, mainOf(body))
		}
	}
}
