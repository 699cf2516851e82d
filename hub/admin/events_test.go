package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
)

// Thousands of starting pods are one row, with a link to all of them.
func TestEventsAreFoldedByReason(t *testing.T) {
	m := admintest.New(admintest.Node("pi-1", "oslo", nil))
	for i := range 150 {
		m.Put(t, admintest.Event("Pod", fmt.Sprintf("till-%03d", i), "Killing", "Stopping container web", time.Duration(i)*time.Second))
	}
	m.Put(t, admintest.Event("Node", "pi-1", "NodeTainted", "taint pi-1 node.kubernetes.io/unreachable:NoExecute", 2*time.Hour))
	srv := start(t, configOf(m))
	for _, c := range []struct {
		path string
		rows int
		says []string
	}{
		{"/events", 2, []string{"151 events, one row for each reason", `<a href="/events?reason=Killing">149 other events</a>`, "Tainted pi-1 node.kubernetes.io/unreachable:NoExecute"}},
		{"/events?reason=Killing", frame.PerPage, []string{"150 events of Killing"}},
		{"/events?q=till", frame.PerPage, []string{"150 events"}},
		{"/events?since=1h", 1, []string{"150 events"}},
	} {
		_, body := srv.ask(t, "viewer", "GET", c.path, nil)
		if n := strings.Count(body, `<td data-label="When"`); n != c.rows {
			t.Errorf("%s has %d rows, want %d", c.path, n, c.rows)
		}
		for _, want := range c.says {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not say %q: %.900s", c.path, want, mainOf(body))
			}
		}
	}
}
