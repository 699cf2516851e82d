package admin

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// ask sends a request of the role ("": without a login) and does not follow redirects.
func (s *server) ask(t testing.TB, role, method, path string, form url.Values, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if role != "" {
		req.Header.Set(nameHeader, role)
	}
	req.Header.Set("Accept", "text/html")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := *s.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		return resp, ""
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// Every route is open to exactly the roles that it names.
func TestEachRouteRequiresItsRole(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	c := configOf(m)
	srv := start(t, c)
	fill := strings.NewReplacer(":name", "pi-1", ":namespace", "default", "/static/*", "/static/page.css")
	closed := 0
	for _, r := range New(c).Routes() {
		path := fill.Replace(r.Path)
		if r.Path == "/pods/:namespace/:name" {
			path = strings.Replace(path, "pi-1", "kiosk-7d9f-abcde", 1)
		}
		for _, role := range []string{"", "device", "viewer", "operator", "admin"} {
			form := url.Values{"csrf": {csrf}, "action": {"cordon"}, "site": {"oslo"}, "uses": {"1"}, "life": {"1h"}}
			if r.Method == http.MethodGet {
				form = nil
			}
			resp, _ := srv.ask(t, role, r.Method, path, form)
			want := "in"
			switch {
			case r.Open:
			case role == "":
				want = "to the login"
			case r.Verb != "" && !access.Allow(access.Role(role), r.Verb, r.Resource):
				want = "refused"
			}
			got := "in"
			switch {
			case resp.StatusCode == http.StatusForbidden:
				got = "refused"
			case resp.StatusCode == http.StatusUnauthorized, resp.Header.Get("Location") != "" && strings.HasPrefix(resp.Header.Get("Location"), "/login") && r.Path != "/logout":
				got = "to the login"
			}
			if r.Open && r.Method == http.MethodPost {
				got = "in" // login and setup refuse unauthenticated requests for other reasons
			}
			if got != want {
				t.Errorf("%s %s as %q: %s (%d), want %s", r.Method, path, role, got, resp.StatusCode, want)
			}
			if want != "in" {
				closed++
			}
		}
	}
	if closed < 30 {
		t.Errorf("only %d requests were refused to some role", closed)
	}
}

func TestNothingIsChangedWithoutTheFormsToken(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := start(t, configOf(m))
	item := m.Form(state.Nodes, "", "pi-1")
	for _, form := range []url.Values{{"item": {item}}, {"item": {item}, "csrf": {"another"}}} {
		if resp, _ := srv.ask(t, "admin", "POST", "/actions/nodes/cordon", form); resp.StatusCode != http.StatusForbidden {
			t.Errorf("cordon with %v: %d, want 403", form, resp.StatusCode)
		}
	}
	if m.Snapshot().Node("pi-1").Spec.Unschedulable {
		t.Error("the node was cordoned")
	}
	if resp, _ := srv.ask(t, "admin", "GET", "/actions/nodes/cordon?"+url.Values{"item": {item}, "_method": {"POST"}, "csrf": {csrf}}.Encode(), nil); resp.StatusCode != http.StatusOK || m.Snapshot().Node("pi-1").Spec.Unschedulable {
		t.Errorf("a GET cordoned the node, or was answered with %d", resp.StatusCode)
	}
}

func TestEveryAnswerIsHardened(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	style := regexp.MustCompile(`(?i)<[^>]+\s(style|on[a-z]+)\s*=|<script(?:>|\s[^>]*>)\s*[^<\s]|<style`)
	other := regexp.MustCompile(`(?:src|href|action)="(?:https?:)?//`)
	for _, v := range everyView {
		resp, body := srv.ask(t, "admin", "GET", v.path, nil)
		for header, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " + "form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		} {
			if got := resp.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", v.path, header, got, want)
			}
		}
		if found := style.FindString(body); found != "" {
			t.Errorf("%s has script or style in the page: %s", v.path, found)
		}
		if found := other.FindString(body); found != "" {
			t.Errorf("%s refers to another host: %s", v.path, found)
		}
	}
	if resp, _ := srv.ask(t, "", "GET", "/static/..%2fembed.go", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a path outside of the static files: %d, want 404", resp.StatusCode)
	}
}

func TestTheLoginLeadsBackToThisPageOnly(t *testing.T) {
	for next, want := range map[string]string{
		"/nodes?site=oslo": "/nodes?site=oslo", "": "/", "//evil.example": "/", "https://evil.example": "/", `/\evil.example`: "/",
		"javascript:alert(1)": "/", "/\t/evil.example": "/", "/nodes/a%2fb": "/nodes/a%2fb",
	} {
		if got := frame.LocalPath(next); got != want {
			t.Errorf("after the login with next=%q: %q, want %q", next, got, want)
		}
	}
	srv := start(t, configOf(admintest.New()))
	resp, _ := srv.ask(t, "", "GET", "/nodes?site=oslo", nil)
	if got := resp.Header.Get("Location"); got != "/login?next=%2Fnodes%3Fsite%3Doslo" {
		t.Errorf("an unauthenticated client is sent to %q", got)
	}
}

// A new token is shown only in the session that made it, and reloading makes no other token.
func TestATokenIsShownOnlyInTheSessionThatMadeIt(t *testing.T) {
	var acts []store.Audit
	c := configOf(admintest.New(admintest.Sample()...))
	c.Audit = func(_ context.Context, a store.Audit) { acts = append(acts, a) }
	var passed atomic.Int64 // live pages read the clock too
	now := time.Now()
	c.Now = func() time.Time { return now.Add(time.Duration(passed.Load())) }
	session := sessionOf{csrf: csrf}
	c.Sessions, c.Agents, c.CA = &session, func() []string { return []string{"arm64"} }, func() []byte { return []byte("a root\n") }
	srv := start(t, c)
	make := func() string {
		t.Helper()
		resp, body := srv.ask(t, "admin", "POST", "/devices/add", url.Values{"csrf": {session.csrf}, "site": {"oslo"}, "uses": {"1"}, "life": {"24h"}})
		to := resp.Header.Get("Location")
		if resp.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, "/devices/tokens/") || strings.Contains(to+body, "FLT1") {
			t.Fatalf("the token is made with %d, and leads to %s", resp.StatusCode, to)
		}
		return to
	}
	to := make()
	if len(acts) != 1 || acts[0].Who != "test-admin" || strings.Contains(fmt.Sprint(acts[0]), "FLT1") {
		t.Errorf("the audit says %+v", acts)
	}
	for range 2 {
		resp, body := srv.ask(t, "admin", "GET", to, nil)
		if resp.StatusCode != http.StatusOK || strings.Count(body, "FLT1.") != 2 || !strings.Contains(body, "--token FLT1.") || resp.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("the session that made it sees %d, the token %d times", resp.StatusCode, strings.Count(body, "FLT1."))
		}
	}
	card := to + "/card?engine=podman&format="
	for format, begins := range map[string]string{"cloud-init": "#cloud-config\n", "script": "#!/bin/sh\n"} {
		resp, body := srv.ask(t, "admin", "GET", card+format, nil)
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(body, begins) || !strings.Contains(body, "FLT1.") ||
			!strings.Contains(body, "a root\n") || !strings.Contains(body, "podman") || resp.Header.Get("Content-Disposition") == "" {
			t.Errorf("the first-boot file for %s: %d %s", format, resp.StatusCode, body)
		}
	}
	if resp, body := srv.ask(t, "admin", "GET", card+"toml", nil); resp.StatusCode != http.StatusBadRequest ||
		!strings.Contains(body, "use cloud-init or script") {
		t.Errorf("an unknown format: %d", resp.StatusCode)
	}
	if len(acts) != 1 {
		t.Errorf("loading the page again has made another token: %+v", acts)
	}
	gone := func(what, who string) {
		t.Helper()
		if resp, body := srv.ask(t, who, "GET", to, nil); resp.StatusCode < 400 || strings.Contains(body, "FLT1") {
			t.Errorf("%s: %d", what, resp.StatusCode)
		}
		if resp, body := srv.ask(t, who, "GET", card+"script", nil); resp.StatusCode < 400 || strings.Contains(body, "FLT1") {
			t.Errorf("%s in its first-boot file: %d", what, resp.StatusCode)
		}
	}
	gone("a viewer sees the token", "viewer")
	session.name = "another"
	gone("another administrator sees the token", "admin")
	session.name, session.csrf = "", "a later session"
	gone("a later session sees the token", "admin")
	session.csrf = csrf
	passed.Store(int64(time.Hour))
	gone("the token is shown after an hour", "admin")
}

// sessionOf gives requests the session that the test chooses.
type sessionOf struct {
	people
	name, csrf string
}

func (s *sessionOf) Authenticate(r *http.Request) (access.User, error) {
	u, err := s.people.Authenticate(r)
	u.Name, u.CSRF = cmp.Or(s.name, u.Name), s.csrf
	return u, err
}

// The page lists the devices that join with a token: certificate, first report, ready or why not.
func TestTheProgressOfJoiningDevicesIsShown(t *testing.T) {
	enrolled := metav1.NewTime(time.Now().Add(-time.Minute).Truncate(time.Second))
	record := func(name, token string) *state.Record {
		return &state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Token: token, Enrolled: enrolled}
	}
	m := admintest.New(record("pi-1", "k1"), record("pi-2", "k1"), record("pi-3", "k1"), record("pi-9", "k2"),
		admintest.Node("pi-2", "oslo", nil), admintest.Node("pi-3", "oslo", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no container engine"}}
		}), admintest.Node("pi-9", "oslo", nil), admintest.Node("pi-old", "oslo", nil))
	c := configOf(m)
	srv := start(t, c)
	_, body := srv.ask(t, "admin", "GET", "/devices/joined?token=k1&uses=5", nil)
	text := strings.Join(strings.Fields(tags.ReplaceAllString(body, " ")), " ")
	for _, want := range []string{"Has its certificate pi-1 has joined", "waits for the device&#39;s first report", "Ready pi-2 has joined", "Not ready pi-3 has joined", "no container engine", "Waiting for 2 more devices…"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q: %s", want, text)
		}
	}
	for _, other := range []string{"pi-9", "pi-old"} {
		if strings.Contains(text, other) {
			t.Errorf("it lists %s, which did not join with the token", other)
		}
	}
	if _, body := srv.ask(t, "admin", "GET", "/devices/joined?token=&uses=1", nil); strings.Contains(body, "has joined") {
		t.Error("devices that joined without a token are listed")
	}
}

var tags = regexp.MustCompile("<[^>]*>")

func TestAFleetWithoutNodesSaysWhatToDo(t *testing.T) {
	srv := start(t, configOf(admintest.New()))
	for path, want := range map[string]string{
		"/": "No device yet", "/nodes": "flotilla-device join https://", "/sites": "No device yet", "/workloads": "kubectl apply", "/pods": "No pods", "/events": "Nothing has happened yet",
	} {
		if _, body := srv.ask(t, "admin", "GET", path, nil); !strings.Contains(body, want) {
			t.Errorf("%s does not say %q", path, want)
		}
	}
	if _, body := srv.ask(t, "viewer", "GET", "/nodes", nil); strings.Contains(body, `href="/devices/add"`) || !strings.Contains(body, "An administrator can add one") {
		t.Error("a viewer is led to a page that the role may not open")
	}
}

func TestPeopleWithOtherRolesGetOtherFragments(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for _, role := range []string{"admin", "viewer", "admin"} { // a view cached for one role must not be shown to another
		_, body := srv.ask(t, role, "GET", "/nodes/pi-1", nil)
		if got := strings.Contains(body, `formaction="/actions/nodes/cordon"`); got != (role == "admin") {
			t.Errorf("%s may cordon: %v", role, got)
		}
		if strings.Contains(body, "test-admin") && role != "admin" {
			t.Error("the page has another user's name")
		}
	}
}

// A listener is an open page.
type listener struct {
	testing.TB
	events chan [3]string // name, id, data
}

// listen opens a page with a role.
func (s *server) listen(t testing.TB, role, path string, headers ...string) *listener {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
	req.Header.Set(nameHeader, role)
	req.Header.Set("Accept", liveStream)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != liveStream {
		t.Fatalf("%s is answered with %d, %s", path, resp.StatusCode, got)
	}
	l := &listener{t, make(chan [3]string, 1000)}
	go func() {
		defer resp.Body.Close()
		defer close(l.events)
		var e [3]string
		lines := bufio.NewScanner(resp.Body)
		for lines.Buffer(nil, 1<<20); lines.Scan(); {
			switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
			case "event":
				e[0] = value
			case "id":
				e[1] = value
			case "data":
				e[2] += value + "\n"
			case "":
				l.events <- e
				e = [3]string{}
			}
		}
	}()
	return l
}

// generous is how long a test waits for an expected update.
const generous = time.Minute

// next returns the next update of the page, "" if none comes within d.
func (l *listener) next(d time.Duration) (id, body string) {
	l.Helper()
	timeout := time.After(d)
	for {
		select {
		case e, ok := <-l.events:
			if !ok {
				return "over", ""
			}
			if e[0] == "show" {
				return e[1], e[2]
			}
		case <-timeout:
			return "", ""
		}
	}
}

// shows waits until an update contains a text, and returns its tag.
func (l *listener) shows(text string) (id string) {
	l.Helper()
	for {
		id, body := l.next(generous)
		switch {
		case strings.Contains(body, text):
			return id
		case body == "":
			l.Fatalf("no update shows %q: %s", text, id)
		}
	}
}

// quiet fails if an update comes within a short time.
func (l *listener) quiet(what string) {
	l.Helper()
	if id, body := l.next(700 * time.Millisecond); id != "" {
		l.Errorf("%s gets the update %s: %.300s", what, id, body)
	}
}

var liveTag = regexp.MustCompile(`data-live="(\w+)"`)

func (s *server) tagOf(t testing.TB, role, path string) string {
	t.Helper()
	_, body := s.ask(t, role, "GET", path, nil)
	found := liveTag.FindStringSubmatch(body)
	if found == nil {
		t.Fatalf("%s is not live: %s", path, body)
	}
	return found[1]
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func TestAnOpenPageIsSentWhatItShowsAnew(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := start(t, configOf(m))
	l := srv.listen(t, "viewer", "/nodes/pi-1?shown="+srv.tagOf(t, "viewer", "/nodes/pi-1"))
	l.quiet("a page that shows the newest state")
	m.Put(t, admintest.Node("pi-1", "oslo", labelled("colour", "green")))
	l.shows("green")
	m.Put(t, admintest.Pod("q", "pi-1", nil))
	l.shows("/pods/default/q")
	m.Put(t, admintest.Event("Node", "pi-1", "Tested", "said of pi-1", 0))
	l.shows("said of pi-1")
	m.Put(t, admintest.Node("pi-3", "oslo", labelled("colour", "blue")), admintest.Event("Node", "pi-3", "Tested", "said of pi-3", 0))
	l.quiet("a page about other objects")
	if _, err := m.Do(t.Context(), admintest.Gone(m.Snapshot().Node("pi-1"))); err != nil {
		t.Fatal(err)
	}
	l.shows("There is no node pi-1.")
	m.Put(t, admintest.Node("pi-1", "oslo", labelled("colour", "back")))
	l.shows("back")
}

func TestWhatIsNotSeenIsNotSent(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := start(t, configOf(m))
	l := srv.listen(t, "viewer", "/?shown="+srv.tagOf(t, "viewer", "/"))
	for i := range 3 {
		m.Put(t, admintest.Node("pi-1", "oslo", labelled("n", fmt.Sprint(i)))) // the overview shows no labels
	}
	l.quiet("a page that does not show the changed object")
	m.Put(t, admintest.Node("pi-9", "oslo", nil))
	l.shows("5/9")
}

// A view that many pages have open is rendered once.
func TestManyPagesOfAViewAreOneRendering(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	c := configOf(m)
	var looks atomic.Int64
	liveness := c.Liveness
	c.Liveness = func(node string) frame.Liveness {
		if node == "pi-1" {
			looks.Add(1)
		}
		return liveness(node)
	}
	srv := start(t, c)
	tag := srv.tagOf(t, "viewer", "/nodes/pi-1")
	var pages []*listener
	for range 30 {
		pages = append(pages, srv.listen(t, "viewer", "/nodes/pi-1?shown="+tag))
	}
	before := looks.Load()
	for i := range 3 {
		text := fmt.Sprint("green-", i)
		m.Put(t, admintest.Node("pi-1", "oslo", labelled("colour", text)))
		for _, p := range pages {
			p.shows(text)
		}
	}
	// One more rendering for each poll time.
	if once := (looks.Load() - before) / 3; once > 5 {
		t.Errorf("each change was rendered %d times for 30 pages", once)
	}
}

func TestManyChangesAreTwoASecond(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := start(t, configOf(m))
	l := srv.listen(t, "viewer", "/nodes/pi-1")
	l.shows("pi-1")
	var over atomic.Bool
	begin := time.Now()
	go func() {
		for i := 0; !over.Load(); i++ {
			m.Put(t, admintest.Node("pi-1", "oslo", labelled("n", fmt.Sprint(i))))
			time.Sleep(10 * time.Millisecond)
		}
	}()
	defer over.Store(true)
	for range 5 {
		l.next(generous)
	}
	const together = 500 * time.Millisecond
	if took := time.Since(begin); took < 4*together {
		t.Errorf("five times in %s, want %s between two", took, together)
	}
}

func TestAPageThatComesBackIsSentWhatItMissed(t *testing.T) {
	conf := configOf(admintest.New(admintest.Sample()...))
	conf.Now = func() time.Time { return admintest.Now } // the site's ready share changes every minute
	srv := start(t, conf)
	now := srv.tagOf(t, "viewer", "/sites")
	for _, c := range []struct {
		name, query, id string
		sent            bool
	}{
		{"a page with the newest state gets no update", "?shown=" + now, "", false},
		{"a page whose last update is the newest state gets no update", "?shown=of-the-first-load", now, false},
		{"a page with an older state gets an update", "?shown=" + now, "of-before", true},
		{"an empty page gets an update", "", "", true},
	} {
		l := srv.listen(t, "viewer", "/sites"+c.query, "Last-Event-ID", c.id)
		if !c.sent {
			l.quiet(c.name)
		} else if got := l.shows("Partial disruption"); got != now {
			t.Errorf("%s: %s, want %s", c.name, got, now)
		}
	}
}

func TestAPageThatIsOpenedShowsTheNewest(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	srv := start(t, configOf(m))
	for i := range 5 { // each change while the last rendering is still fresh
		text := fmt.Sprint("green-", i)
		m.Put(t, admintest.Node("pi-1", "oslo", labelled("colour", text)))
		if _, body := srv.ask(t, "viewer", "GET", "/nodes/pi-1", nil); !strings.Contains(body, text) {
			t.Errorf("the page does not show %s", text)
		}
	}
}

func TestPagesOfAList(t *testing.T) {
	var objects []state.Object
	for i := range 250 {
		objects = append(objects, admintest.Node(fmt.Sprintf("n-%03d", i), "oslo", nil))
	}
	srv := start(t, configOf(admintest.New(objects...)))
	for _, c := range []struct{ name, query, has, hasNot string }{
		{"the first has no previous", "", "1–100 of 250", "← Previous"},
		{"the last has no next", "?page=3", "201–250 of 250", "Next →"},
		{"a page beyond the last is the last", "?page=99", "201–250 of 250", "Next →"},
		{"the filter stays", "?page=2&q=n-", "page=3&amp;q=n-", "n-000"},
		{"each page has a link, but this one", "?page=2", `<a href="/nodes?page=1">1</a> <b aria-current="page">2</b> <a href="/nodes?page=3">3</a>`, "</a> …"},
	} {
		_, body := srv.ask(t, "viewer", "GET", "/nodes"+c.query, nil)
		if !strings.Contains(body, c.has) || strings.Contains(body, c.hasNot) {
			t.Errorf("%s: %q is shown: %v, %q is shown: %v", c.name, c.has, strings.Contains(body, c.has), c.hasNot, strings.Contains(body, c.hasNot))
		}
	}
}

// The login returns a typed name cut to the longest valid length, so a flood of long names costs
// little.
func TestTheLoginCutsLongNames(t *testing.T) {
	srv := start(t, configOf(admintest.New()))
	_, body := srv.ask(t, "", "POST", "/login", url.Values{"name": {strings.Repeat("k", 60_000)}, "password": {"wrong"}})
	const maxName = 64
	if n := strings.Count(body, "k"); n < maxName || n > 1000 || !strings.Contains(body, `value="`+strings.Repeat("k", maxName)+`"`) {
		t.Errorf("the form gives %d letters back, want %d", n, maxName)
	}
	long := strings.Repeat("k", 20_000)
	_, body = srv.ask(t, "", "POST", "/setup", url.Values{"name": {long}, "token": {long}, "password": {"a"}, "again": {"b"}})
	if n := strings.Count(body, "k"); n < 2*maxName || n > 1000 {
		t.Errorf("the form of the setup link gives %d letters back, want %d", n, 2*maxName)
	}
}

// Among many sites those in trouble are listed first, and can be searched for.
func TestSitesInTroubleAreListedFirst(t *testing.T) {
	site := func(name string, st fleet.SiteState, notReady int32, change func(*fleet.Site)) state.Object {
		s := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: fleet.SiteStatus{State: st, Ready: 9, NotReady: notReady, EvictionRate: "0.1"}}
		if change != nil {
			change(s)
		}
		return s
	}
	objects := []state.Object{
		site("a-quiet", fleet.SiteNormal, 0, nil), site("b-one-missing", fleet.SiteNormal, 1, nil), site("c-two-missing", fleet.SiteNormal, 2, func(s *fleet.Site) { s.Spec.Location = "Quay 7" }),
		site("d-partial", fleet.SitePartialDisruption, 5, func(s *fleet.Site) { s.Status.Held, s.Status.HeldReason = "partially disrupted", "Partial" }),
		site("e-dark", fleet.SiteFullDisruption, 3, nil),
	}
	for i := range 150 {
		objects = append(objects, site(fmt.Sprintf("z-%03d", i), fleet.SiteNormal, 0, nil))
	}
	srv := start(t, configOf(admintest.New(objects...)))
	list := func(query string) (names []string, body string) {
		t.Helper()
		resp, body := srv.ask(t, "viewer", "GET", "/sites"+query, nil)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d", query, resp.StatusCode)
		}
		for _, m := range regexp.MustCompile(`<tr data-key="([^"]*)"`).FindAllStringSubmatch(body, -1) {
			names = append(names, m[1])
		}
		return names, body
	}
	names, body := list("")
	if len(names) != frame.PerPage || !slices.Equal(names[:6], []string{"e-dark", "d-partial", "c-two-missing", "b-one-missing", "a-quiet", "z-000"}) {
		t.Errorf("%d sites, first %v", len(names), names[:min(6, len(names))])
	}
	if !strings.Contains(body, "155 sites") || !strings.Contains(body, "page=2") {
		t.Error("the list does not count the sites, or has no next page")
	}
	for query, want := range map[string][]string{
		"?state=attention": {"e-dark", "d-partial", "c-two-missing", "b-one-missing"}, "?state=held": {"d-partial"}, "?q=QUAY": {"c-two-missing"}, "?q=dark&state=normal": nil,
		"?q=z-14&page=9": {"z-140", "z-141", "z-142", "z-143", "z-144", "z-145", "z-146", "z-147", "z-148", "z-149"},
	} {
		if got, body := list(query); !slices.Equal(got, want) || want == nil && !strings.Contains(body, "No site matches") {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// A link to a site, and an action on it, lead to the site's page.
func TestALinkToASiteLeadsToIt(t *testing.T) {
	m := admintest.New(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "z-205"}, Status: fleet.SiteStatus{State: fleet.SiteNormal, EvictionRate: "0.1"}})
	m.Put(t, admintest.Event("Site", "z-205", "Tested", "said of z-205", 0), admintest.Node("pi-1", "z-205", nil))
	srv := acting(t, m)
	_, body := srv.ask(t, "viewer", "GET", "/sites/z-205", nil)
	for _, want := range []string{"<h1>z-205</h1>", `href="/nodes/pi-1"`, "said of z-205"} {
		if !strings.Contains(body, want) {
			t.Errorf("the site's page lacks %q: %s", want, mainOf(body))
		}
	}
	if resp, body := srv.ask(t, "viewer", "GET", "/sites/nobody", nil); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "There is no site nobody.") {
		t.Errorf("a site that does not exist: %d", resp.StatusCode)
	}
	if _, body = srv.ask(t, "viewer", "GET", "/events", nil); !strings.Contains(body, `href="/sites/z-205"`) {
		t.Errorf("an event of a site does not lead there: %s", mainOf(body))
	}
	_, body = srv.do(t, "admin", "/actions/sites/hold", url.Values{"item": {m.Form(state.Sites, "", "z-205")}})
	if !strings.Contains(body, "z-205 holds its pods") || !strings.Contains(body, "Undo</button>") || !strings.Contains(body, "keep pods here") {
		t.Errorf("after an action on a site: %.900s", mainOf(body))
	}
}

// A site's page says what happens to pods, and shows no queue while evictions are held.
func TestASitesPageSaysWhatHappensToItsPods(t *testing.T) {
	dark := admintest.Node("pi-1", "oslo", admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x"))
	for _, c := range []struct {
		name   string
		status fleet.SiteStatus
		has    string
		hasNot string
	}{
		{"nodes wait for their turn", fleet.SiteStatus{State: fleet.SiteFullDisruption, NotReady: 1, Waiting: 1, EvictionRate: "0.1", NextEviction: admintest.Moments(admintest.Now.Add(time.Hour))}, "Next to be given up", "Pods stay"},
		{"it is on hold", fleet.SiteStatus{State: fleet.SiteFullDisruption, NotReady: 1, Waiting: 1, EvictionRate: "0", HeldReason: fleet.HeldByDisruptionPolicy, Held: "fully disrupted, and its disruptionPolicy is Hold"}, "Pods stay: this site is on hold.", "Next to be given up"},
		{"all is well", fleet.SiteStatus{State: fleet.SiteNormal, Ready: 1, EvictionRate: "0.1"}, "Ready", "every 10s"},
	} {
		srv := start(t, configOf(admintest.New(dark, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Status: c.status})))
		for _, path := range []string{"/sites", "/sites/oslo"} {
			if _, body := srv.ask(t, "viewer", "GET", path, nil); !strings.Contains(body, c.has) || strings.Contains(body, c.hasNot) {
				t.Errorf("%s: %s: %s", c.name, path, mainOf(body))
			}
		}
	}
}

// Passing time alone sends no update, because the page's script writes relative times.
func TestUpdatesHaveNoRelativeTimes(t *testing.T) {
	begin := func(objects ...state.Object) (srv *server, now *atomic.Int64) {
		now = &atomic.Int64{}
		c := configOf(admintest.New(objects...))
		c.Now = func() time.Time { return time.Unix(now.Load(), 0) }
		c.Liveness = func(string) frame.Liveness { return frame.Liveness{Seen: admintest.Now.Add(-time.Minute)} }
		return start(t, c), now
	}
	srv, now := begin(admintest.Sample()...)
	now.Store(admintest.Now.Unix())
	for _, path := range []string{"/nodes", "/nodes/pi-1", "/pods"} {
		if _, whole := srv.ask(t, "admin", "GET", path, nil); strings.Contains(whole, "></time>") {
			t.Errorf("%s: a document for browsers without scripts has no relative times", path)
		}
		_, sent := srv.listen(t, "admin", path).next(generous)
		if strings.Count(sent, "<time ") == 0 || strings.Count(sent, "<time ") != strings.Count(sent, "></time>") {
			t.Errorf("%s: an update has relative times", path)
		}
	}
	srv, now = begin(admintest.Node("pi-1", "oslo", nil))
	hour := admintest.Now.Truncate(time.Hour).Add(2 * time.Hour) // the bars move every hour; the trouble is older than that
	now.Store(hour.Add(5 * time.Minute).Unix())
	_, first := srv.ask(t, "admin", "GET", "/nodes", nil)
	tag := srv.tagOf(t, "admin", "/nodes")
	now.Store(hour.Add(45 * time.Minute).Unix())
	if _, later := srv.ask(t, "admin", "GET", "/nodes", nil); srv.tagOf(t, "admin", "/nodes") != tag || mainOf(first) == mainOf(later) {
		t.Error("after forty minutes the list's update differs, or its document does not")
	}
}
