package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A write of an existing taint, for example an apply without times, keeps the taint's time.
// Otherwise tolerationSeconds would never end.
func TestARewrittenTaintKeepsItsTime(t *testing.T) {
	const added, node = "2026-06-01T10:00:00Z", "/api/v1/nodes/pi-1"
	taints := func(value, more string) string {
		return `{"spec":{"taints":[{"key":"rain","value":"` + value + `","effect":"NoExecute"` + more +
			`},{"key":"rain","effect":"NoSchedule"}]}}`
	}
	for _, c := range []struct {
		name, contentType, path, body string
		kept                          bool
	}{
		{"a merge patch", mp, node, taints("heavy", ""), true},
		{"a strategic patch", smp, node, taints("heavy", ""), true},
		{"an apply", ssa, node + "?fieldManager=me&force=true", `{"apiVersion":"v1","kind":"Node",` + taints("heavy", "")[1:], true},
		{"an apply with another value", mp, node, taints("light", ""), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(seeded())
			var n corev1.Node
			send(t, s, "PATCH", node, mp, taints("heavy", `,"timeAdded":"`+added+`"`), 200, &n)
			n = corev1.Node{}
			send(t, s, "PATCH", c.path, c.contentType, c.body, 200, &n)
			at := n.Spec.Taints[0].TimeAdded
			if kept := at != nil && at.UTC().Format("2006-01-02T15:04:05Z") == added; kept != c.kept {
				t.Errorf("the taint has the time %v, want it kept: %v", at, c.kept)
			}
		})
	}
}
