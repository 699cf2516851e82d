package admission

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestScenarioDefaultTolerations(t *testing.T) {
	spell := func(list []corev1.Toleration) string {
		var out []string
		for _, tol := range list {
			s := fmt.Sprintf("%s:%s", strings.TrimPrefix(tol.Key, "node.kubernetes.io/"), tol.Effect)
			if tol.TolerationSeconds != nil {
				s += fmt.Sprintf("/%d", *tol.TolerationSeconds)
			}
			out = append(out, s)
		}
		return strings.Join(out, " ")
	}
	ofNode := func(key string, effect corev1.TaintEffect, seconds ...int64) corev1.Toleration {
		tol := corev1.Toleration{Key: "node.kubernetes.io/" + key, Operator: corev1.TolerationOpExists, Effect: effect}
		if len(seconds) > 0 {
			tol.TolerationSeconds = &seconds[0]
		}
		return tol
	}
	const none = corev1.TaintEffectNoExecute
	for _, tt := range []struct {
		name string
		have []corev1.Toleration
		want string
	}{
		{"S9.toleration.1 a pod without tolerations gets both for 300 s", nil, "not-ready:NoExecute/300 unreachable:NoExecute/300"},
		{"S9.toleration.2 both defaults follow an unrelated toleration", []corev1.Toleration{{Key: "foo", Value: "bar", Effect: none}},
			"foo:NoExecute not-ready:NoExecute/300 unreachable:NoExecute/300"},
		{"S9.toleration.3 a pod that tolerates not-ready for 700 s gets the toleration of unreachable", []corev1.Toleration{ofNode("not-ready", none, 700)}, "not-ready:NoExecute/700 unreachable:NoExecute/300"},
		{"S9.toleration.4 a pod that tolerates unreachable gets the toleration of not-ready", []corev1.Toleration{ofNode("unreachable", none, 700)}, "unreachable:NoExecute/700 not-ready:NoExecute/300"},
		{"S9.toleration.5 a pod that tolerates both stays unchanged", []corev1.Toleration{ofNode("not-ready", none, 700), ofNode("unreachable", none)}, "not-ready:NoExecute/700 unreachable:NoExecute"},
		{"S9.toleration.6 a toleration of unreachable without an effect matches every effect, so only not-ready is missing", []corev1.Toleration{ofNode("unreachable", "")}, "unreachable: not-ready:NoExecute/300"},
		{"S9.toleration.7 a pod that tolerates everything stays unchanged", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, ":"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := spell(DefaultTolerations(tt.have, normal)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
