package admin

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/web/manual"
)

func TestTheManualIsServed(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	if resp, _ := srv.ask(t, "", http.MethodGet, "/help/sites", nil); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/login?next=%2Fhelp%2Fsites" {
		t.Errorf("without a login: %d %q", resp.StatusCode, resp.Header.Get("Location"))
	}
	for _, p := range frame.Handbook().Pages() {
		path := manual.Root + "/" + p.Name
		resp, body := srv.ask(t, "viewer", http.MethodGet, path, nil)
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, "<h1>"+strings.ReplaceAll(p.Title, "'", "&#39;")+"</h1>") {
			t.Errorf("%s: %d without its title", path, resp.StatusCode)
		}
		if size := small(t, []byte(body)); size > 60_000 {
			t.Errorf("%s has %d bytes, compressed", path, size)
		}
		if found := regexp.MustCompile(`<(script|img|link|iframe)[^>]*(src|href)="(https?:)?//`).FindString(body); found != "" {
			t.Errorf("%s loads from another host: %s", path, found)
		}
	}
	for path, want := range map[string]string{
		"/help":                               "The first five minutes</a>: try it",
		"/help?q=FailedMount":                 `<a href="/help/events#FailedMount">FailedMount</a>`,
		"/help?q=":                            "Type a word to look for",
		"/help?q=%3Cb%3Enone":                 "has all words of “&lt;b&gt;none”",
		"/help?q=" + strings.Repeat("x", 999): "has all words of “" + strings.Repeat("x", manual.MaxQuery) + "”",
	} {
		if resp, body := srv.ask(t, "viewer", http.MethodGet, path, nil); resp.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d without %q", path, resp.StatusCode, want)
		}
	}
	if resp, _ := srv.ask(t, "viewer", http.MethodGet, "/help/nothing", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a missing page: %d", resp.StatusCode)
	}
}

// The page's terms link the manual's explanations, and every such link has a target.
func TestThePageLeadsToTheManual(t *testing.T) {
	srv := start(t, configOf(admintest.New(append(admintest.Sample(), toolObjects()...)...)))
	for path, want := range map[string]string{
		"/nodes/pi-2":                    "/help/conditions#Node.Ready",
		"/nodes/pi-3":                    "/help/conditions#Node.DiskPressure",
		"/pods/default/kiosk-7d9f-crash": "/help/events#CrashLoopBackOff",
		"/events":                        "/help/events#NodeNotReady",
		"/sites":                         "/help/sites",
		"/devices/add":                   "/help/devices",
		"/devices/waiting":               "/help/devices#approval",
		"/boards":                        "/help/board-profiles",
		"/settings":                      "/help/backup",
		"/audit":                         "/help/audit",
	} {
		_, body := srv.ask(t, "admin", http.MethodGet, path, nil)
		if !strings.Contains(body, `href="`+want+`"`) {
			t.Errorf("%s does not lead to %s", path, want)
		}
		for _, m := range regexp.MustCompile(`href="/help/([a-z-]+)(?:#([^"]+))?"`).FindAllStringSubmatch(body, -1) {
			if p := frame.Handbook().Page(m[1]); p == nil || m[2] != "" && !p.Has(m[2]) {
				t.Errorf("%s leads to %s, which does not exist", path, m[0])
			}
		}
	}
	if frame.HelpURL("flotilla-hub", "flotilla-hub-serve", "--data-dir") == "" {
		t.Error("the settings' flags are not found")
	}
	if frame.HelpURL("events", "Worn") != "" || frame.HelpURL("events", "") != "" {
		t.Error("the manual finds an unknown word")
	}
}
