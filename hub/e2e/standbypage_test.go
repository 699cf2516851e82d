package e2e

import (
	"bufio"
	"errors"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
)

// visitor returns a browser that sends its cookies to all hubs, as if they had one name.
func (h *hub) visitor(jar http.CookieJar) *pageUser {
	transport := h.client.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = nil
	return &pageUser{hub: h, client: &http.Client{Transport: transport, Jar: jar, Timeout: patience}}
}

// code returns the status of a page.
func (p *pageUser) code(path string) int {
	p.t.Helper()
	answer, err := p.client.Get("https://" + p.https + path)
	if err != nil {
		p.t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.Request.URL.Path == "/login" {
		return http.StatusUnauthorized
	}
	return answer.StatusCode
}

// The page works at a standby, and at both hubs in turn: login, forms, live updates, a terminal, a
// download and logout. A session survives the loss of the leader.
func TestThePageThroughAStandby(t *testing.T) {
	t.Parallel()
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	start(t, program(t, "simulate", here), "--hub", "mqtt://"+b.dev+",mqtt://"+a.dev, "--count", "2", "--sites", "1",
		"--log-level", "error")
	b.allReady(2)
	if r := (command{path: program(t, "hub", here), args: []string{"user", "create", "olav", "--role", "admin",
		"--data-dir", b.dir}, stdin: "four words are good\n"}).run(t); r.code != 0 {
		t.Fatal(r.err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	there, leading := b.visitor(jar), a.visitor(jar)
	there.goes("/login", url.Values{"name": {"olav"}, "password": {"four words are good"}})
	there.csrf = csrfField.FindStringSubmatch(leading.goes("/account", nil))[1]

	for p, says := range map[*pageUser]string{there: "which passes this page on.", leading: " leads; "} {
		await(t, "the page shows the leader and the standby", patience, func() error {
			if page := p.goes("/nodes", nil); !strings.Contains(page, says) || !strings.Contains(page, " stands by") {
				return errors.New(page[strings.Index(page, "<footer"):])
			}
			return nil
		})
		if page := p.goes("/settings", nil); !strings.Contains(page, "Stands by") ||
			strings.Count(page, "you are here") != 1 {
			t.Errorf("the settings must list the hubs with their addresses: %s", page)
		}
	}
	for h, says := range map[*hub]string{b: "the leader is ", a: "is ready at https://" + a.https} {
		r := command{path: program(t, "hub", here), args: []string{"doctor", "--data-dir", h.dir}}.run(t)
		if r.code != 0 || !strings.Contains(r.out, says) ||
			(h == b) != strings.Contains(r.out, "it is on standby at https://"+b.https) {
			t.Errorf("doctor exited with code %d, or does not name the hub's role: %s%s", r.code, r.out, r.err)
		}
	}

	events := there.watches("/workloads")
	text := signYAML
	if printed := there.goes("/yaml", url.Values{"action": {"apply"}, "text": {text}, "namespace": {"default"},
		"checked": {"default false\n" + text}}); !strings.Contains(printed, "Created") {
		t.Fatalf("pasting at a standby: %.900s", printed)
	}
	await(t, "the open page at the standby shows the change", patience, func() error {
		select {
		case line := <-events:
			if strings.Contains(line, "/workloads/deployments/default/sign") {
				return nil
			}
		default:
		}
		return errors.New("not yet")
	})
	await(t, "its pods", patience, func() error { return b.available("sign", 2) })
	pods, err := b.pods("sign", "")
	if err != nil || len(pods) == 0 {
		t.Fatal(pods, err)
	}
	if file := there.goes("/pods/default/"+pods[0].Name+"/logs/download", nil); !strings.Contains(file,
		"simulated flotilla_") {
		t.Errorf("the log's file: %.300s", file)
	}
	b.typeIn(pods[0], "/pods/default/"+pods[0].Name+"/terminal/socket")

	answer, err := there.client.PostForm("https://"+b.https+"/settings", url.Values{"action": {"backup"}, "csrf": {"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _ = answer.Body.Close(); answer.StatusCode != http.StatusForbidden {
		t.Errorf("a form without the session's token: %s, want 403", answer.Status)
	}

	a.kill()
	await(t, "the waiting page reloads when a hub answers", patience, func() error {
		r, err := http.NewRequest(http.MethodGet, "https://"+b.https+"/nodes", nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept", "text/html")
		answer, err := there.client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Refresh") == "" {
			return errors.New(answer.Status)
		}
		return nil
	})
	c.leader()
	await(t, "the new leader knows the session", patience, func() error {
		if code := there.code("/settings"); code != http.StatusOK {
			return errors.New(http.StatusText(code))
		}
		return nil
	})
	a.start()
	there.goes("/settings", url.Values{"action": {"backup"}})
	leading.csrf = there.csrf
	if code := leading.code("/settings"); code != http.StatusOK {
		t.Errorf("the former leader answers the session with %d, want 200", code)
	}
	at := &url.URL{Scheme: "https", Host: a.https}
	had := jar.Cookies(at)
	leading.goes("/logout", url.Values{})
	again, err := cookiejar.New(nil)
	if err != nil || len(had) == 0 {
		t.Fatal(had, err)
	}
	again.SetCookies(at, had) // a browser that has not received the new cookie
	for _, h := range []*hub{a, b} {
		if code := h.visitor(again).code("/settings"); code != http.StatusUnauthorized {
			t.Errorf("after a logout at one hub the page answers %d at hub %s, want 401", code, h.https)
		}
	}
}

// watches opens a page as an event stream, and returns the stream's lines.
func (p *pageUser) watches(path string) <-chan string {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "https://"+p.https+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	endless := *p.client
	endless.Timeout = 0
	answer, err := endless.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	lines := make(chan string, 10_000)
	go func() {
		defer func() { _ = answer.Body.Close() }()
		for s := bufio.NewScanner(answer.Body); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}
