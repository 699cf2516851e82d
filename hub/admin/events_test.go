package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Thousands of pods that start are one row, and lead to all of them.
func TestEventsAreFoldedByReason(t *testing.T) {
	m := newMemory(testNode("pi-1", "oslo", nil))
	for i := range 150 {
		m.put(t, testEvent("Pod", fmt.Sprintf("till-%03d", i), "Killing", "Stopping container web", time.Duration(i)*time.Second))
	}
	m.put(t, testEvent("Node", "pi-1", "NodeTainted", "taint pi-1 node.kubernetes.io/unreachable:NoExecute", 2*time.Hour))
	srv := start(t, configOf(m))
	for _, c := range []struct {
		path string
		rows int
		says []string
	}{
		{"/events", 2, []string{"151 events, one row for each reason", `<a href="/events?reason=Killing">149 other events</a>`, "Tainted pi-1 node.kubernetes.io/unreachable:NoExecute"}},
		{"/events?reason=Killing", perPage, []string{"150 events of Killing"}},
		{"/events?q=till", perPage, []string{"150 events"}},
		{"/events?since=1h", 1, []string{"150 events"}},
		{"/events?since=nonsense", 2, []string{"151 events"}},
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

// The hub's own events begin with what it is about to do; the page reports them.
func TestEventsAreReports(t *testing.T) {
	for message, want := range map[string]string{
		"create meter-1 for meter on pi-1":                                      "Created meter-1 for meter on pi-1",
		"taint pi-1 node.kubernetes.io/unreachable:NoExecute":                   "Tainted pi-1 node.kubernetes.io/unreachable:NoExecute",
		"scale till-1 from 0 to 3 for till":                                     "Scaled till-1 from 0 to 3 for till",
		"create no pod for till: quota":                                         "Could not create a pod for till: quota",
		"hold meter back for 16s: its pods are lost as soon as they are placed": "Waiting 16s before making more pods of meter: each is lost at once",
		"hold":                             "hold",
		"Created container: web":           "Created container: web",
		"node pi-2 Ready=Unknown: silence": "node pi-2 Ready=Unknown: silence",
	} {
		if got := reported(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
