package admin

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// headerAccess authenticates API requests by the header that the page's tests use.
type headerAccess struct{}

func (headerAccess) Authenticate(r *http.Request) (access.User, error) {
	c, err := r.Cookie(nameHeader)
	if err != nil {
		return access.User{}, err
	}
	return access.User{Name: "test-" + c.Value, Role: access.Role(c.Value)}, nil
}

func (headerAccess) CheckForm(*http.Request, access.User) error { return nil }

// acting starts a page with the real API.
func acting(t testing.TB, m *admintest.Memory) *server {
	c := configOf(m)
	equip(&c)
	c.API = kube.New(kube.Config{Fleet: m, Leases: noLeases{}, Access: headerAccess{}, Settings: admission.Settings{NotReadySeconds: 300, UnreachableSeconds: 300}, Version: "test", Log: c.Log})
	return start(t, c)
}

// do posts an action's form and returns the page with the result.
func (s *server) do(t testing.TB, role, path string, form url.Values) (code int, body string) {
	t.Helper()
	form.Set("csrf", csrf)
	resp, body := s.ask(t, role, "POST", path, form, "Cookie", nameHeader+"="+role)
	if to := resp.Header.Get("Location"); to != "" {
		until(t, "what "+path+" began is done", func() bool {
			resp, body = s.ask(t, role, "GET", to, nil)
			return !strings.Contains(body, ">In progress<")
		})
	}
	return resp.StatusCode, body
}

// Each action changes its object as its page says, and its undo reverts the change.
func TestEachActionChangesItsObjectAndCanBeUndone(t *testing.T) {
	m := admintest.Work(t)
	srv := acting(t, m)
	node := func() *corev1.Node { return m.Snapshot().Node("pi-1") }
	shop := func() *appsv1.Deployment { return m.Snapshot().Deployment("default", "shop") }
	watchImage := func() string {
		return m.Snapshot().Get(state.Key{Kind: state.DaemonSets, Namespace: "default", Name: "watch"}).(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image
	}
	db := func() *appsv1.StatefulSet {
		set, _ := m.Snapshot().Get(state.Key{Kind: state.StatefulSets, Namespace: "default", Name: "db"}).(*appsv1.StatefulSet)
		return set
	}
	site := func() *fleet.Site { return m.Snapshot().Site("oslo") }
	taint := "maintenance=x:NoSchedule"
	taints := func(node string) string {
		var all []string
		for _, x := range m.Snapshot().Node(node).Spec.Taints {
			all = append(all, x.ToString())
		}
		slices.Sort(all)
		return strings.Join(all, ",")
	}
	for _, c := range []struct {
		path  string
		kind  state.Kind
		ns    string
		name  string
		form  url.Values
		state func() string
		want  string // afterwards
		undo  bool
	}{
		{"/actions/nodes/cordon", state.Nodes, "", "pi-1", nil, func() string { return fmt.Sprint(node().Spec.Unschedulable) }, "true", true},
		{"/actions/nodes/label", state.Nodes, "", "pi-1", url.Values{"key": {"room"}, "value": {"attic"}, "how": {"set"}}, func() string { return node().Labels["room"] }, "attic", true},
		{"/actions/nodes/label", state.Nodes, "", "pi-1", url.Values{"key": {fleet.LabelBoard}, "how": {"remove"}}, func() string { return node().Labels[fleet.LabelBoard] }, "", true},
		{"/actions/nodes/taint", state.Nodes, "", "pi-1", url.Values{"key": {"maintenance"}, "value": {"x"}, "effect": {"NoSchedule"}, "how": {"set"}}, func() string { return taints("pi-1") }, taint, true},
		{"/actions/nodes/taint", state.Nodes, "", "pi-8", url.Values{"key": {"old"}, "effect": {"NoSchedule"}, "how": {"remove"}}, func() string { return taints("pi-8") }, "old:NoExecute", true},
		{"/actions/deployments/scale", state.Deployments, "default", "shop", url.Values{"replicas": {"5"}}, func() string { return fmt.Sprint(*shop().Spec.Replicas) }, "5", true},
		{"/actions/deployments/pause", state.Deployments, "default", "shop", nil, func() string { return fmt.Sprint(shop().Spec.Paused) }, "true", true},
		{"/actions/deployments/undo", state.Deployments, "default", "shop", url.Values{"revision": {"0"}}, func() string {
			return shop().Spec.Template.Spec.Containers[0].Image + shop().Spec.Template.Labels["pod-template-hash"]
		}, "registry.example/shop:1", true},
		{"/actions/deployments/restart", state.Deployments, "default", "shop", nil, func() string { return fmt.Sprint(shop().Spec.Template.Annotations[restarted] != "") }, "true", false},
		{"/actions/daemonsets/undo", state.DaemonSets, "default", "watch", url.Values{"revision": {"0"}}, watchImage, "registry.example/watch:2", true},
		{"/actions/daemonsets/undo", state.DaemonSets, "default", "watch", url.Values{"revision": {"1"}}, watchImage, "registry.example/watch:1", true},
		{"/actions/daemonsets/restart", state.DaemonSets, "default", "watch", nil, func() string {
			return fmt.Sprint(m.Snapshot().Get(state.Key{Kind: state.DaemonSets, Namespace: "default", Name: "watch"}).(*appsv1.DaemonSet).Spec.Template.Annotations[restarted] != "")
		}, "true", false},
		{"/actions/statefulsets/scale", state.StatefulSets, "default", "db", url.Values{"replicas": {"7"}}, func() string { return fmt.Sprint(*db().Spec.Replicas) }, "7", true},
		{"/actions/statefulsets/undo", state.StatefulSets, "default", "db", url.Values{"revision": {"0"}}, func() string { return db().Spec.Template.Spec.Containers[0].Image }, "registry.example/db:1", true},
		{"/actions/statefulsets/restart", state.StatefulSets, "default", "db", nil, func() string { return fmt.Sprint(db().Spec.Template.Annotations[restarted] != "") }, "true", false},
		{"/actions/statefulsets/delete", state.StatefulSets, "default", "db", nil, func() string { return fmt.Sprint(db() == nil) }, "true", false},
		{"/actions/sites/hold", state.Sites, "", "oslo", nil, func() string { return string(site().Spec.DisruptionPolicy) }, "Hold", true},
		{"/actions/sites/maintenance", state.Sites, "", "oslo", url.Values{"for": {"2h"}, "reason": {"new switch"}}, func() string {
			if x := site().Spec.Maintenance; x != nil {
				return x.Reason
			}
			return ""
		}, "new switch", true},
		{"/actions/sites/settings", state.Sites, "", "oslo", url.Values{"nodeMonitorGracePeriod": {"2m"}, "nodeEvictionRate": {"0.5"}, "description": {"the shop"}}, func() string {
			s := site().Spec
			if s.NodeEvictionRate == nil {
				return ""
			}
			return fmt.Sprint(s.NodeMonitorGracePeriod.Duration, *s.NodeEvictionRate, s.Description)
		}, "2m0s 0.5the shop", true},
		{"/actions/pods/evict", state.Pods, "default", "kiosk-7d9f-abcde", nil, func() string {
			return fmt.Sprint(m.Snapshot().Pod("default", "kiosk-7d9f-abcde").DeletionTimestamp != nil)
		}, "true", false},
		{"/actions/pods/delete", state.Pods, "default", "kiosk-7d9f-klmno", nil, func() string { return fmt.Sprint(m.Snapshot().Pod("default", "kiosk-7d9f-klmno") == nil) }, "true", false},
		{"/actions/deployments/delete", state.Deployments, "default", "kiosk", nil, func() string { return fmt.Sprint(m.Snapshot().Deployment("default", "kiosk") == nil) }, "true", false},
		{"/actions/nodes/delete", state.Nodes, "", "bone-4", nil, func() string { return fmt.Sprint(m.Snapshot().Node("bone-4") == nil) }, "true", false},
	} {
		before := c.state()
		form := url.Values{"item": {m.Form(c.kind, c.ns, c.name)}}
		_, asked := srv.ask(t, "admin", "GET", c.path+"?"+form.Encode(), nil)
		if !strings.Contains(asked, c.name) || !strings.Contains(asked, `formaction="`+c.path+`"`) {
			t.Errorf("the confirmation of %s does not name its object: %.600s", c.path, asked)
		}
		for k, v := range c.form {
			form[k] = v
		}
		if code, body := srv.do(t, "viewer", c.path, form); code != http.StatusForbidden || c.state() != before {
			t.Errorf("%s by a viewer: %d, %q: %.300s", c.path, code, c.state(), body)
		}
		code, body := srv.do(t, "admin", c.path, form)
		if code != http.StatusOK || c.state() != c.want {
			t.Errorf("%s: %d, %q, want %q: %.1500s", c.path, code, c.state(), c.want, mainOf(body))
			continue
		}
		if strings.Contains(body, "Undo</button>") != c.undo {
			t.Errorf("%s offers to be undone: %v, want %v: %.1500s", c.path, !c.undo, c.undo, mainOf(body))
			continue
		}
		if !c.undo {
			continue
		}
		id := undoButton.FindStringSubmatch(body)[1]
		if code, body := srv.do(t, "admin", "/actions/"+id, url.Values{"action": {"undo"}}); code != http.StatusOK || c.state() != before {
			t.Errorf("undo of %s: %d, %q, want %q: %.1500s", c.path, code, c.state(), before, mainOf(body))
		}
		if code, _ := srv.do(t, "admin", "/actions/"+id, url.Values{"action": {"undo"}}); code != http.StatusConflict {
			t.Errorf("undo of %s once more: %d, want 409", c.path, code)
		}
	}
}

// The undo button is on the object's page, or on the job's page if the action takes long.
var undoButton = regexp.MustCompile(`(?:formaction="|<form id="act" method="post" action=")/actions/([A-Z0-9]+)"`)

func mainOf(body string) string {
	_, body, _ = strings.Cut(body, "<main")
	return strings.Join(strings.Fields(body), " ")
}

func TestABulkActionIsDoneToExactlyWhatWasShown(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	_, body := srv.ask(t, "admin", "GET", "/actions/nodes/cordon?site=oslo", nil)
	if !strings.Contains(body, "3 nodes") || !strings.Contains(body, "is cordoned already") || strings.Contains(body, "bone-1") {
		t.Errorf("the confirmation does not say what is cordoned already: %s", mainOf(body))
	}
	form := url.Values{"item": {m.Form(state.Nodes, "", "pi-1"), m.Form(state.Nodes, "", "pi-2"), m.Form(state.Nodes, "", "pi-3")}}
	// Before the action begins, one node is added, one is deleted, and one is replaced by a node of
	// the same name.
	m.Put(t, admintest.Node("pi-4", "oslo", nil))
	gone := m.Snapshot().Node("pi-2")
	_, _ = m.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(gone, ""), state.Remove(s.Node("pi-3"), ""), state.Put(admintest.Node("pi-3", "oslo", nil), "")}, nil
	})
	code, body := srv.do(t, "admin", "/actions/nodes/cordon", form)
	s := m.Snapshot()
	if code != http.StatusOK || !s.Node("pi-1").Spec.Unschedulable || s.Node("pi-3").Spec.Unschedulable || s.Node("pi-4").Spec.Unschedulable {
		t.Errorf("cordoned the wrong ones: %d", code)
	}
	for _, want := range []string{"1 of 3 done, 2 failed", "it is gone", "a new object has its name"} {
		if !strings.Contains(body, want) {
			t.Errorf("the result does not say %q: %s", want, mainOf(body))
		}
	}
	if strings.Count(body, ">Gone<") != 2 {
		t.Errorf("a missing object failed with another sentence: %s", mainOf(body))
	}
	for _, form := range []url.Values{{}, {"item": {"nonsense"}}, {"items": {strings.Join(numbered("/node-%d", mostItems+1), " ")}}} {
		if code, _ := srv.do(t, "admin", "/actions/nodes/cordon", form); code != http.StatusBadRequest {
			t.Errorf("a form with %d items: %d, want 400", len(form["item"]), code)
		}
	}
}

func TestWhatTheAPIRefusesIsToldByName(t *testing.T) {
	m := admintest.Work(t)
	srv := acting(t, m)
	for _, c := range []struct {
		path, kind, name string
		form             url.Values
		want             string
	}{
		{"/actions/nodes/label", "nodes", "pi-1", url.Values{"key": {"a b"}}, "cannot be the name of a label"},
		{"/actions/nodes/taint", "nodes", "pi-1", url.Values{"key": {"a"}, "effect": {"Sometimes"}}, "Sometimes"},
		{"/actions/deployments/scale", "deployments", "shop", url.Values{"replicas": {"-1"}}, "is not a number of pods"},
		{"/actions/sites/settings", "sites", "oslo", url.Values{"nodeMonitorGracePeriod": {"5s"}}, "must be at least 40s"},
		{"/actions/sites/settings", "sites", "oslo", url.Values{"nodeEvictionRate": {"fast"}}, "is not a number"},
		{"/actions/sites/settings", "sites", "oslo", url.Values{"unhealthyZoneThreshold": {"NaN"}}, "&#34;NaN&#34; is not a number"},
		{"/actions/sites/maintenance", "sites", "oslo", url.Values{"for": {"until"}, "until": {"2001-01-01T00:00"}}, "is in the past"},
	} {
		ns := ""
		if c.kind == "deployments" {
			ns = "default"
		}
		form := url.Values{"item": {m.Form(state.Kind(c.kind), ns, c.name)}}
		for k, v := range c.form {
			form[k] = v
		}
		if _, body := srv.do(t, "admin", c.path, form); !strings.Contains(body, c.want) {
			t.Errorf("%s with %v does not say %q: %s", c.path, c.form, c.want, mainOf(body))
		}
	}
}

// until waits for a condition.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within five minutes: %s", what)
		}
	}
}

func TestADrainWaitsForBudgetsAndTellsWhichOneBlocks(t *testing.T) {
	m := admintest.Work(t)
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"})
	owned := func(name, node, app string) *corev1.Pod {
		return admintest.Pod(name, node, func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": app}
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		})
	}
	two := intstr.FromInt32(2)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "shop-stays-open", Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}}}
	m.Put(t, admintest.Node("pi-7", "oslo", nil), owned("shop-1", "pi-7", "shop"), owned("shop-2", "pi-1", "shop"), owned("radio-1", "pi-7", "radio"), budget)
	srv := acting(t, m)
	item := m.Form(state.Nodes, "", "pi-7")
	_, body := srv.ask(t, "admin", "GET", "/actions/nodes/drain?"+url.Values{"item": {item}}.Encode(), nil)
	if !strings.Contains(body, ">shop-stays-open</a> lets them leave one after the other") || !strings.Contains(body, ">radio-1</a>") {
		t.Errorf("the confirmation does not list the pods: %s", mainOf(body))
	}
	form := url.Values{"item": {item}, "until": {"15m"}, "csrf": {csrf}}
	resp, _ := srv.ask(t, "admin", "POST", "/actions/nodes/drain", form, "Cookie", nameHeader+"=admin")
	at := resp.Header.Get("Location")
	says := func(want string) func() bool {
		return func() bool { _, body = srv.ask(t, "admin", "GET", at, nil); return strings.Contains(body, want) }
	}
	until(t, "the budget that blocks is named", says("The disruption budget shop-stays-open needs 2 healthy pods and has 2 currently"))
	s := m.Snapshot()
	if !s.Node("pi-7").Spec.Unschedulable || s.Pod("default", "radio-1").DeletionTimestamp == nil || s.Pod("default", "shop-1").DeletionTimestamp != nil {
		t.Errorf("the drain told the wrong pods to leave: %s", mainOf(body))
	}
	leave := func(name string) {
		_, _ = m.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(s.Pod("default", name), "")}, nil
		})
	}
	leave("radio-1")
	until(t, "the pod that left is counted", says("1 of 2 pods have left"))
	m.Put(t, owned("shop-3", "pi-1", "shop")) // its owner has made a new one elsewhere
	until(t, "the pod is told to leave once the budget allows it", func() bool { return m.Snapshot().Pod("default", "shop-1").DeletionTimestamp != nil })
	leave("shop-1")
	until(t, "the drain is over", says("Undo</button>"))
	if !strings.Contains(body, "1 of 1 done") || !strings.Contains(body, "2 of 2 pods have left") {
		t.Errorf("the drain does not say that it has ended: %s", mainOf(body))
	}
	if srv.do(t, "admin", at, url.Values{"action": {"undo"}}); m.Snapshot().Node("pi-7").Spec.Unschedulable {
		t.Error("the undone drain has left the node cordoned")
	}
}

func TestADrainLeavesPodsThatNobodyMakesAgain(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	item := m.Form(state.Nodes, "", "pi-1")
	if _, body := srv.ask(t, "admin", "GET", "/actions/nodes/drain?"+url.Values{"item": {item}}.Encode(), nil); !strings.Contains(body, "2 pods without an owner") {
		t.Errorf("the confirmation does not list the pods without an owner: %s", mainOf(body))
	}
	_, body := srv.do(t, "admin", "/actions/nodes/drain", url.Values{"item": {item}, "until": {"15m"}})
	if !strings.Contains(body, "1 failed") || !strings.Contains(body, "nothing recreates it") || m.Snapshot().Pod("default", "kiosk-7d9f-abcde").DeletionTimestamp != nil {
		t.Errorf("a drain deleted pods without an owner, or does not say why they stay: %s", mainOf(body))
	}
}

func TestADrainCanBeStopped(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	resp, _ := srv.ask(t, "admin", "POST", "/actions/nodes/drain", url.Values{"item": {m.Form(state.Nodes, "", "pi-1")}, "bare": {"yes"}, "csrf": {csrf}}, "Cookie", nameHeader+"=admin")
	at := resp.Header.Get("Location")
	if code, _ := srv.do(t, "viewer", at, url.Values{"action": {"stop"}}); code != http.StatusForbidden {
		t.Errorf("a viewer stops a drain: %d, want 403", code)
	}
	srv.do(t, "admin", at, url.Values{"action": {"stop"}})
	until(t, "the drain has stopped", func() bool {
		_, body := srv.ask(t, "viewer", "GET", at, nil)
		return strings.Contains(body, "Stopped") && strings.Contains(body, "it stays cordoned")
	})
}

// A failed undo can be repeated, and repeats only what failed.
func TestAFailedUndoCanBeRepeated(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	c := configOf(m)
	equip(&c)
	api := kube.New(kube.Config{Fleet: m, Leases: noLeases{}, Access: headerAccess{}, Version: "test", Log: c.Log})
	var broken atomic.Pointer[string] // requests that the database does not answer
	c.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := broken.Load(); name != nil && strings.HasSuffix(r.URL.Path, *name) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		api.ServeHTTP(w, r)
	})
	srv := start(t, c)
	cordoned := func() (is [2]bool) {
		return [2]bool{m.Snapshot().Node("pi-1").Spec.Unschedulable, m.Snapshot().Node("pi-2").Spec.Unschedulable}
	}
	_, body := srv.do(t, "admin", "/actions/nodes/cordon", url.Values{"item": {m.Form(state.Nodes, "", "pi-1"), m.Form(state.Nodes, "", "pi-2")}})
	at := "/actions/" + undoButton.FindStringSubmatch(body)[1]
	undo := url.Values{"action": {"undo"}}

	for _, step := range []struct {
		what, broken string
		code         int
		want         [2]bool
		offers       bool
	}{
		{"while the database fails for one node", "/pi-2", http.StatusOK, [2]bool{false, true}, true},
		{"while it still fails", "/pi-2", http.StatusOK, [2]bool{false, true}, true},
		{"when the database answers", "/none", http.StatusOK, [2]bool{}, false},
		{"once more", "/none", http.StatusConflict, [2]bool{}, false},
	} {
		broken.Store(&step.broken)
		if code, body := srv.do(t, "admin", at, undo); code != step.code || cordoned() != step.want {
			t.Errorf("undone %s: %d, cordoned are %v, want %v: %s", step.what, code, cordoned(), step.want, mainOf(body))
		}
		if _, body := srv.ask(t, "admin", "GET", at, nil); strings.Contains(body, "Undo</button>") != step.offers {
			t.Errorf("undone %s: it can be undone again: %v, want %v", step.what, !step.offers, step.offers)
		}
	}
}

// A confirmation that is shown again after an error still leads back to the list that it came from.
func TestAConfirmationShownAgainLeadsBack(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	one := url.Values{"item": {m.Form(state.Nodes, "", "pi-1")}}
	for _, c := range []struct {
		path, query, back string
		wrong             url.Values
	}{
		{"/actions/nodes/label", "site=oslo&sort=-pods&status=ready", "/nodes?site=oslo&sort=-pods&status=ready", url.Values{"key": {"no label"}}},
		{"/actions/nodes/label", one.Encode(), "/nodes/pi-1", url.Values{"key": {"no label"}}},
		{"/actions/nodes/drain", one.Encode(), "/nodes/pi-1", url.Values{"look": {"yes"}}},
		{"/actions/nodes/drain", one.Encode(), "/nodes/pi-1", url.Values{"until": {"tomorrow"}}},
	} {
		_, body := srv.ask(t, "admin", "GET", c.path+"?"+c.query, nil)
		for _, form := range []url.Values{nil, c.wrong, c.wrong} {
			if form != nil {
				form.Set("csrf", csrf)
				form.Set("back", html.UnescapeString(valueOf(body, "back")))
				form["item"] = one["item"]
				_, body = srv.ask(t, "admin", "POST", c.path, form)
			}
			if !strings.Contains(body, `<a href="`+html.EscapeString(c.back)+`">Back</a>`) || !strings.Contains(body, `href="`+html.EscapeString(c.back)+`">Cancel</a>`) {
				t.Errorf("%s?%s with %v does not lead back to %s: %.400s", c.path, c.query, form, c.back, mainOf(body))
			}
		}
	}
}

// fieldsOf returns the fields of a form as a browser sends them without a change.
func fieldsOf(body string) url.Values {
	form := url.Values{}
	for _, tag := range regexp.MustCompile(`<input form="act" [^>]*>|<input type="hidden" form="act" [^>]*>`).FindAllString(body, -1) {
		name := regexp.MustCompile(` name="([^"]*)"`).FindStringSubmatch(tag)
		value := regexp.MustCompile(` value="([^"]*)"`).FindStringSubmatch(tag)
		text := html.UnescapeString(value[1])
		if strings.Contains(tag, `type="text"`) { // a text field has one line
			text = strings.NewReplacer("\r", "", "\n", "").Replace(text)
		}
		form.Add(name[1], strings.ReplaceAll(text, "\n", "\r\n"))
	}
	for _, s := range regexp.MustCompile(`(?s)<select form="act" name="([^"]*)">.*?<option value="([^"]*)" selected>`).FindAllStringSubmatch(body, -1) {
		form.Set(s[1], html.UnescapeString(s[2]))
	}
	return form
}

// Two users have a site's settings open. Each one's form changes only the fields that they changed.
func TestSettingsOfASiteInTwoTabs(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	at := "/actions/sites/settings?" + url.Values{"item": {m.Form(state.Sites, "", "oslo")}}.Encode()
	spec := func() string {
		s := m.Snapshot().Site("oslo").Spec
		return strings.Join([]string{s.Description, s.Location, printed(s.LeaseInterval), printed(s.NodeEvictionRate), string(s.DisruptionPolicy)}, "|")
	}
	open := func() url.Values {
		_, body := srv.ask(t, "admin", "GET", at, nil)
		return fieldsOf(body)
	}
	send := func(form url.Values, changes ...string) (body string) {
		for i := 0; i < len(changes); i += 2 {
			form.Set(changes[i], changes[i+1])
		}
		_, body = srv.do(t, "admin", "/actions/sites/settings", form)
		return body
	}
	send(open(), "description", "the shop", "location", "Quay 1", "leaseInterval", "20s", "disruptionPolicy", "")
	first, second, third := open(), open(), open()
	send(first, "leaseInterval", "60s", "disruptionPolicy", "Hold", "description", "")
	send(second, "location", "Quay 7")
	if got := spec(); got != "|Quay 7|1m0s||Hold" {
		t.Errorf("after both have saved: %s", got)
	}
	// A form that is shown again has the other users' changes and the typed values.
	again := fieldsOf(send(third, "nodeEvictionRate", "fast", "leaseInterval", "30s"))
	if again.Get("location") != "Quay 7" || again.Get("description") != "" || again.Get("nodeEvictionRate") != "fast" || again.Get("leaseInterval") != "30s" {
		t.Errorf("shown again, the form has %v", again)
	}
	send(again, "nodeEvictionRate", "0.5")
	if got := spec(); got != "|Quay 7|30s|0.5|Hold" {
		t.Errorf("after the third has saved: %s", got)
	}
}

// A refused reason is not lost: the form is shown again with all values. printed is a setting's
// value; "": unset.
func printed[T any](v *T) string {
	if v == nil {
		return ""
	}
	if d, ok := any(v).(*metav1.Duration); ok {
		return d.Duration.String()
	}
	return fmt.Sprint(*v)
}

func TestMaintenanceThatIsRefusedIsStillTyped(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	long := strings.Repeat("the cable is cut ", 100)
	form := url.Values{"item": {m.Form(state.Sites, "", "oslo")}, "for": {"until"}, "until": {"2999-01-01T00:00"}, "reason": {long}}
	code, body := srv.do(t, "admin", "/actions/sites/maintenance", form)
	again := fieldsOf(body)
	if code != http.StatusUnprocessableEntity || !strings.Contains(body, "spec.maintenance.reason") || again.Get("reason") != long || !strings.Contains(body, `value="2999-01-01T00:00"`) {
		t.Errorf("%d: %s", code, mainOf(body))
	}
	form.Set("reason", "the cable is cut")
	if code, body = srv.do(t, "admin", "/actions/sites/maintenance", form); code != http.StatusOK {
		t.Errorf("%d: %s", code, mainOf(body))
	}
	if got := m.Snapshot().Site("oslo").Spec.Maintenance; got == nil || got.Reason != "the cable is cut" {
		t.Errorf("the site is in maintenance: %+v", got)
	}
}

// A form changes no value that kubectl can write and a field cannot show.
func TestSettingsOfASiteKeepTheLinesOfItsDescription(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := acting(t, m)
	was := m.Snapshot().Site("oslo").DeepCopy()
	was.Spec.Description, was.Spec.Location = "the key is next door\nat Mrs Berg's \n\tafter nine\n", "\nQuay 1"
	m.Put(t, was)
	at := "/actions/sites/settings?" + url.Values{"item": {m.Form(state.Sites, "", "oslo")}}.Encode()
	_, body := srv.ask(t, "admin", "GET", at, nil)
	form := fieldsOf(body)
	form.Set("leaseInterval", "60s")
	if code, body := srv.do(t, "admin", "/actions/sites/settings", form); code != http.StatusOK {
		t.Errorf("%d: %s", code, mainOf(body))
	}
	if s := m.Snapshot().Site("oslo").Spec; s.Description != was.Spec.Description || s.Location != was.Spec.Location || printed(s.LeaseInterval) != "1m0s" {
		t.Errorf("the site has %q, %q, %s", s.Description, s.Location, printed(s.LeaseInterval))
	}
	_, body = srv.ask(t, "admin", "GET", at, nil)
	form = fieldsOf(body)
	form.Set("description", "")
	srv.do(t, "admin", "/actions/sites/settings", form)
	if s := m.Snapshot().Site("oslo").Spec; s.Description != "" || s.Location != was.Spec.Location {
		t.Errorf("with its description taken away, the site has %q, %q", s.Description, s.Location)
	}
}

// Two users roll back the same bad version. The second request, or a double click, does not bring
// it back.
func TestASecondRollBackDoesNotRollForward(t *testing.T) {
	m := admintest.Work(t)
	srv := acting(t, m)
	image := func() string {
		return m.Snapshot().Deployment("default", "shop").Spec.Template.Spec.Containers[0].Image
	}
	at := "/actions/deployments/undo?" + url.Values{"item": {m.Form(state.Deployments, "default", "shop")}}.Encode()
	_, page := srv.ask(t, "admin", "GET", at, nil)
	first, second, named := fieldsOf(page), fieldsOf(page), fieldsOf(page)
	srv.do(t, "admin", "/actions/deployments/undo", first)
	if image() != "registry.example/shop:1" {
		t.Fatalf("rolled back, it has %s", image())
	}
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash1"}).DeepCopyObject().(*appsv1.ReplicaSet)
	rs.Annotations["deployment.kubernetes.io/revision"] = "3" // the Deployment's new number
	m.Put(t, rs)
	if _, body := srv.do(t, "operator", "/actions/deployments/undo", second); image() != "registry.example/shop:1" || !strings.Contains(body, "somebody has changed it since you looked at it") {
		t.Errorf("rolled back by a second user, it has %s: %s", image(), mainOf(body))
	}
	named.Set("revision", "2") // an explicit number always means that version
	if _, body := srv.do(t, "operator", "/actions/deployments/undo", named); image() != "registry.example/shop:2" {
		t.Errorf("rolled to version 2, it has %s: %s", image(), mainOf(body))
	}
}

// An undo does not revert what other users have changed since.
func TestAnUndoKeepsLaterChangesOfOthers(t *testing.T) {
	m := admintest.Work(t)
	srv := acting(t, m)
	node := func() *corev1.Node { return m.Snapshot().Node("pi-1") }
	shop := func() *appsv1.Deployment { return m.Snapshot().Deployment("default", "shop") }
	for _, c := range []struct {
		rule, path string
		kind       state.Kind
		of         state.Object
		form       url.Values
		other      func(o state.Object)
		has        func() string
		want, says string
	}{
		{"a running drain", "nodes/cordon", state.Nodes, node(), nil, func(o state.Object) {
			o.SetAnnotations(map[string]string{state.DrainAnnotation: state.DrainOrder{Timeout: "1h", Force: true, DeleteEmptyDirData: true}.String()})
		}, func() string {
			return fmt.Sprint(node().Spec.Unschedulable, node().Annotations[state.DrainAnnotation] != "")
		}, "true true", "somebody has started another drain: stop it first"},
		{"a label", "nodes/label", state.Nodes, node(), url.Values{"key": {"room"}, "value": {"attic"}, "how": {"set"}}, func(o state.Object) { o.GetLabels()["room"] = "cellar" },
			func() string { return node().Labels["room"] }, "cellar", frame.ErrChangedSince.Error()},
		{"a taint", "nodes/taint", state.Nodes, node(), url.Values{"key": {"wet"}, "value": {"a"}, "effect": {"NoSchedule"}, "how": {"set"}}, func(o state.Object) {
			o.(*corev1.Node).Spec.Taints = []corev1.Taint{{Key: "wet", Value: "b", Effect: "NoSchedule"}}
		}, func() string { return fmt.Sprint(node().Spec.Taints) }, "[{wet b NoSchedule <nil>}]", frame.ErrChangedSince.Error()},
		{"a number of pods", "deployments/scale", state.Deployments, shop(), url.Values{"replicas": {"5"}}, func(o state.Object) { *o.(*appsv1.Deployment).Spec.Replicas = 10 },
			func() string { return fmt.Sprint(*shop().Spec.Replicas) }, "10", frame.ErrChangedSince.Error()},
		{"a version", "deployments/undo", state.Deployments, shop(), url.Values{"revision": {"1"}}, func(o state.Object) { o.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image = "shop:9" },
			func() string { return shop().Spec.Template.Spec.Containers[0].Image }, "shop:9", frame.ErrChangedSince.Error()},
		{"a site's policy", "sites/hold", state.Sites, m.Snapshot().Site("oslo"), nil, func(o state.Object) { o.(*fleet.Site).Spec.DisruptionPolicy = fleet.Evict },
			func() string { return string(m.Snapshot().Site("oslo").Spec.DisruptionPolicy) }, "Evict", frame.ErrChangedSince.Error()},
	} {
		form := url.Values{"item": {m.Form(c.kind, c.of.GetNamespace(), c.of.GetName())}}
		maps.Copy(form, c.form)
		_, body := srv.do(t, "admin", "/actions/"+c.path, form)
		id := undoButton.FindStringSubmatch(body)
		if id == nil {
			t.Fatalf("%s cannot be undone: %.600s", c.path, mainOf(body))
		}
		now := m.Snapshot().Get(state.KeyOf(c.of)).DeepCopyObject().(state.Object)
		c.other(now)
		m.Put(t, now)
		_, body = srv.do(t, "admin", "/actions/"+id[1], url.Values{"action": {"undo"}})
		if got := c.has(); got != c.want || !strings.Contains(body, c.says) {
			t.Errorf("%s, undone after a later change: %s, want %s; the page says %.900s", c.rule, got, c.want, mainOf(body))
		}
	}
}
