package admin

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

const goingWords = ": being drained."

// begins starts a drain and returns its page.
func (s *server) begins(t testing.TB, m *admintest.Memory, nodes ...string) string {
	t.Helper()
	form := url.Values{"until": {"1h"}, "bare": {"yes"}, "csrf": {csrf}}
	for _, n := range nodes {
		form.Add("item", m.Form(state.Nodes, "", n))
	}
	resp, _ := s.ask(t, "admin", "POST", "/actions/nodes/drain", form, "Cookie", nameHeader+"=admin")
	if resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("drain: %d", resp.StatusCode)
	}
	until(t, "the pods are told to leave", func() bool {
		for _, n := range nodes {
			if m.Snapshot().Pod("default", "shop-on-"+n).DeletionTimestamp == nil {
				return false
			}
		}
		return true
	})
	return resp.Header.Get("Location")
}

func TestADrainIsShownWhoeverAskedForItAndGoesOnAfterTheHubsEnd(t *testing.T) {
	m := admintest.Drained(t)
	first := acting(t, m)
	first.begins(t, m, "pi-a", "pi-b")
	first.end()

	second := acting(t, m)
	for path, says := range map[string]string{"/": "pi-a, pi-b" + goingWords, "/actions": "pi-a, pi-b" + goingWords, "/nodes/pi-a": "pi-a" + goingWords} {
		for role, offered := range map[string]bool{"viewer": false, "operator": true, "admin": true} {
			_, body := second.ask(t, role, "GET", path, nil)
			if !strings.Contains(body, says) || !strings.Contains(body, "asked for by test-admin") || strings.Contains(body, "/actions/nodes/stop-drain?") != offered {
				t.Errorf("%s does not show the running drain to a %s, or offers a wrong action: %.900s", path, role, mainOf(body))
			}
		}
	}
	m.Leave(t, "shop-on-pi-a")
	m.Leave(t, "shop-on-pi-b")
	for _, n := range []string{"pi-a", "pi-b"} {
		_, body := second.ask(t, "viewer", "GET", "/nodes/"+n, nil)
		if m.Order(n) != "" || !m.Snapshot().Node(n).Spec.Unschedulable || !strings.Contains(body, "Drained, asked for by test-admin: 1 pod has left.") {
			t.Errorf("%s is ordered %q after its drain, or is not cordoned, or does not say so: %.900s", n, m.Order(n), mainOf(body))
		}
		second.do(t, "admin", "/actions/nodes/uncordon", url.Values{"item": {m.Form(state.Nodes, "", n)}})
		if state.HasDrainAnnotation(m.Snapshot().Node(n)) {
			t.Errorf("%s is uncordoned, and something is left of its drain: %v", n, m.Snapshot().Node(n).Annotations)
		}
	}
}

func TestHowADrainEnds(t *testing.T) {
	for _, c := range []struct {
		name     string
		do       func(t *testing.T, s *server, m *admintest.Memory, at string)
		going    bool
		cordoned bool
	}{
		{"the hub stops: the drain continues", func(t *testing.T, s *server, m *admintest.Memory, at string) { s.end() }, true, true},
		{"a user stops the job", func(t *testing.T, s *server, m *admintest.Memory, at string) {
			s.do(t, "admin", at, url.Values{"action": {"stop"}})
			until(t, "the drain has stopped", func() bool { return m.Order("pi-a") == "" })
		}, false, true},
		{"a user stops it on the node's page", func(t *testing.T, s *server, m *admintest.Memory, at string) {
			if code, body := s.do(t, "operator", "/actions/nodes/stop-drain", url.Values{"item": {m.Form(state.Nodes, "", "pi-a")}}); code != http.StatusOK || !strings.Contains(body, "pi-a is no longer being drained") {
				t.Errorf("stop it: %d %.600s", code, mainOf(body))
			}
		}, false, true},
		{"a viewer cannot stop it", func(t *testing.T, s *server, m *admintest.Memory, at string) {
			if code, _ := s.do(t, "viewer", "/actions/nodes/stop-drain", url.Values{"item": {m.Form(state.Nodes, "", "pi-a")}}); code != http.StatusForbidden {
				t.Errorf("a viewer: %d", code)
			}
		}, true, true},
		{"by uncordoning", func(t *testing.T, s *server, m *admintest.Memory, at string) {
			s.do(t, "admin", "/actions/nodes/uncordon", url.Values{"item": {m.Form(state.Nodes, "", "pi-a")}})
			until(t, "the job says so", func() bool {
				_, body := s.ask(t, "viewer", "GET", at, nil)
				return strings.Contains(body, "it was uncordoned")
			})
		}, false, false},
		{"all pods have left", func(t *testing.T, s *server, m *admintest.Memory, at string) { m.Leave(t, "shop-on-pi-a") }, false, true},
		{"the node is deleted", func(t *testing.T, s *server, m *admintest.Memory, at string) {
			m.End(t, m.Snapshot().Node("pi-a"))
			until(t, "the job says so", func() bool {
				_, body := s.ask(t, "viewer", "GET", at, nil)
				return strings.Contains(body, "it is gone")
			})
			m.Put(t, admintest.Node("pi-a", "oslo", nil))
		}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := admintest.Drained(t)
			s := acting(t, m)
			c.do(t, s, m, s.begins(t, m, "pi-a"))
			_, body := acting(t, m).ask(t, "admin", "GET", "/nodes/pi-a", nil)
			if got := strings.Contains(body, goingWords); got != c.going || (m.Order("pi-a") != "") != c.going || m.Snapshot().Node("pi-a").Spec.Unschedulable != c.cordoned {
				t.Errorf("it is shown: %v, want %v; the order is %q", got, c.going, m.Order("pi-a"))
			}
		})
	}
}

func TestADrainThatKubectlAskedForIsShown(t *testing.T) {
	m := admintest.Drained(t)
	n := m.Snapshot().Node("pi-a").DeepCopy()
	n.Annotations = map[string]string{state.DrainAnnotation: "true"}
	m.Put(t, n)
	if st := state.DrainStatusOf(m.Snapshot().Node("pi-a")); !st.Going() || st.Pods != 1 {
		t.Fatalf("%+v", st)
	}
	_, body := acting(t, m).ask(t, "viewer", "GET", "/nodes/pi-a", nil)
	if !strings.Contains(body, "pi-a"+goingWords) {
		t.Errorf("the page does not show it: %.900s", mainOf(body))
	}
}
