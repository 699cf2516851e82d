package finding

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/shared/wire"
)

func TestANodeThatIsHotSaysSoFirst(t *testing.T) {
	throttled := admintest.Condition("PowerOK", "False", "Throttled",
		"the firmware throttles the processor: check its cooling and its power supply")
	for _, c := range []struct {
		name    string
		celsius float64 // 0: not reported
		change  func(*corev1.Node)
		away    bool
		want    string // the beginning of the sentence
	}{
		{"hot and throttled", 84.3, throttled, false,
			"It is at 84 °C, and the firmware slows the processor down: check its cooling."},
		{"throttled, but not hot", 61, throttled, false, "Throttled: the firmware throttles"},
		{"throttled, without a temperature", 0, throttled, false, "Throttled: the firmware throttles"},
		{"hot", 80.4, nil, false, "It is at 80 °C; from about 80 °C on boards slow down: check its cooling."},
		{"warm", 79.4, nil, false, ""},
		{"hot and cordoned", 84, func(n *corev1.Node) { n.Spec.Unschedulable = true }, false,
			"It is at 84 °C; from about 80 °C on boards slow down: check its cooling. Cordoned:"},
		{"hot, but something else is wrong", 84,
			admintest.Condition("StorageHealthy", "False", "WornOut", "mmcblk0 is at the end of its life"), false,
			"WornOut: mmcblk0"},
		{"it was hot before it fell silent", 84, admintest.Condition("Ready", "Unknown", "NodeStatusUnknown",
			"Kubelet stopped posting node status."), true, NoAnswer},
	} {
		a := admintest.Ask(admintest.New().Snapshot(), admintest.Now, nil)
		n := admintest.Node("pi-1", "oslo", c.change)
		a.Snapshot = admintest.New(n).Snapshot()
		a.Liveness = func(string) frame.Liveness {
			v := frame.Liveness{Connected: !c.away}
			if c.celsius != 0 {
				v.Vitals = wire.Vitals{Temperature: &c.celsius}
			}
			return v
		}
		if got := NodeSentence(a, a.Node("pi-1")); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
