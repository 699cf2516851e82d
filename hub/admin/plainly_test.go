package admin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMessagesAreShownWithAmountsAndTimesAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"it lasted 4m30s":                 "it lasted 4m30s",
		"seen within the last 5m0s":       "seen within the last 5 min",
		"back-off 5m0s, then 1h30m0s.":    "back-off 5 min, then 90 min.",
		"one node every 2160h0m0s":        "one node every 90 days",
		"all of 12345678901h0m0s":         "all of 12345678901h0m0s",
		"kubelet is posting ready status": "the device reports that it is ready",
		"Node didn't have enough resource: memory, requested: 67108864, used: 268435456, capacity: 331350016": "The node has too little memory: it asks for 64 MiB, and 60 MiB of 316 MiB are free",
		"Node didn't have enough resource: cpu, requested: 100, used: 3700, capacity: 3700":                   "The node has too little cpu: it asks for 0.1, and 0 of 3.7 are free",
		"Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110":                      "The node has too little pods: it asks for 1, and 0 of 110 are free",
		"Node didn't have enough resource: memory, requested: 99999999999999999999, used: 1, capacity: 2":     "Node didn't have enough resource: memory, requested: 99999999999999999999, used: 1, capacity: 2",
	} {
		if got := plainly(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestAPodThatItsDeviceRefusedSaysWhatLacks(t *testing.T) {
	p := testPod("large", "pi-1", func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfmemory", Message: "Node didn't have enough resource: memory, requested: 67108864, used: 268435456, capacity: 331350016"}
	})
	srv := start(t, configOf(newMemory(testNode("pi-1", "oslo", nil), p)))
	for _, path := range []string{"/pods", "/pods/default/large", "/nodes/pi-1"} {
		if _, body := srv.ask(t, "viewer", "GET", path, nil); !strings.Contains(body, "No room: memory") || !strings.Contains(body, "it asks for 64 MiB, and 60 MiB of 316 MiB are free") || strings.Contains(body, "67108864") {
			t.Errorf("%s: %s", path, mainOf(body))
		}
	}
}
