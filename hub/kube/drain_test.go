package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// The hub writes the user's name into a drain order and ignores the client's. An invalid order
// changes nothing.
func TestADrainOrderNamesItsUser(t *testing.T) {
	f := seeded()
	s := newServer(f)
	patch := func(value string) string {
		return `{"metadata":{"annotations":{"flotilla.dev/drain":` + value + `}}}`
	}
	for _, c := range []struct {
		name, value, want string
	}{
		{"an order that kubectl annotate writes", `"true"`, `{"by":"admin"}`},
		{"an order with options and another user's name", `"{\"timeout\":\"1h\",\"by\":\"kari\"}"`, `{"timeout":"1h","by":"admin"}`},
		{"once more", `"{\"timeout\":\"1h\"}"`, `{"timeout":"1h","by":"admin"}`},
		{"taken back", `null`, ``},
	} {
		var n corev1.Node
		send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp, patch(c.value), 200, &n)
		if got := n.Annotations[state.DrainAnnotation]; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for _, value := range []string{`"yes"`, `""`, `"{\"tiemout\":\"1h\"}"`, `"{\"timeout\":\"25h\"}"`,
		`"{\"timeout\":\"-1s\"}"`, `"{\"timeout\":\"soon\"}"`, `"{\"gracePeriodSeconds\":-1}"`, `"{} {}"`,
		`"{\"by\":\"` + strings.Repeat("x", 5000) + `\"}"`} {
		before := f.Snapshot().Revision
		send(t, s, "PATCH", "/api/v1/nodes/pi-1", mp, patch(value), 422, nil)
		if f.Snapshot().Revision != before {
			t.Errorf("a refused order must change nothing: %.40s", value)
		}
	}
	w := request{role: "viewer", method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: patch(`"true"`)}.do(s)
	if w.Code != 403 {
		t.Errorf("a viewer's drain order is answered %d, want 403", w.Code)
	}
}
