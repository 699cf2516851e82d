package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/labstack/echo/v4"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/ask"
)

func TestTheLogsOfAContainer(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.device.lines = []string{"starting kiosk 1.4.2", "\x1b[33mwarn\x1b[0m display not found, trying again", `<img src=x onerror=alert(1)> {"user":"<script>alert(2)</script>"}`, "listening on :8080"}
	k.open("/pods/default/two-7d9f/logs?container=web")
	k.awaits("4 lines")
	k.says("warn display not found", "<img src=x onerror=alert(1)>", "listening on :8080")
	if !k.eval(`document.querySelectorAll("#log img, #log script").length === 0`) {
		t.Error("a line has become an element")
	}
	k.sizes("logs")

	k.device.log("GET / 200", "GET /health 200")
	k.awaits("6 lines") // each line once, although the stream begins before the last shown line
	k.fill("input[name=q]", "get")
	k.awaits("2 of 6 lines")
	if !k.eval(`document.querySelectorAll("#log mark").length === 2 && location.search.includes("q=get")`) {
		t.Error("the searched text is not marked, or not in the address")
	}
	k.device.log("GET /again 200", "another")
	k.awaits("3 of 8 lines")

	k.eval(`document.getElementById("pause").click(), true`)
	k.awaits("Follow")
	k.device.log("while paused")
	k.eval(`document.getElementById("pause").click(), true`)
	k.awaits("of 9 lines")

	k.excuse("net::ERR_") // the hub stops
	k.server.down.Store(true)
	k.server.CloseClientConnections()
	k.awaits("Connection to the hub lost")
	k.device.log("while away")
	k.server.down.Store(false)
	k.awaits("of 10 lines")
	k.await(`document.getElementById("lost").innerText === ""`)

	k.device.fail(fmt.Errorf("logs of node pi-1: %w", ask.ErrOffline))
	k.awaits("The device of node pi-1 is not connected to the hub")
	k.device.fail(nil)
	k.device.log("back again")
	k.await(`document.getElementById("trouble").hidden`)
	k.awaits("of 11 lines")

	k.eval(`(s => { s.value = "side"; s.dispatchEvent(new Event("change", {bubbles: true})); return true })(document.querySelector("select[name=container]"))`)
	k.await(`location.search.includes("container=side") && document.querySelector(".head small").innerText.startsWith("side")`)
}

// NodeLogs returns the same lines as Logs.
func (d *device) NodeLogs(ctx context.Context, _ string, o corev1.PodLogOptions, w io.Writer) error {
	return d.Logs(ctx, nil, o, w)
}

func TestTheLogOfAnAgent(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.device.lines = []string{`level=INFO msg="the agent runs" version=0.1.0`, `level=WARN msg="pull \"<img src=x onerror=alert(1)>\x1b[31m\"" err="\x1b]0;title\x07no such image"`}
	k.open("/nodes/pi-1")
	k.press(`.actions a[href="/nodes/pi-1/logs"]`)
	k.awaits("2 lines")
	k.says("the agent runs", "<img src=x onerror=alert(1)>")
	if !k.eval(`document.querySelectorAll("#log img").length === 0 && !document.querySelector("input[name=previous], select[name=container]")`) {
		t.Error("a line has become an element, or a pod's choices are there")
	}
	k.sizes("node-logs")
	k.device.log(`level=INFO msg=connected`)
	k.awaits("3 lines")
	k.fill("input[name=q]", "connected")
	k.awaits("1 of 3 lines")

	k.device.fail(fmt.Errorf("x: %w", ask.ErrTooOld))
	k.awaits("The agent of node pi-1 is too old to show its log here")
	k.await(`document.getElementById("pause").hidden`) // another request would not help
	k.device.fail(nil)
	k.press(".crumbs a:last-child")
	k.await(`location.pathname === "/nodes/pi-1"`)
}

// A StatefulSet's pod returns with its name on a node whose clock is slower: no line of its log is
// missing.
func TestAReturningPodsLogIsComplete(t *testing.T) {
	pod := admintest.Pod("web-0", "pi-1", func(p *corev1.Pod) { p.UID = "first" })
	m := admintest.New(append(admintest.Sample(), pod)...)
	c := configOf(m)
	d, _ := equip(&c)
	srv := start(t, c)
	d.log("a", "b", "c", "d", "e", "f", "g")
	_, body := srv.ask(t, "viewer", http.MethodGet, "/pods/default/web-0/logs", nil)
	_, from, _ := strings.Cut(body, `data-from="`)
	from, _, _ = strings.Cut(from, `"`)
	if !strings.HasPrefix(from, stampOf(6).Format(time.RFC3339)) {
		t.Fatalf("the page continues from %q", from)
	}
	d.mu.Lock()
	d.lines = []string{"I am back", "and ready"}
	d.mu.Unlock()
	m.Put(t, admintest.Pod("web-0", "pi-2", func(p *corev1.Pod) { p.UID = "second" }))
	l := srv.listen(t, "viewer", "/pods/default/web-0/logs/stream?from="+url.QueryEscape(html.UnescapeString(from)))
	timeout := time.After(generous)
	for {
		select {
		case e := <-l.events:
			if e[0] == "lines" {
				if !strings.Contains(e[2], "I am back") || !strings.Contains(e[2], "and ready") {
					t.Errorf("the page is sent %s", e[2])
				}
				return
			}
		case <-timeout:
			t.Fatal("the page is sent no line")
		}
	}
}

// A page that reconnects after a night requests at most as many lines as it holds.
func TestAReconnectingPageRequestsOnlyWhatItHolds(t *testing.T) {
	c := configOf(admintest.New(append(admintest.Sample(), toolObjects()...)...))
	d, _ := equip(&c)
	srv := start(t, c)
	d.log("a")
	_, body := srv.ask(t, "viewer", http.MethodGet, "/pods/default/kiosk-7d9f-abcde/logs", nil)
	_, from, _ := strings.Cut(body, `data-from="`)
	from, _, _ = strings.Cut(from, `"`)
	var night []string
	for i := range 9000 {
		night = append(night, fmt.Sprintf("line %d of the night", i))
	}
	d.log(night...)
	l := srv.listen(t, "viewer", "/pods/default/kiosk-7d9f-abcde/logs/stream?from="+url.QueryEscape(html.UnescapeString(from)))
	var lines [][2]string
	timeout := time.After(generous)
	for len(lines) == 0 || lines[len(lines)-1][1] != "line 8999 of the night" {
		select {
		case e := <-l.events:
			var more [][2]string
			if e[0] == "lines" && json.Unmarshal([]byte(e[2]), &more) != nil {
				t.Fatalf("the page is sent %.300s", e[2])
			}
			lines = append(lines, more...)
		case <-timeout:
			t.Fatal("the page is not sent the last line")
		}
	}
	if n := len(lines); n > 5000 || n < 4900 {
		t.Errorf("the page is sent %d lines, and holds 5,000", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := d.asked[len(d.asked)-1]; last.TailLines == nil || *last.TailLines != 5000 || last.SinceTime == nil {
		t.Errorf("the device is asked for %+v", last)
	}
}

// A page that follows a deleted pod's log says so and stops. An answer that is not a stream would
// look like a lost connection.
func TestTheLogOfADeletedPodEnds(t *testing.T) {
	srv := start(t, configOf(admintest.New(append(admintest.Sample(), toolObjects()...)...)))
	for path, says := range map[string]string{
		"/pods/default/nobody/logs/stream":                          "There is no pod nobody in namespace default.",
		"/pods/default/kiosk-7d9f-abcde/logs/stream?container=gone": "Pod kiosk-7d9f-abcde has no container gone.",
		"/nodes/nobody/logs/stream":                                 "There is no node nobody.",
	} {
		l := srv.listen(t, "viewer", path)
		var told string
		for e := range l.events {
			if e[0] == "over" {
				told = e[2]
			}
		}
		if want := fmt.Sprintf("{\"again\":false,\"text\":%q}\n", says); told != want {
			t.Errorf("%s ends with %q, want %q", path, told, want)
		}
	}
}

// A tab in the background frees its seat, and continues where it was when it is shown again.
func TestAHiddenPageDoesNotFollowItsLog(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.device.lines = []string{"first line"}
	k.open("/pods/default/two-7d9f/logs?container=web")
	k.awaits("1 line")
	k.device.followed(t)
	taken := func(want int64) {
		t.Helper()
		for end := time.Now().Add(generous); k.device.follows.Load() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d logs are followed, want %d", k.device.follows.Load(), want)
			}
		}
	}
	see := func(hidden bool) {
		k.eval(fmt.Sprintf(`Object.defineProperty(document, "hidden", {configurable: true, value: %v}), document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	taken(1)
	see(true)
	taken(0)
	k.device.log("while the page is hidden")
	k.eval(`document.getElementById("pause").click(), true`) // a hidden page does not follow
	k.eval(`document.getElementById("pause").click(), true`)
	see(false)
	k.awaits("2 lines")
	k.awaits("while the page is hidden")
	taken(1)

	k.eval(`document.getElementById("pause").click(), true`)
	taken(0)
	see(true)
	see(false)
	k.device.log("while paused")
	k.eval(`document.getElementById("pause").click(), true`)
	k.awaits("3 lines")
	k.device.fail(fmt.Errorf("x: %w", ask.ErrTooOld)) // the stream does not come back
	k.await(`document.getElementById("pause").hidden`)
	k.device.fail(nil)
	see(true)
	see(false)
	taken(0)
}

func TestALogIsBoundedInTheBrowser(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.open("/pods/default/kiosk-7d9f-abcde/logs")
	k.awaits("Nothing has been logged")
	k.device.followed(t)
	for batch := range 12 {
		var lines []string
		for i := range 1000 {
			lines = append(lines, fmt.Sprintf("batch %d line %d of many", batch, i))
		}
		k.device.log(lines...)
	}
	k.awaits("batch 11 line 999 of many")
	if !k.eval(`document.querySelectorAll("#log > div").length <= 5000 && document.getElementById("count").textContent === "5,000 lines"`) {
		t.Error("the page holds more than 5,000 lines")
	}
	if !k.eval(`(l => l.scrollHeight - l.scrollTop - l.clientHeight < 50)(document.getElementById("log"))`) {
		t.Error("the end of the log is not visible")
	}
}

func TestLogsWithoutScript(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.device.lines = []string{"first line", "second line"}
	k.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	k.open("/pods/default/kiosk-7d9f-abcde/logs")
	lines := func() (text string) { // the browser may not have drawn it yet
		text, err := chromedp.Run(k.ctx, chromedp.Evaluate[string](`[...document.querySelectorAll("#log div:not([hidden]) span")].map((s) => s.textContent).join("|")`))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	k.says("2 lines")
	if got := lines(); got != "first line|second line" {
		t.Errorf("shows %q", got)
	}
	k.open("/pods/default/kiosk-7d9f-abcde/logs?q=first&tail=100&previous=1")
	k.says("1 of 2 lines")
	if got := lines(); got != "first line" {
		t.Errorf("the search shows %q", got)
	}
	if last := k.device.asked[len(k.device.asked)-1]; !last.Previous || *last.TailLines != 100 || last.Container != "web" {
		t.Errorf("the device was asked for %+v", last)
	}
}

func TestWhyThereIsNoLog(t *testing.T) {
	m := admintest.New(append(admintest.Sample(), toolObjects()...)...)
	c := configOf(m)
	d, _ := equip(&c)
	srv := start(t, c)
	for _, tt := range []struct {
		name, path string
		err        error
		says       string
	}{
		{"the device is not connected", "/pods/default/kiosk-7d9f-abcde/logs", fmt.Errorf("x: %w", ask.ErrOffline), "The device of node pi-1 is not connected to the hub; its logs are there when it is back."},
		{"the link was lost", "/pods/default/kiosk-7d9f-abcde/logs", fmt.Errorf("x: %w", ask.ErrLost), "The device of node pi-1 does not answer now"},
		{"the device has a reason", "/pods/default/kiosk-7d9f-abcde/logs", errors.New("previous terminated container not found"), "The device says: previous terminated container not found."},
		{"the pod has no node", "/pods/default/kiosk-7d9f-klmno/logs", nil, "has not been placed on a node yet"},
		{"the pod does not exist", "/pods/default/nobody/logs", nil, "There is no pod nobody"},
		{"the container does not exist", "/pods/default/kiosk-7d9f-abcde/logs?container=x", nil, "Pod kiosk-7d9f-abcde has no container x."},
		{"the agent is too old for the request", "/nodes/pi-1/logs", fmt.Errorf("x: %w", ask.ErrTooOld), "The agent of node pi-1 is too old to show its log here; update flotilla-device there."},
		{"the node does not exist", "/nodes/nobody/logs", nil, "There is no node nobody."},
		{"the file of a node's log: the same sentence", "/nodes/pi-1/logs/download", fmt.Errorf("x: %w", ask.ErrLost), "The device of node pi-1 does not answer now"},
		{"the file of a pod's log: the same sentence", "/pods/default/kiosk-7d9f-abcde/logs/download", fmt.Errorf("x: %w", ask.ErrOffline), "The device of node pi-1 is not connected"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d.fail(tt.err)
			if _, body := srv.ask(t, "viewer", http.MethodGet, tt.path, nil); !strings.Contains(body, tt.says) {
				t.Errorf("does not say %q: %.900s", tt.says, body)
			}
		})
	}
	d.fail(nil)
	d.log("a", "b")
	resp, body := srv.ask(t, "viewer", http.MethodGet, "/pods/default/kiosk-7d9f-abcde/logs/download?container=web", nil)
	if resp.Header.Get("Content-Disposition") != "attachment; filename=kiosk-7d9f-abcde-web.log" || strings.Count(body, "\n") != 2 {
		t.Errorf("%v %q", resp.Header, body)
	}
	resp, body = srv.ask(t, "viewer", http.MethodGet, "/nodes/pi-1/logs/download", nil)
	if resp.Header.Get("Content-Disposition") != "attachment; filename=pi-1-agent.log" || strings.Count(body, "\n") != 2 {
		t.Errorf("%v %q", resp.Header, body)
	}
}

// A log longer than the largest download says that the rest is missing.
func TestATooLongDownloadSaysThatItIsCut(t *testing.T) {
	for _, tt := range []struct {
		name string
		size int64
		says bool
	}{{"too long", mostSaved + 1, true}, {"just not", mostSaved - 1, false}} {
		t.Run(tt.name, func(t *testing.T) {
			c := configOf(admintest.New(append(admintest.Sample(), toolObjects()...)...))
			equip(&c)
			c.Logs = endless(tt.size)
			e := echo.New()
			New(c).Register(e)
			r := httptest.NewRequest(http.MethodGet, "/pods/default/kiosk-7d9f-abcde/logs/download?container=web", nil)
			r.Header.Set(nameHeader, "viewer")
			w := &ending{header: http.Header{}}
			e.ServeHTTP(w, r)
			if strings.Contains(string(w.last), "The rest is missing") != tt.says || w.n < min(tt.size, mostSaved) {
				t.Errorf("%d bytes, ending with %q", w.n, w.last)
			}
		})
	}
}

// endless returns logs of a size, as far as they are requested.
type endless int64

func (size endless) Logs(_ context.Context, _ *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
	line := bytes.Repeat([]byte("all is well\n"), 100_000)
	for left := min(int64(size), *o.LimitBytes); left > 0; {
		n, err := w.Write(line[:min(left, int64(len(line)))])
		if left -= int64(n); err != nil {
			return err
		}
	}
	return nil
}

func (size endless) NodeLogs(ctx context.Context, _ string, o corev1.PodLogOptions, w io.Writer) error {
	return size.Logs(ctx, nil, o, w)
}

// An ending keeps the last bytes written, and counts all.
type ending struct {
	header http.Header
	n      int64
	last   []byte
}

func (w *ending) Header() http.Header { return w.header }

func (*ending) WriteHeader(int) {}

func (*ending) Flush() {}

func (w *ending) Write(b []byte) (int, error) {
	w.n += int64(len(b))
	w.last = append([]byte(nil), b[max(0, len(b)-200):]...)
	return len(b), nil
}
