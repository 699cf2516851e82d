package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/state"
)

func numbered(format string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return list
}

// begun submits a confirmation form as a browser does, with the typed number.
func (s *server) begun(t testing.TB, body string, form url.Values) (code int, answer string) {
	t.Helper()
	_, rest, _ := strings.Cut(body, `formaction="`)
	path, _, _ := strings.Cut(rest, `"`)
	form.Set("items", valueOf(body, "items"))
	form.Set("back", valueOf(body, "back"))
	return s.do(t, "admin", path, form)
}

func TestWhatIsConfirmedIsWhatIsDoneOfSeveralKinds(t *testing.T) {
	m := admintest.Work(t)
	nightly := m.Snapshot().Get(state.Key{Kind: state.CronJobs, Namespace: "default", Name: "nightly-report"}).DeepCopyObject().(*batchv1.CronJob)
	nightly.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	admission.Default(nightly, admission.Settings{})
	m.Put(t, nightly)
	srv := acting(t, m)
	picks := url.Values{"csrf": {csrf}, "do": {"restart"}, "pick": {m.Pick(state.Deployments, "default", "shop"), m.Pick(state.DaemonSets, "default", "watch"),
		m.Pick(state.CronJobs, "default", "nightly-report"), "deployments/default/nobody=1", "daemonsets/default/watch=another"}}
	_, body := srv.ask(t, "operator", "POST", "/actions/many?q=s", picks)
	for _, want := range []string{"Restart 2 workloads", "does not apply to a cron job", "has gone", "a new object has its name", "3 left out", `href="/workloads?q=s"`} {
		if !strings.Contains(body, want) {
			t.Errorf("the confirmation does not say %q: %s", want, mainOf(body))
		}
	}
	code, body := srv.begun(t, body, url.Values{})
	if code != http.StatusOK || !strings.Contains(body, "2 of 2 done") || !strings.Contains(body, "daemon set watch") {
		t.Errorf("%d: %s", code, mainOf(body))
	}
	if m.Snapshot().Deployment("default", "shop").Spec.Template.Annotations[restarted] == "" {
		t.Error("the deployment was not restarted")
	}
	// Workloads of two kinds are paused or suspended together, and resumed together.
	picks = url.Values{"csrf": {csrf}, "do": {"suspend"}, "pick": {m.Pick(state.CronJobs, "default", "nightly-report")}}
	_, body = srv.ask(t, "operator", "POST", "/actions/many", picks)
	if !strings.Contains(body, "Starts no more jobs") || !strings.Contains(body, "nightly-report") {
		t.Errorf("the confirmation: %s", mainOf(body))
	}
	if code, body := srv.do(t, "admin", "/actions/cronjobs/suspend", url.Values{"item": {m.Form(state.CronJobs, "default", "nightly-report")}}); code != http.StatusOK || !strings.Contains(body, "1 of 1 done") {
		t.Errorf("%d: %s", code, mainOf(body))
	}
	picks = url.Values{"csrf": {csrf}, "do": {"delete"}, "pick": {m.Pick(state.CronJobs, "default", "nightly-report"), m.Pick(state.StatefulSets, "default", "db")}}
	_, body = srv.ask(t, "operator", "POST", "/actions/many", picks)
	if code, body := srv.begun(t, body, url.Values{}); code != http.StatusOK || !strings.Contains(body, "2 of 2 done") {
		t.Errorf("%d: %s", code, mainOf(body))
	}
}

// fleetOf returns a fleet of n nodes with the real API, which records requests.
func fleetOf(t *testing.T, n int) (m *admintest.Memory, c frame.Config, audits func() int) {
	m = admintest.Many(n)
	c = configOf(m)
	equip(&c)
	var mu sync.Mutex
	seen := map[string]int{}
	api := kube.New(kube.Config{Fleet: m, Leases: noLeases{}, Access: headerAccess{}, Settings: admission.Settings{}, Version: "test", Log: c.Log})
	c.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _ := headerAccess{}.Authenticate(r)
		mu.Lock()
		seen[r.Method+" "+r.URL.Path+" by "+user.Name]++
		mu.Unlock()
		api.ServeHTTP(w, r)
	})
	return m, c, func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}

// Of 5,000 nodes 4,900 match. A wrong number changes nothing; the right one changes exactly the
// listed nodes, not one that joined since.
func TestAnActionOnAllChangesExactlyTheListedOnes(t *testing.T) {
	m, c, asked := fleetOf(t, 5000)
	var changes []state.Change
	for i := range 100 {
		n := m.Snapshot().Node(fmt.Sprintf("node-%04d", i)).DeepCopy()
		n.Name, n.UID = fmt.Sprintf("spare-%04d", i), ""
		changes = append(changes, state.Remove(m.Snapshot().Node(fmt.Sprintf("node-%04d", i)), ""), state.Put(n, ""))
	}
	m.Apply(changes)
	srv := start(t, c)
	form := url.Values{"csrf": {csrf}, "do": {"delete"}, "all": {"nodes"}}
	_, body := srv.ask(t, "admin", "POST", "/actions/many?q=node-", form)
	for _, want := range []string{"Delete 4900 nodes", "Type 4900 to delete all of them", "By site", "<span>site-7</span><b>245</b>", "The first 20 of 4900", "and 4880 more"} {
		if !strings.Contains(body, want) {
			t.Errorf("the confirmation does not say %q: %.3000s", want, mainOf(body))
		}
	}
	m.Put(t, admintest.Node("node-late", "site-1", nil))
	for _, number := range []string{"", "4899", "10", "4900x"} {
		if code, answer := srv.begun(t, body, url.Values{"number": {number}}); code != http.StatusUnprocessableEntity || !strings.Contains(answer, "Nothing was changed") {
			t.Fatalf("with %q typed: %d", number, code)
		}
	}
	if n := m.Snapshot().Len(state.Nodes); n != 5001 || asked() != 0 {
		t.Fatalf("a wrong number has an effect: %d nodes, %d requests to the API", n, asked())
	}
	m.End(t, m.Snapshot().Node("node-4000"))
	code, answer := srv.begun(t, body, url.Values{"number": {"4900"}})
	if code != http.StatusOK || !strings.Contains(answer, "4899 of 4900 done, 1 failed") || !strings.Contains(answer, ">Gone<") {
		t.Fatalf("%d: %.800s", code, mainOf(answer))
	}
	if n := m.Snapshot().Len(state.Nodes); n != 101 || m.Snapshot().Node("node-late") == nil || m.Snapshot().Node("spare-0001") == nil {
		t.Errorf("%d nodes are left, want the 100 that do not match and the new one", n)
	}
	if asked() != 4899 {
		t.Errorf("the API got %d requests, want one for each node", asked())
	}
	if len(answer) > 200_000 {
		t.Errorf("the page of the action has %d bytes", len(answer))
	}
	at := "/actions/" + actionAt(answer)
	if _, only := srv.ask(t, "admin", "GET", at+"?show=failed", nil); strings.Count(only, `<th scope="row">`) != 1 {
		t.Errorf("the failed objects are shown as %s", mainOf(only))
	}
	if _, second := srv.ask(t, "admin", "GET", at+"?page=2", nil); !strings.Contains(second, "101–200 of 4900") {
		t.Errorf("the second page: %.500s", mainOf(second))
	}
}

func actionAt(body string) string {
	_, rest, _ := strings.Cut(body, `href="/actions/`)
	for !strings.HasPrefix(rest[12:], "?") {
		if _, rest, _ = strings.Cut(rest, `href="/actions/`); rest == "" {
			return ""
		}
	}
	return rest[:12]
}

// held delays the API's answers from the n-th on until it is released.
type held struct {
	http.Handler
	mu   sync.Mutex
	left int
	free chan struct{}
}

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.left--
	wait := h.left < 0
	h.mu.Unlock()
	if wait {
		<-h.free
	}
	h.Handler.ServeHTTP(w, r)
}

// A job that is stopped, by a user or by the end of the hub, finishes the objects that it has begun
// and leaves the rest.
func TestAStoppedJobFinishesBegunObjects(t *testing.T) {
	for _, hubEnds := range []bool{false, true} {
		m, c, _ := fleetOf(t, 1500)
		slow := &held{Handler: c.API, left: 300, free: make(chan struct{})}
		c.API = slow
		srv := start(t, c)
		_, body := srv.ask(t, "admin", "GET", "/actions/nodes/cordon?q=node-", nil)
		form := url.Values{"csrf": {csrf}, "items": {valueOf(body, "items")}}
		resp, _ := srv.ask(t, "admin", "POST", "/actions/nodes/cordon", form, "Cookie", nameHeader+"=admin")
		at := resp.Header.Get("Location")
		until(t, "the API is held", func() bool { slow.mu.Lock(); defer slow.mu.Unlock(); return slow.left <= -doneAtOnce })
		if hubEnds {
			srv.page.Stop()
		} else {
			srv.ask(t, "admin", "POST", at, url.Values{"csrf": {csrf}, "action": {"stop"}})
		}
		close(slow.free)
		until(t, "it has ended", func() bool {
			_, body = srv.ask(t, "admin", "GET", at, nil)
			return !strings.Contains(body, ">In progress<")
		})
		cordoned := 0
		for n := range m.Snapshot().Nodes() {
			if n.Spec.Unschedulable {
				cordoned++
			}
		}
		if cordoned != 300+doneAtOnce {
			t.Errorf("%d nodes are cordoned, want the %d that were begun", cordoned, 300+doneAtOnce)
		}
		if want := fmt.Sprintf("%d of 1500 done, %d failed", cordoned, 1500-cordoned); !strings.Contains(body, want) || !strings.Contains(body, "not done: it was stopped before") {
			t.Errorf("the action does not say %q: %.900s", want, mainOf(body))
		}
		if !hubEnds {
			continue
		}
		// The next hub has no jobs, and the rest can be started again.
		next := start(t, c)
		if _, body := next.ask(t, "admin", "GET", at, nil); !strings.Contains(body, "it was restarted") {
			t.Errorf("after a restart: %s", mainOf(body))
		}
		if _, body := next.ask(t, "admin", "GET", "/actions/nodes/cordon?q=node-", nil); !strings.Contains(body, fmt.Sprintf("Cordon %d nodes", 1500-cordoned)) {
			t.Errorf("after a restart: %.600s", mainOf(body))
		}
	}
}

func valueOf(body, name string) string {
	_, rest, _ := strings.Cut(body, `name="`+name+`" value="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

func TestADrainOfManyThatIsStoppedLeavesNoOrder(t *testing.T) {
	m, c, _ := fleetOf(t, 300)
	slow := &held{Handler: c.API, left: 100, free: make(chan struct{})}
	c.API = slow
	srv := start(t, c)
	_, body := srv.ask(t, "admin", "GET", "/actions/nodes/drain?q=node-", nil)
	form := url.Values{"csrf": {csrf}, "items": {valueOf(body, "items")}, "number": {"300"}, "until": {"15m"}}
	resp, _ := srv.ask(t, "admin", "POST", "/actions/nodes/drain", form, "Cookie", nameHeader+"=admin")
	at := resp.Header.Get("Location")
	until(t, "the API is held", func() bool { slow.mu.Lock(); defer slow.mu.Unlock(); return slow.left <= -doneAtOnce })
	srv.ask(t, "admin", "POST", at, url.Values{"csrf": {csrf}, "action": {"stop"}})
	close(slow.free)
	until(t, "it has ended", func() bool {
		_, body = srv.ask(t, "admin", "GET", at, nil)
		return !strings.Contains(body, ">In progress<")
	})
	cordoned, ordered := 0, 0
	for n := range m.Snapshot().Nodes() {
		if n.Spec.Unschedulable {
			cordoned++
		}
		if _, is := n.Annotations[state.DrainAnnotation]; is {
			ordered++
		}
	}
	if cordoned != 100+doneAtOnce || ordered != 0 || !strings.Contains(body, "stopped before it was drained; it stays cordoned") {
		t.Errorf("%d cordoned, %d to be drained: %.600s", cordoned, ordered, mainOf(body))
	}
}

func TestForgedPicksAreRefusedBeforeAnythingHappens(t *testing.T) {
	m := admintest.Work(t)
	srv := acting(t, m)
	before := m.Snapshot().Revision
	pi := m.Pick(state.Nodes, "", "pi-1")
	big := strings.Join(numbered("nodes//forged-%d=0a0a0a0a-0000-0000-0000-00000000aaaa", 16_000), " ")
	for _, c := range []struct {
		name, role, path string
		form             url.Values
		code             int
		says             string
	}{
		{"nothing", "admin", "/actions/many", url.Values{"do": {"delete"}}, 400, "Nothing is selected"},
		{"no name", "admin", "/actions/many", url.Values{"do": {"delete"}, "pick": {"nodes//"}}, 400, "names no known object"},
		{"a kind without actions", "admin", "/actions/many", url.Values{"do": {"delete"}, "pick": {"secrets/default/key=1"}}, 400, "object without actions"},
		{"no kind", "admin", "/actions/many", url.Values{"do": {"delete"}, "pick": {"/pi-1=1"}}, 400, "object without actions"},
		{"too many slashes", "admin", "/actions/many", url.Values{"do": {"delete"}, "pick": {"nodes//../pi-1=1"}}, 400, "names no known object"},
		{"another's uid", "admin", "/actions/many", url.Values{"do": {"delete"}, "pick": {"nodes//pi-1=1"}}, 409, "Everything is gone"},
		{"no uid", "admin", "/actions/many", url.Values{"do": {"delete"}, "pick": {"nodes//pi-1"}}, 409, "Everything is gone"},
		{"no such action", "admin", "/actions/many", url.Values{"do": {"explode"}, "pick": {pi}}, 400, "Do what?"},
		{"an action for one object at a time", "admin", "/actions/many", url.Values{"do": {"settings"}, "pick": {m.Pick(state.Sites, "", "oslo")}}, 400, "Do what?"},
		{"all objects of a kind without a list", "admin", "/actions/many", url.Values{"do": {"delete"}, "all": {"secrets"}}, 400, "names no known object"},
		{"a megabyte of names", "admin", "/actions/many", url.Values{"do": {"delete"}, "picks": {big}}, 400, "Too many"},
		{"a viewer", "viewer", "/actions/many", url.Values{"do": {"delete"}, "pick": {pi}}, 403, "Not for your role"},
		{"a viewer begins", "viewer", "/actions/many/delete", url.Values{"items": {pi}}, 403, "Not for your role"},
		{"another kind than the action's", "admin", "/actions/pods/delete", url.Values{"items": {pi}}, 400, "names no known object"},
		{"a kind that lacks the action", "admin", "/actions/many/scale", url.Values{"items": {pi + " " + m.Pick(state.Deployments, "default", "shop")}}, 400, "does not apply to"},
		{"begun with nothing", "admin", "/actions/many/delete", url.Values{}, 400, "Nothing is selected"},
		{"begun with a megabyte", "admin", "/actions/nodes/delete", url.Values{"items": {strings.ReplaceAll(big, "nodes//", "/")}, "number": {"16000"}}, 400, "Too many"},
	} {
		c.form.Set("csrf", csrf)
		resp, body := srv.ask(t, c.role, "POST", c.path, c.form, "Cookie", nameHeader+"="+c.role)
		if resp.StatusCode != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d, want %d and %q: %.300s", c.name, resp.StatusCode, c.code, c.says, mainOf(body))
		}
	}
	// An object that is named twice counts once, so that repeating it does not reach the number.
	twice := url.Values{"csrf": {csrf}, "items": {strings.Repeat(m.Form(state.Nodes, "", "bone-1")+" ", 50)}, "number": {"50"}}
	if resp, _ := srv.ask(t, "viewer", "POST", "/actions/nodes/delete", twice); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer deletes: %d", resp.StatusCode)
	}
	if now := m.Snapshot().Revision; now != before {
		t.Errorf("something was changed: revision %d, was %d", now, before)
	}
	if resp, _ := srv.ask(t, "admin", "POST", "/actions/many", url.Values{"do": {"delete"}, "pick": {pi}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("without the form's token: %d", resp.StatusCode)
	}
}

func TestRowsCanBePickedByWhoMayAct(t *testing.T) {
	m := admintest.Work(t)
	srv := acting(t, m)
	for path, want := range map[string][]string{
		"/nodes": {m.Pick(state.Nodes, "", "pi-1")}, "/pods": {m.Pick(state.Pods, "default", "watch-1")}, "/sites": {m.Pick(state.Sites, "", "oslo")},
		"/workloads": {m.Pick(state.Deployments, "default", "shop"), m.Pick(state.CronJobs, "default", "nightly-report"), m.Pick(state.Jobs, "press", "press-backup")},
	} {
		_, body := srv.ask(t, "operator", "GET", path, nil)
		for _, pick := range want {
			if !strings.Contains(body, `name="pick" value="`+pick+`"`) {
				t.Errorf("%s has no box for %s", path, pick)
			}
		}
		if strings.Contains(body, " checked") || !strings.Contains(body, `name="do"`) {
			t.Errorf("%s has a ticked box, or no action", path)
		}
		if _, body := srv.ask(t, "viewer", "GET", path, nil); strings.Contains(body, `name="pick"`) || strings.Contains(body, `name="do"`) || strings.Contains(body, "data-all") {
			t.Errorf("a viewer picks on %s", path)
		}
	}
}

func TestTheBarOffersWhatKindsHaveInCommonFirst(t *testing.T) {
	a := &frame.Request{Actions: actions(nil), May: func(string, string) bool { return true }}
	b := frame.PickBarOf(a, url.Values{"q": {"x y"}, "sort": {""}}, 5, 5, state.Deployments, state.DaemonSets, state.StatefulSets, state.CronJobs, state.Jobs)
	var names []string
	for _, d := range b.Does {
		names = append(names, d.Name)
	}
	if want := "restart undo resume scale suspend pause run delete"; strings.Join(names, " ") != want || b.Href != "/actions/many?q=x+y" || b.Total != 0 {
		t.Errorf("%v, want %s; %+v", names, want, b)
	}
	if i := slices.IndexFunc(names, func(name string) bool { return name == "resume" }); b.Does[i].Kinds != "deployments cronjobs jobs" {
		t.Errorf("resume is for %s", b.Does[i].Kinds)
	}
	a.May = func(string, string) bool { return false }
	if frame.PickBarOf(a, nil, 5, 5, state.Nodes) != nil {
		t.Error("a viewer has a bar of actions")
	}
}
