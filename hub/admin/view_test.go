package admin

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/history"
	"flotilla.dev/hub/state"
)

// raw fetches a page without decompressing it.
func (s *server) raw(t testing.TB, path string, headers ...string) (http.Header, []byte) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
	req.Header.Set(nameHeader, "viewer")
	req.Header.Set("Accept-Encoding", "gzip")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header, body
}

func TestTheFirstViewIsSmall(t *testing.T) {
	srv := start(t, configOf(admintest.Many(1000)))
	for _, path := range []string{"/", "/nodes", "/pods"} {
		total := 0
		h, body := srv.raw(t, path)
		if h.Get("Content-Encoding") != "gzip" || !strings.Contains(h.Get("Vary"), "Accept-Encoding") {
			t.Errorf("%s is not compressed: %v", path, h)
		}
		total += len(body)
		_, page := srv.ask(t, "viewer", "GET", path, nil)
		for _, asset := range regexp.MustCompile(`(?:src|href)="(/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
			h, body := srv.raw(t, asset[1])
			if h.Get("Content-Encoding") != "gzip" || !strings.Contains(h.Get("Cache-Control"), "immutable") {
				t.Errorf("%s is not compressed, or not kept: %v", asset[1], h)
			}
			total += len(body)
		}
		if total > 150<<10 {
			t.Errorf("the first view of %s has %d bytes, want 150 KiB at most", path, total)
		}
		t.Logf("the first view of %s: %d bytes", path, total)
	}
	if h, _ := srv.raw(t, "/nodes", "Accept-Encoding", "identity"); h.Get("Content-Encoding") != "" {
		t.Error("a browser that accepts no compression gets a compressed page")
	}
}

var rowKeys = regexp.MustCompile(`<tr data-key="([^"/]+)">`)

func TestAListIsSortedAsTheAddressSays(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	order := func(query string) (names []string) {
		_, body := srv.ask(t, "viewer", "GET", "/nodes"+query, nil)
		for _, m := range rowKeys.FindAllStringSubmatch(body, -1) {
			names = append(names, m[1])
		}
		return names
	}
	for _, c := range []struct{ name, query, first, last string }{
		{"trouble first by default", "", "bone-2", "pi-1"}, {"by name", "?sort=name", "bone-1", "pi-3"},
		{"by name the other way", "?sort=-name", "pi-3", "bone-1"},
		{"by status, the worst first", "?sort=status", "bone-2", "pi-1"},
		{"by pods, the fullest first", "?sort=pods", "pi-1", "pi-3"},
		{"by site, the other way", "?sort=-site", "pi-3", "bone-1"},
	} {
		names := order(c.query)
		if len(names) != 8 || names[0] != c.first || names[7] != c.last {
			t.Errorf("%s: %v, want from %s to %s", c.name, names, c.first, c.last)
		}
	}
	_, body := srv.ask(t, "viewer", "GET", "/nodes?sort=-status&site=oslo", nil)
	for _, want := range []string{`<th aria-sort="descending"><a href="/nodes?site=oslo">`, `<a href="/nodes?site=oslo&amp;sort=pods">`, `<a href="/nodes?site=oslo&amp;sort=name">Node`, `<option value="-status" selected>`} {
		if !strings.Contains(body, want) {
			t.Errorf("the heads of the columns lack %q", want)
		}
	}
}

func TestAFleetOfFiveThousandIsSearchedQuickly(t *testing.T) {
	srv := start(t, configOf(admintest.Many(5000)))
	for query, want := range map[string]string{"?q=board:raspberry+499": "15 nodes found", "?q=nobody": "0 nodes found", "?q=site:site-7+-4987": "249 nodes found", "?site=site-7&sort=-memory": "250 nodes found"} {
		if _, body := srv.ask(t, "viewer", "GET", "/nodes"+query, nil); !strings.Contains(body, want) {
			t.Errorf("/nodes%s does not say %q", query, want)
		}
	}
	_, body := srv.ask(t, "admin", "GET", "/actions/nodes/cordon", nil)
	if !strings.Contains(body, "Cordon 5000 nodes") || strings.Contains(body, "more wait for another") || strings.Count(body, `name="item"`) > mostItems {
		t.Errorf("the confirmation for 5,000 nodes is %.3000s", body)
	}
}

// Events of both API generations show how often they occurred.
func TestAnEventSaysHowOften(t *testing.T) {
	about := corev1.ObjectReference{Kind: "Node", Name: "pi-1"}
	series := &corev1.EventSeries{Count: 41, LastObservedTime: metav1.NewMicroTime(admintest.Now)}
	srv := start(t, configOf(admintest.New(append(admintest.Sample(),
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "pi-1.1", Namespace: "default"}, InvolvedObject: about, Reason: "Counted", Count: 7, LastTimestamp: metav1.NewTime(admintest.Now)},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "pi-1.2", Namespace: "default"}, InvolvedObject: about, Reason: "Observed", Series: series, EventTime: metav1.NewMicroTime(admintest.Now)},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "pi-1.3", Namespace: "default"}, InvolvedObject: about, Reason: "Single", EventTime: metav1.NewMicroTime(admintest.Now)})...)))
	for _, path := range []string{"/events", "/nodes/pi-1"} {
		_, body := srv.ask(t, "viewer", "GET", path, nil)
		for _, want := range []string{"×7</small>", "×41</small>"} {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not say %q", path, want)
			}
		}
		if strings.Contains(body, "×1</small>") {
			t.Errorf("%s has a count for a single event", path)
		}
	}
}

// Events about a CronJob's Jobs outlive the Jobs.
func TestAnEventOfADeletedJobHasNoLink(t *testing.T) {
	m := admintest.New(append(admintest.Sample(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "night-2", Namespace: "default"}})...)
	a := New(configOf(m)).RequestFor(frame.Question{Role: access.Admin, Path: "/"})
	for name, want := range map[string]string{"night-1": "", "night-2": frame.OwnerHref("default", "job", "night-2")} {
		e := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Job", Namespace: "default", Name: name}, Reason: "Completed"}
		if r := frame.EventRowOf(a, e); r.Href != want || r.About != "job "+name {
			t.Errorf("an event of %s leads to %q, want %q", r.About, r.Href, want)
		}
	}
}

// The stored generation is known from a device's lease. If a node is dark while the hub starts, it is
// not known.
func TestADarkNodesDesiredStateIsNotKnown(t *testing.T) {
	for _, c := range []struct {
		live frame.Liveness
		want string
	}{
		{frame.Liveness{Wanted: 3}, "generation 3; the device has not yet said which one it has"},
		{frame.Liveness{Wanted: 3, Seen: admintest.Now}, "generation 3; the device has 0"},
		{frame.Liveness{Wanted: 3, Stored: 2, Seen: admintest.Now}, "generation 3; the device has 2"},
		{frame.Liveness{Wanted: 3, Stored: 3, Seen: admintest.Now}, "generation 3, stored by the device"},
	} {
		conf := configOf(admintest.New(admintest.Sample()...))
		conf.Liveness = func(string) frame.Liveness { return c.live }
		if _, body := start(t, conf).ask(t, "viewer", "GET", "/nodes/pi-1", nil); !strings.Contains(body, c.want+"<") {
			t.Errorf("%+v: it does not say %q: %s", c.live, c.want, wordsOf(body))
		}
	}
}

// Good conditions are folded; bad ones are shown.
func TestGoodConditionsAreFolded(t *testing.T) {
	good := admintest.Node("good", "oslo", admintest.Condition("MemoryLimits", "True", "MemoryControllerEnabled", "m"))
	bad := admintest.Node("bad", "oslo", admintest.Condition("DiskPressure", "True", "KubeletHasDiskPressure", "the disk is full"))
	srv := start(t, configOf(admintest.New(good, bad)))
	of := func(name string) string {
		_, body := srv.ask(t, "viewer", "GET", "/nodes/"+name, nil)
		_, after, _ := strings.Cut(body, "<h2>Conditions</h2>")
		section, _, _ := strings.Cut(after, "</section>")
		return section
	}
	if before, _, ok := strings.Cut(of("good"), "<details"); !ok || strings.Contains(before, "<table") || !strings.Contains(of("good"), "are good</summary>") && !strings.Contains(of("good"), "is good</summary>") {
		t.Errorf("the node without trouble: %s", of("good"))
	}
	before, after, ok := strings.Cut(of("bad"), "<details")
	if !ok || !strings.Contains(before, `data-key="DiskPressure"`) || strings.Contains(before, `data-key="Ready"`) || !strings.Contains(after, "The other ") || !strings.Contains(after, `data-key="Ready"`) {
		t.Errorf("the node whose disk is full: %s", of("bad"))
	}
}

// A row has a strip only if there was trouble in the last day, and does not repeat what its status
// and Heard say.
func TestANodesRowShowsOnlyWhatIsUnusual(t *testing.T) {
	before := func(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(admintest.Now.Add(-d)) }
	record := func(name string, turns ...state.HealthChange) state.Object {
		return &state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, History: turns}
	}
	calm, shaky := admintest.Node("calm", "oslo", nil), admintest.Node("shaky", "oslo", nil)
	dark := admintest.Node("dark", "oslo", admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
	dark.Status.Conditions[0].LastTransitionTime = metav1.NewTime(admintest.Now.Add(-5 * time.Hour))
	m := admintest.New(calm, shaky, dark, record("calm", state.HealthChange{At: before(90 * time.Hour), Ready: "True"}),
		record("shaky", state.HealthChange{At: before(90 * time.Hour), Ready: "True"}, state.HealthChange{At: before(5 * time.Hour), Ready: "Unknown"}, state.HealthChange{At: before(4 * time.Hour), Ready: "True"}),
		admintest.Event("Node", "dark", "NodeNotReady", "node dark Ready=Unknown: no heartbeat for 40s", 0))
	_, body := start(t, configOf(m)).ask(t, "viewer", "GET", "/nodes", nil)
	row := func(name string) string {
		_, after, _ := strings.Cut(body, `data-key="`+name+`"`)
		row, _, _ := strings.Cut(after, "</tr>")
		return row
	}
	if !strings.Contains(row("shaky"), `class="bar"`) || strings.Contains(row("calm"), `class="bar"`) || strings.Contains(row("dark"), `class="bar"`) {
		t.Errorf("the wrong rows have a strip: %s", mainOf(body))
	}
	if strings.Contains(body, "dark/why") || strings.Contains(body, "no heartbeat for 40s") {
		t.Errorf("a silent node's row repeats itself: %s", mainOf(body))
	}
}

func TestARowHasSparksOfChangedFigures(t *testing.T) {
	c := configOf(admintest.New(admintest.Node("pi-1", "oslo", nil)))
	c.History = func(_ types.UID, _ time.Time, n int) []history.Word {
		words := make([]history.Word, n)
		for i := range words {
			s := history.Nothing()
			s[history.CPU], s[history.Memory] = float64(i)/float64(n), .5
			words[i] = history.Pack(s)
		}
		return words
	}
	if _, body := start(t, c).ask(t, "viewer", "GET", "/nodes", nil); strings.Count(body, `<svg class="spark"`) != 1 {
		t.Errorf("%d of the changed processors and the unchanged memory have a spark: %s", strings.Count(body, `<svg class="spark"`), mainOf(body))
	}
}
