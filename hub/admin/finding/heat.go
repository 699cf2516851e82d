package finding

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// HotCelsius is the temperature from which boards slow down: 80 °C on a Raspberry Pi 4 and 5.
const HotCelsius = 80

// NoAnswer is the sentence about a silent node; the page shows the time beside it.
const NoAnswer = "It does not answer"

// NodeSentence says in one sentence what is wrong with a node. If the device is hot, the sentence has
// the temperature: "Throttled" alone does not lead to the cooling.
func NodeSentence(a *frame.Request, n *corev1.Node) string {
	why, told := NodeWhy(n)
	live := a.Liveness(n.Name)
	if t := live.Vitals.Temperature; t != nil && live.Connected && state.ReadyOf(n) == corev1.ConditionTrue {
		return heated(why, told, n, *t)
	}
	return why
}

// Hot tells whether a device reports that it is too hot, or that heat slows it down.
func Hot(n *corev1.Node) bool {
	if c := state.NodeCondition(n, fleet.ConditionTemperatureOK); c != nil && c.Status == corev1.ConditionFalse {
		return true
	}
	return throttled(state.NodeCondition(n, fleet.ConditionPowerOK))
}

func throttled(c *corev1.NodeCondition) bool { return c != nil && c.Reason == "Throttled" }

// heated returns the sentence about a node whose device reports a temperature.
func heated(why string, told corev1.NodeConditionType, n *corev1.Node, celsius float64) string {
	if celsius < HotCelsius {
		return why
	}
	if throttled(state.NodeCondition(n, told)) {
		return fmt.Sprintf("It is at %.0f °C, and the firmware slows the processor down: check its cooling.", celsius)
	}
	if len(diagnose.Failing(n)) == 0 {
		return strings.TrimSpace(fmt.Sprintf("It is at %.0f °C; from about %d °C on boards slow down: check its cooling. %s",
			celsius, HotCelsius, why))
	}
	return why
}
