package admin

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

const cutWords = "was cut short when the hub stopped"

// drainSample is a fleet with two nodes that have pods with an owner.
func drainSample(t testing.TB) *memory {
	m := worksample(t)
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"})
	for _, name := range []string{"pi-a", "pi-b"} {
		m.put(t, testNode(name, "oslo", nil), testPod("shop-on-"+name, name, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		}))
	}
	return m
}

func (m *memory) mark(node string) string { return m.Snapshot().Node(node).Annotations[drainMark] }

// begins has somebody begin a drain, and returns where it is shown.
func (s *server) begins(t testing.TB, m *memory, nodes ...string) string {
	t.Helper()
	form := url.Values{"until": {"1h"}, "bare": {"yes"}, "csrf": {csrf}}
	for _, n := range nodes {
		form.Add("item", m.form(state.Nodes, "", n))
	}
	resp, _ := s.ask(t, "admin", "POST", "/actions/nodes/drain", form, "Cookie", nameHeader+"=admin")
	if resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("drain: %d", resp.StatusCode)
	}
	until(t, "the pods are asked to leave", func() bool {
		for _, n := range nodes {
			if m.Snapshot().Pod("default", "shop-on-"+n).DeletionTimestamp == nil {
				return false
			}
		}
		return true
	})
	return resp.Header.Get("Location")
}

func (m *memory) leave(t testing.TB, pod string) {
	t.Helper()
	if _, err := m.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(s.Pod("default", pod), "")}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

var goOnLink = regexp.MustCompile(`href="(/actions/nodes/drain\?[^"]+)">Go on`)

func TestADrainThatTheHubsEndCutShortIsToldAndGoesOn(t *testing.T) {
	m := drainSample(t)
	first := acting(t, m)
	first.begins(t, m, "pi-a", "pi-b")
	for _, path := range []string{"/", "/actions", "/nodes/pi-a"} {
		if _, body := first.ask(t, "admin", "GET", path, nil); strings.Contains(body, cutWords) {
			t.Errorf("%s says that the drain was cut short while it goes on", path)
		}
	}
	first.end()

	second := acting(t, m)
	for path, says := range map[string]string{"/": "The drain of pi-a, pi-b " + cutWords, "/actions": "The drain of pi-a, pi-b " + cutWords, "/nodes/pi-a": "The drain of pi-a " + cutWords} {
		_, body := second.ask(t, "viewer", "GET", path, nil)
		if !strings.Contains(body, says) || !strings.Contains(body, "begun by test-admin") || goOnLink.MatchString(body) {
			t.Errorf("%s does not tell a viewer of the drain that was cut short, or offers to go on: %.900s", path, mainOf(body))
		}
	}
	_, body := second.ask(t, "admin", "GET", "/", nil)
	link := goOnLink.FindStringSubmatch(body)
	if link == nil {
		t.Fatalf("nothing leads on: %.900s", mainOf(body))
	}
	_, body = second.ask(t, "admin", "GET", html.UnescapeString(link[1]), nil)
	for _, want := range []string{"Drain <span", "2 nodes", "2 pods have to leave.", `value="1h" selected`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page before going on lacks %q: %.1500s", want, mainOf(body))
		}
	}
	at := second.begins(t, m, "pi-a", "pi-b")
	if _, body := second.ask(t, "admin", "GET", "/", nil); strings.Contains(body, cutWords) {
		t.Error("it is still told when the drain goes on")
	}
	m.leave(t, "shop-on-pi-a")
	m.leave(t, "shop-on-pi-b")
	until(t, "the drain is over", func() bool {
		_, body := second.ask(t, "admin", "GET", at, nil)
		return strings.Contains(body, "2 of 2 done")
	})
	for _, n := range []string{"pi-a", "pi-b"} {
		if m.mark(n) != "" || !m.Snapshot().Node(n).Spec.Unschedulable {
			t.Errorf("%s is marked %q after its drain, or is not cordoned", n, m.mark(n))
		}
	}
}

func TestWhichDrainsWereCutShort(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, s *server, m *memory, at string)
		ends bool // the hub does
		told bool
		mark bool
	}{
		{"one that the hub's end stopped", func(*testing.T, *server, *memory, string) {}, true, true, true},
		{"none that a person stopped", func(t *testing.T, s *server, m *memory, at string) {
			s.do(t, "admin", at, url.Values{"action": {"stop"}})
			until(t, "the drain has stopped", func() bool { return m.mark("pi-a") == "" })
		}, false, false, false},
		{"none of a node that is in use again", func(t *testing.T, s *server, m *memory, at string) {
			s.end()
			acting(t, m).do(t, "admin", "/actions/nodes/uncordon", url.Values{"item": {m.form(state.Nodes, "", "pi-a")}})
		}, true, false, false},
		{"none whose pods have left by themselves", func(t *testing.T, s *server, m *memory, at string) {
			s.end()
			m.leave(t, "shop-on-pi-a")
		}, true, false, true},
		{"none that somebody leaves as it is", func(t *testing.T, s *server, m *memory, at string) {
			s.end()
			s = acting(t, m)
			if code, body := s.do(t, "admin", "/actions/nodes/forget-drain", url.Values{"item": {m.form(state.Nodes, "", "pi-a")}}); code != http.StatusOK || !strings.Contains(body, "pi-a keeps its pods") {
				t.Errorf("leave it: %d %.600s", code, mainOf(body))
			}
			if !m.Snapshot().Node("pi-a").Spec.Unschedulable {
				t.Error("the node that is left as it is is not cordoned any more")
			}
		}, true, false, false},
		{"nothing that a mark of somebody else's says", func(t *testing.T, s *server, m *memory, at string) {
			s.end()
			n := m.Snapshot().Node("pi-a").DeepCopy()
			n.Annotations[drainMark] = `<script>{`
			m.put(t, n)
		}, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := drainSample(t)
			s := acting(t, m)
			c.do(t, s, m, s.begins(t, m, "pi-a"))
			if c.ends {
				s.end()
			}
			_, body := acting(t, m).ask(t, "admin", "GET", "/nodes/pi-a", nil)
			if got := strings.Contains(body, cutWords); got != c.told || (m.mark("pi-a") != "") != c.mark {
				t.Errorf("it is told: %v, want %v; the mark is %q", got, c.told, m.mark("pi-a"))
			}
			if strings.Contains(body, "Forget") || strings.Contains(body, `action="/actions/nodes/forget-drain"`) {
				t.Error("a menu offers to forget the drain")
			}
		})
	}
}
