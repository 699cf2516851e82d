package frame

import (
	"testing"
)

// The hub's own events are imperatives; the page shows them as reports.
func TestEventsAreReports(t *testing.T) {
	for message, want := range map[string]string{
		"create meter-1 for meter on pi-1":                                      "Created meter-1 for meter on pi-1",
		"taint pi-1 node.kubernetes.io/unreachable:NoExecute":                   "Tainted pi-1 node.kubernetes.io/unreachable:NoExecute",
		"scale till-1 from 0 to 3 for till":                                     "Scaled till-1 from 0 to 3 for till",
		"create no pod for till: quota":                                         "Could not create a pod for till: quota",
		"hold meter back for 16s: its pods are lost as soon as they are placed": "Waiting 16s before making more pods of meter: each is lost at once",
		"hold":                   "hold",
		"Created container: web": "Created container: web",
		"node pi-2 Ready=Unknown: no heartbeat for 40s": "Node pi-2 does not answer: no heartbeat for 40s",
	} {
		if got := reported(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
