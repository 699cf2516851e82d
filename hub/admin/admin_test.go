package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// ask sends a request as somebody of the role ("" nobody), and does not follow redirects.
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

// TestEveryRouteWantsItsRole walks all doors with everybody.
func TestEveryRouteWantsItsRole(t *testing.T) {
	m := newMemory(sample()...)
	c := configOf(m)
	srv := start(t, c)
	fill := strings.NewReplacer(":name", "pi-1", ":namespace", "default", "/static/*", "/static/page.css")
	closed := 0
	for _, r := range New(c).Routes() {
		path := fill.Replace(r.Path)
		if r.Path == "/pods/:namespace/:name" {
			path = strings.Replace(path, "pi-1", "kiosk-7d9f-abcde", 1)
		}
		if r.Path == "/events/stream" {
			path += "?watch=nodes"
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
			case r.Verb != "" && !allow(role, r.Verb, r.Resource):
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
				got = "in" // login and setup refuse for reasons of their own
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
		t.Errorf("only %d doors were closed to somebody", closed)
	}
}

func TestNothingIsChangedWithoutTheFormsToken(t *testing.T) {
	m := newMemory(sample()...)
	srv := start(t, configOf(m))
	item := m.form(state.Nodes, "", "pi-1")
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
	srv := start(t, configOf(newMemory(sample()...)))
	style := regexp.MustCompile(`(?i)<[^>]+\s(style|on[a-z]+)\s*=|<script(?:>|\s[^>]*>)\s*[^<\s]|<style`)
	other := regexp.MustCompile(`(?:src|href|action)="(?:https?:)?//`)
	for _, v := range everyView {
		resp, body := srv.ask(t, "admin", "GET", v.path, nil)
		for header, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
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
		t.Errorf("a path out of the static files: %d, want 404", resp.StatusCode)
	}
}

func TestTheLoginLeadsBackToThisPageOnly(t *testing.T) {
	for next, want := range map[string]string{
		"/nodes?site=oslo": "/nodes?site=oslo", "": "/", "//evil.example": "/", "https://evil.example": "/", `/\evil.example`: "/",
		"javascript:alert(1)": "/", "/\t/evil.example": "/", "/nodes/a%2fb": "/nodes/a%2fb",
	} {
		if got := local(next); got != want {
			t.Errorf("after the login with next=%q: %q, want %q", next, got, want)
		}
	}
	srv := start(t, configOf(newMemory()))
	resp, _ := srv.ask(t, "", "GET", "/nodes?site=oslo", nil)
	if got := resp.Header.Get("Location"); got != "/login?next=%2Fnodes%3Fsite%3Doslo" {
		t.Errorf("a stranger is sent to %q", got)
	}
}

func TestTheTokenIsInTheAnswerAndNowhereElse(t *testing.T) {
	var acts []Act
	c := configOf(newMemory(sample()...))
	c.Audit = func(_ context.Context, a Act) { acts = append(acts, a) }
	srv := start(t, c)
	resp, body := srv.ask(t, "admin", "POST", "/devices/add", url.Values{"csrf": {csrf}, "site": {"oslo"}, "uses": {"1"}, "life": {"1h"}})
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("Location") != "" || !strings.Contains(body, "--token FLT1.") {
		t.Fatalf("the token is not in the answer: %d %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	if len(acts) != 1 || acts[0].User.Name != "test-admin" || strings.Contains(fmt.Sprint(acts[0]), "FLT1") {
		t.Errorf("the audit says %+v", acts)
	}
	if strings.Count(body, "FLT1.") != 1 {
		t.Error("the token stands in more than one place")
	}
}

func TestAFleetWithoutNodesSaysWhatToDo(t *testing.T) {
	srv := start(t, configOf(newMemory()))
	for path, want := range map[string]string{
		"/": "No device yet", "/nodes": "flotilla-device join https://", "/sites": "No device yet", "/workloads": "kubectl apply", "/pods": "No pods", "/events": "Nothing has happened yet",
	} {
		if _, body := srv.ask(t, "admin", "GET", path, nil); !strings.Contains(body, want) {
			t.Errorf("%s does not say %q", path, want)
		}
	}
	if _, body := srv.ask(t, "viewer", "GET", "/nodes", nil); strings.Contains(body, `href="/devices/add"`) || !strings.Contains(body, "An administrator can add one") {
		t.Error("a viewer is led to a page that is not for viewers")
	}
}

func TestPeopleWithOtherRolesGetOtherFragments(t *testing.T) {
	srv := start(t, configOf(newMemory(sample()...)))
	for _, role := range []string{"admin", "viewer", "admin"} { // one after the other: what is kept for one must not be shown to the other
		_, body := srv.ask(t, role, "GET", "/nodes/pi-1", nil)
		if got := strings.Contains(body, `formaction="/actions/nodes/cordon"`); got != (role == "admin") {
			t.Errorf("%s may cordon: %v", role, got)
		}
		if strings.Contains(body, "test-admin") && role != "admin" {
			t.Error("a name of somebody else")
		}
	}
}

// A listener reads a stream line by line.
type listener struct {
	testing.TB
	lines chan string
}

func (s *server) listen(t testing.TB, query string, headers ...string) *listener {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/events/stream?"+query, nil)
	req.Header.Set(nameHeader, "viewer")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t, make(chan string, 1000)}
	go func() {
		defer resp.Body.Close()
		defer close(l.lines)
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
			l.lines <- sc.Text()
		}
	}()
	return l
}

// generous is how long a test waits for what has to come.
const generous = time.Minute

// next returns the next event that is no beat: "change 17 nodes", or "" when there is none for d.
func (l *listener) next(d time.Duration) string {
	l.Helper()
	var event, id, data string
	timeout := time.After(d)
	for {
		select {
		case line, ok := <-l.lines:
			if !ok {
				return "over"
			}
			switch {
			case line == "" && event != "beat":
				return strings.TrimSpace(event + " " + id + " " + data)
			case strings.HasPrefix(line, "event: "):
				event = line[7:]
			case strings.HasPrefix(line, "id: "):
				id = line[4:]
			case strings.HasPrefix(line, "data: "):
				data = line[6:]
			}
		case <-timeout:
			return ""
		}
	}
}

func TestAStreamTellsWhatConcernsThePage(t *testing.T) {
	m := newMemory(sample()...)
	srv := start(t, configOf(m))
	rev := m.Snapshot().Revision
	l := srv.listen(t, fmt.Sprintf("watch=nodes+pod/default/p&rev=%d", rev))
	if got, want := l.next(generous), fmt.Sprintf("hello %d", rev); got != want {
		t.Fatalf("first: %q, want %q", got, want)
	}
	m.put(t, testNode("pi-1", "oslo", nil))
	if got, want := l.next(generous), fmt.Sprintf("change %d nodes", rev+1); got != want {
		t.Errorf("after a node: %q, want %q", got, want)
	}
	m.put(t, testPod("q", "pi-1", nil))
	m.put(t, testEvent("Node", "pi-1", "x", "y", 0))
	m.put(t, testPod("p", "pi-1", nil), testNode("pi-2", "oslo", nil))
	if got := l.next(generous); got != fmt.Sprintf("change %d nodes pod/default/p", rev+5) {
		t.Errorf("after several: %q", got)
	}
	if got := l.next(700 * time.Millisecond); got != "" {
		t.Errorf("and then: %q, want silence", got)
	}
}

// A stream on which nothing happens for longer than a browser may take to read stays.
func TestAQuietStreamStays(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := teller{w: w, rc: http.NewResponseController(w), wait: 50 * time.Millisecond}
		for range 3 {
			if out.say("beat", "", 0) != nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(body), "beat") != 3 {
		t.Errorf("the stream says %q and ends with %v", body, err)
	}
}

func TestManyChangesAreTwoNoticesASecond(t *testing.T) {
	m := newMemory(sample()...)
	srv := start(t, configOf(m))
	l := srv.listen(t, "watch=nodes", "Last-Event-ID", fmt.Sprint(m.Snapshot().Revision))
	l.next(generous)
	var over atomic.Bool
	go func() {
		for !over.Load() {
			m.put(t, testNode("pi-1", "oslo", nil))
			time.Sleep(10 * time.Millisecond)
		}
	}()
	defer over.Store(true)
	begin := time.Now()
	for range 4 {
		if got := l.next(generous); !strings.HasPrefix(got, "change") {
			t.Fatalf("%q, want a change", got)
		}
	}
	if took := time.Since(begin); took < 3*together-100*time.Millisecond {
		t.Errorf("four notices in %s, want %s between two", took, together)
	}
}

func TestAStreamThatComesBackHearsWhatItMissed(t *testing.T) {
	m := newMemory(sample()...)
	rev := m.Snapshot().Revision
	srv := start(t, configOf(m))
	m.put(t, testNode("pi-1", "oslo", nil))
	for _, c := range []struct{ name, watch, id, want string }{
		{"one that missed a change hears of it", "nodes", fmt.Sprint(rev), "change " + fmt.Sprint(rev+1) + " nodes"},
		{"one that missed what does not concern it hears nothing", "sites", fmt.Sprint(rev), ""},
		{"one that missed nothing hears nothing", "nodes", fmt.Sprint(rev + 1), ""},
		{"one of a later life of the hub fetches everything", "sites", "999999", "change " + fmt.Sprint(rev+1) + " sites"},
		{"one of an action fetches it, whatever its revision", "actions/X+sites", fmt.Sprint(rev + 1), "change " + fmt.Sprint(rev+1) + " actions/X"},
		{"one without a revision fetches everything", "sites", "x", "change " + fmt.Sprint(rev+1) + " sites"},
	} {
		l := srv.listen(t, "watch="+c.watch+"&rev=0", "Last-Event-ID", c.id)
		l.next(generous)
		wait := generous
		if c.want == "" {
			wait = 200 * time.Millisecond
		}
		if got := l.next(wait); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAFragmentShowsTheRevisionThatWasTold(t *testing.T) {
	m := newMemory(sample()...)
	srv := start(t, configOf(m))
	for range 5 { // each within the time for which the last one would be good
		m.put(t, testNode("pi-1", "oslo", func(n *corev1.Node) { n.Labels["rev"] = fmt.Sprint(m.s.Revision) }))
		want := fmt.Sprint(m.Snapshot().Revision)
		resp, body := srv.ask(t, "viewer", "GET", "/nodes/pi-1", nil, fragmentHeader, want)
		if got := resp.Header.Get("Flotilla-Revision"); got != want || strings.Contains(body, "<html") {
			t.Errorf("the fragment shows revision %s, want %s alone", got, want)
		}
	}
}

func TestWhyAPodDoesNotDoWhatItShould(t *testing.T) {
	s := newMemory(sample()...).Snapshot()
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
		}
	}
	for _, c := range []struct {
		name, node string
		change     func(*corev1.Pod)
		want       string
	}{
		{"one that runs and is ready needs nothing", "pi-1", nil, ""},
		{"one whose container is being made needs a moment", "pi-1", waiting("ContainerCreating", ""), ""},
		{"one whose image cannot be had says so", "pi-1", waiting("ImagePullBackOff", "no such image"), "Container web: ImagePullBackOff, no such image"},
		{"one on a silent node tells of the node", "pi-2", nil, "Its node is not ready: node pi-2 Ready=Unknown: no heartbeat for 40s"},
		{"one on a node that is gone says so", "gone", nil, "Its node gone does not exist."},
		{"one that has failed says why", "pi-1", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Message = "Pod was rejected: OutOfmemory"
		}, "Pod was rejected: OutOfmemory"},
		{"one that is asked to leave has its grace", "pi-1", func(p *corev1.Pod) { at := metav1.NewTime(now0.Add(time.Minute)); p.DeletionTimestamp = &at }, ""},
		{"one that should have left says what keeps it", "pi-2", func(p *corev1.Pod) {
			at := ago0(time.Minute)
			p.DeletionTimestamp = &at
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: "True", Message: "evict kiosk-2 from pi-2: tolerated node.kubernetes.io/unreachable until 12:05:41"})
		}, "evict kiosk-2 from pi-2: tolerated node.kubernetes.io/unreachable until 12:05:41; it stays Terminating until pi-2 comes back and confirms that it has stopped."},
		{"one that runs and is not ready for long says so", "pi-1", func(p *corev1.Pod) {
			p.Status.Conditions[1].Status, p.Status.Conditions[1].Message = "False", "readiness probe: connection refused"
		}, "It runs but is not ready: readiness probe: connection refused"},
	} {
		if got, _ := podTrouble(s, testPod("p", c.node, c.change), now0); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWhichConditionsNeedAttention(t *testing.T) {
	for _, c := range []struct {
		name      string
		condition corev1.NodeConditionType
		status    corev1.ConditionStatus
		want      pill
	}{
		{"a pressure does", "DiskPressure", "True", pill{"warn", "Ready, DiskPressure"}},
		{"no pressure does not", "DiskPressure", "False", pill{"ok", "Ready"}},
		{"good power does not", "PowerOK", "True", pill{"ok", "Ready"}},
		{"bad power does, by its reason", "PowerOK", "False", pill{"warn", "Ready, UnderVoltage"}},
		{"what a board lacks for good does not", "MemoryLimits", "False", pill{"ok", "Ready"}},
		{"what nobody knows does not", "Sunny", "True", pill{"ok", "Ready"}},
	} {
		if got := nodePill(testNode("n", "oslo", condition(c.condition, c.status, "UnderVoltage", "m"))); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestWhyASilentNodeKeepsItsPods(t *testing.T) {
	for _, c := range []struct {
		name   string
		status fleet.SiteStatus
		want   string
	}{
		{"where evictions are held, why", fleet.SiteStatus{Held: "maintenance until noon"}, "Its pods stay: evictions on site oslo are held, maintenance until noon."},
		{"where the rate is 0, that", fleet.SiteStatus{EvictionRate: "0", Waiting: 1}, "Its pods stay: the rate of site oslo is 0, so no node is given up there."},
		{"where it waits its turn, at which rate", fleet.SiteStatus{EvictionRate: "0.1"}, "Its pods stay for now: site oslo gives up one node every 10s, and it is next."},
	} {
		n := testNode("pi-2", "oslo", condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
		s := newMemory(n, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Status: c.status}).Snapshot()
		chain := nodeChain(s, n, now0)
		if len(chain) == 0 || chain[len(chain)-1] != c.want {
			t.Errorf("%s: %q, want %q", c.name, chain, c.want)
		}
	}
}

func TestSearch(t *testing.T) {
	labels := map[string]string{"kubernetes.io/arch": "arm64", "flotilla.dev/board": "raspberrypi4", "room": "Kitchen"}
	for _, c := range []struct {
		name, search string
		want         bool
	}{
		{"a part of the name", "gate", true},
		{"another name", "pi", false},
		{"every word must fit", "gate arch:arm64", true},
		{"one that does not fit", "gate arch:amd64", false},
		{"a label by its short name", "board:raspberry", true},
		{"a label by its whole name", "flotilla.dev/board:raspberrypi4", true},
		{"a label without a prefix, in any case", "room:kitchen", true},
		{"that a label is there", "room:", true},
		{"that a label is not there", "shelf:", false},
	} {
		if got := matches("gateway", labels, strings.Fields(c.search)); got != c.want {
			t.Errorf("%s (%s): %v, want %v", c.name, c.search, got, c.want)
		}
	}
}

func TestPagesOfAList(t *testing.T) {
	var objects []state.Object
	for i := range 250 {
		objects = append(objects, testNode(fmt.Sprintf("n-%03d", i), "oslo", nil))
	}
	srv := start(t, configOf(newMemory(objects...)))
	for _, c := range []struct{ name, query, has, hasNot string }{
		{"the first has no previous", "", "1–100 of 250", "← Previous"},
		{"the last has no next", "?page=3", "201–250 of 250", "Next →"},
		{"one beyond the last is the last", "?page=99", "201–250 of 250", "Next →"},
		{"nonsense is the first", "?page=x", "1–100 of 250", "← Previous"},
		{"the filter stays", "?page=2&q=n-", "page=3&amp;q=n-", "n-000"},
	} {
		_, body := srv.ask(t, "viewer", "GET", "/nodes"+c.query, nil)
		if !strings.Contains(body, c.has) || strings.Contains(body, c.hasNot) {
			t.Errorf("%s: %q is there: %v, %q is there: %v", c.name, c.has, strings.Contains(body, c.has), c.hasNot, strings.Contains(body, c.hasNot))
		}
	}
}

func TestAHardwareReportOfAnyShapeIsShown(t *testing.T) {
	for _, c := range []struct{ name, report, want string }{
		{"amounts are readable", `{"capacity":{"memory":4294967296}}`, "[{Capacity [{Memory 4.0 GiB}]}]"},
		{"things of a list stand by their name", `{"temperatures":[{"name":"cpu","celsius":51.5}]}`, "[{Temperatures [{CPU Celsius 51.5 °C}]}]"},
		{"what is not in a part stands under Other", `{"memoryLimits":true}`, "[{Other [{Memory Limits yes}]}]"},
		{"what is no report is nothing", `[1,2]`, "[]"},
		{"nothing is nothing", ``, "[]"},
	} {
		if got := fmt.Sprint(hardware([]byte(c.report))); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
