package finding

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// HotCelsius is from where on boards slow their processors down: a Raspberry Pi 4 and 5 at 80 °C.
const HotCelsius = 80

// NoAnswer is what is wrong with a node that is not heard: since when stands beside it.
const NoAnswer = "It does not answer"

// NodeSentence is what is wrong with a node in one sentence, with how hot its device says it
// is where that is why: nobody looks for a fan because of "Throttled".
func NodeSentence(a *frame.Request, n *corev1.Node) string {
	why, told := NodeWhy(a.Snapshot, n)
	if ready := state.ReadyOf(n); ready != corev1.ConditionTrue {
		why = strings.TrimPrefix(why, fmt.Sprintf("node %s Ready=%s: ", n.Name, ready))
		if strings.HasPrefix(why, "no heartbeat for ") { // as long as it was silent then
			return NoAnswer
		}
	}
	live := a.Liveness(n.Name)
	if t := live.Vitals.Temperature; t != nil && live.Connected && state.ReadyOf(n) == corev1.ConditionTrue {
		return heated(why, told, n, *t)
	}
	return why
}

// heated is the sentence about a node whose device is so hot.
func heated(why string, told corev1.NodeConditionType, n *corev1.Node, celsius float64) string {
	if celsius < HotCelsius {
		return why
	}
	if c := state.NodeCondition(n, told); c != nil && c.Reason == "Throttled" {
		return fmt.Sprintf("It is at %.0f °C, and the firmware slows the processor down: check its cooling.", celsius)
	}
	if len(diagnose.Failing(n)) == 0 {
		return strings.TrimSpace(fmt.Sprintf("It is at %.0f °C; from about %d °C on boards slow down: check its cooling. %s",
			celsius, HotCelsius, why))
	}
	return why
}
