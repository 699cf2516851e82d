package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// darkBergen returns a fleet with a dark site, and the name of the site's incident.
func darkBergen(t testing.TB) (m *admintest.Memory, name string) {
	m = admintest.New(admintest.Night()...)
	dark(t, m)
	for i := range state.Each[*fleet.Incident](m.Snapshot(), state.Incidents, "") {
		if i.Cause == "SiteDark" {
			name = i.Name
		}
	}
	if name == "" {
		t.Fatal("no site is dark")
	}
	return m, name
}

// Operators acknowledge an incident and withdraw that; its card and its page say who.
func TestAnIncidentIsAcknowledgedOnItsPage(t *testing.T) {
	m, name := darkBergen(t)
	srv, page := acting(t, m), "/incidents/"+name
	incident := func() *fleet.Incident {
		return m.Snapshot().Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident)
	}
	says := func(role, path string, want ...string) {
		t.Helper()
		_, body := srv.ask(t, role, "GET", path, nil)
		for _, w := range want {
			if words := wordsOf(body); !strings.Contains(words, w) {
				t.Errorf("%s does not say %q: %s", path, w, words)
			}
		}
	}
	item := url.Values{"item": {m.Form(state.Incidents, "", name)}}
	says("operator", page, "bergen is dark", "Hold… Maintenance… Acknowledge Note…", "Timeline",
		"The hub opened the incident", "Site bergen")
	_, body := srv.ask(t, "viewer", "GET", page, nil)
	if strings.Contains(body, ">Acknowledge<") {
		t.Error("the action is offered to a viewer")
	}
	if !strings.Contains(body, `<a href="/sites/bergen">Site bergen</a>`) {
		t.Error("the incident does not link its site's page")
	}
	for _, fact := range []string{`<a href="/incidents?cause=SiteDark">SiteDark</a>`, `<a href="/sites/bergen">bergen</a>`} {
		if !strings.Contains(body, fact) {
			t.Errorf("the facts lack %s", fact)
		}
	}
	if code, body := srv.do(t, "operator", "/actions/incidents/acknowledge", item); code != http.StatusOK ||
		!strings.Contains(wordsOf(body), "is acknowledged by test-operator. Undo") {
		t.Errorf("acknowledged: %d %s", code, wordsOf(body))
	}
	if a := incident().Acknowledged; a == nil || a.By != "test-operator" {
		t.Errorf("acknowledged by %+v", a)
	}
	says("viewer", "/", "test-operator takes care of it")
	says("viewer", "/incidents?status=acknowledged", "1 incident, 1 open", "bergen is dark", "test-operator")
	says("operator", page, "test-operator acknowledged it", "Take back")
	srv.do(t, "operator", "/actions/incidents/withdraw", item)
	if a := incident().Acknowledged; a != nil {
		t.Errorf("still acknowledged by %+v", a)
	}
}

// A note is stored as written. A note over the limit, or over another user's newer note, is refused.
func TestANoteIsWrittenOnAnIncidentsPage(t *testing.T) {
	m, name := darkBergen(t)
	srv := acting(t, m)
	note := func() string {
		return m.Snapshot().Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident).Note
	}
	write := func(text, was string) (int, string) {
		return srv.do(t, "operator", "/actions/incidents/note", url.Values{
			"item": {m.Form(state.Incidents, "", name)}, "note": {text}, "was-note": {was}})
	}
	if code, body := write("line down,\r\ntechnician at 14:00\r\n", ""); code != http.StatusOK ||
		note() != "line down,\ntechnician at 14:00" || !strings.Contains(body, "technician at 14:00") {
		t.Errorf("%d, the note is %q: %s", code, note(), wordsOf(body))
	}
	for _, c := range []struct{ name, text, was, want string }{
		{"too long", strings.Repeat("x", 1025), "line down,\r\ntechnician at 14:00", "1024"},
		{"with a character that reverses text", "a\u202eb", "line down,\r\ntechnician at 14:00", "invisible characters"},
		{"another user's newer note", "mine", "", "somebody has changed the note"},
	} {
		if _, body := write(c.text, c.was); !strings.Contains(body, c.want) || note() != "line down,\ntechnician at 14:00" {
			t.Errorf("%s: the note is %q: %s", c.name, note(), wordsOf(body))
		}
	}
	if _, body := srv.ask(t, "operator", "GET", "/actions/incidents/note?item="+url.QueryEscape(m.Form(state.Incidents, "", name)),
		nil); !strings.Contains(body, "\nline down,\ntechnician at 14:00</textarea>") {
		t.Errorf("the form lacks the present note: %s", mainOf(body))
	}
	if write("", "line down,\r\ntechnician at 14:00"); note() != "" {
		t.Errorf("the note is not removed: %q", note())
	}
}

// The page of a missing incident is one sentence with the way back.
func TestAMissingIncidentLeadsBack(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Night()...)))
	resp, body := srv.ask(t, "viewer", "GET", "/incidents/nothing", nil)
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(body, `href="/incidents">All incidents<`) ||
		!strings.Contains(wordsOf(body), "There is no incident nothing: an incident is kept for a day after its end.") {
		t.Errorf("%d: %s", resp.StatusCode, wordsOf(body))
	}
	_, body = srv.ask(t, "viewer", "GET", "/incidents?q=nothing", nil)
	if !strings.Contains(body, "No incident matches.") || !strings.Contains(body, `href="/incidents">Show all`) {
		t.Errorf("%s", wordsOf(body))
	}
}

// troubled returns a fleet of twelve sites with trouble of many causes.
func troubled(t testing.TB) *admintest.Memory {
	t.Helper()
	m := admintest.New(admintest.Night()...)
	conditions := []func(*corev1.Node){
		admintest.Condition("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
		admintest.Condition(fleet.ConditionPowerOK, "False", "UnderVoltage", "the supply voltage is too low now"),
		admintest.Condition("Ready", "False", "KubeletNotReady", "the engine does not answer"), func(*corev1.Node) {},
	}
	var objects []state.Object
	for i := range 12 {
		site := fmt.Sprintf("site-%02d", i)
		whole := fleet.SiteStatus{State: fleet.SiteNormal, EvictionRate: "0.1"}
		if i < 5 {
			whole.State, whole.Waiting = fleet.SiteFullDisruption, 8
			whole.NextEviction = new(metav1.NewMicroTime(admintest.Now.Add(12 * time.Minute)))
		}
		objects = append(objects, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: site}, Status: whole})
		for n := range 8 {
			name := fmt.Sprintf("%s-%d", site, n)
			node := admintest.Node(name, site, conditions[n%4])
			if i < 5 {
				admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(node)
			}
			objects = append(objects, node, admintest.Pod("shop-"+name, name, admintest.Tolerates))
		}
	}
	m.Put(t, objects...)
	return m
}

// The overview in trouble, the list and the page of an incident are accessible at each width.
func TestIncidentsAreAccessible(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.fleet.Become(troubled(t))
	k.fleet.FindIncidents()
	k.open("/")
	k.says("40 nodes of 5 sites do not answer", "Pods start to move in")
	if !k.eval(`document.querySelectorAll(".incidents > li").length <= 7`) {
		t.Error("there are more than seven cards")
	}
	k.eval(`document.querySelectorAll(".incidents details").forEach((d) => d.open = true), true`)
	k.look("incidents on the overview")
	k.press(".incidents > li h3 a")
	k.await(`location.pathname === "/incidents" && location.search.includes("cause=NodeDark")`)
	k.look("incidents of a cause")
	k.press(".rows tbody th a")
	k.await(`location.pathname.startsWith("/incidents/")`)
	k.look("an incident")
	k.press(`.head a[href^="/actions/incidents/note"]`)
	k.look("a note")
	k.fill("textarea[name=note]", strings.Repeat("x", 1100))
	k.excuse("422")
	k.press("button[formaction$=note]")
	k.says("1024")
	k.eval(`document.querySelector("textarea[name=note]").value = "the line is down\n\ntechnician at 14:00", true`)
	k.press("button[formaction$=note]")
	k.says("has a new note", "technician at 14:00")
	if !k.eval(`document.querySelector(".noted").innerText.includes("down\n\ntechnician")`) {
		t.Errorf("the note's lines run together: %s", k.string(`document.querySelector(".noted").innerText`))
	}
}
