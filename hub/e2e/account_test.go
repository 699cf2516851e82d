package e2e

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"flotilla.dev/hub/e2e/kubectltest"
)

// A pageUser uses the page over HTTP, without a browser.
type pageUser struct {
	*hub
	client *http.Client
	csrf   string
}

var (
	csrfField   = regexp.MustCompile(`name="csrf" value="([a-z0-9]+)"`)
	secretField = regexp.MustCompile(`name="token" value="(FLA1[^"]+)"`)
	tags        = regexp.MustCompile(`<[^>]*>`)
)

// goes opens a page, or sends a form, and returns the response.
func (p *pageUser) goes(path string, form url.Values) string {
	p.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "https://"+p.https+path, nil)
	if form != nil {
		form.Set("csrf", p.csrf)
		r, err = http.NewRequest(http.MethodPost, "https://"+p.https+path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if err != nil {
		p.t.Fatal(err)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode/100 != 2 {
		p.t.Fatalf("%s %s: %d %v: %.900s", r.Method, path, answer.StatusCode, err, body)
	}
	return string(body)
}

// An operator creates a kubeconfig in the page and uses it. The audit distinguishes page, API and
// command line.
func TestAUsersTokenAndTheOriginInTheAudit(t *testing.T) {
	t.Parallel()
	program, kubectl := program(t, "hub", here), kubectl(t)
	h := newHub(t)
	if r := (command{path: program, args: []string{"user", "create", "olav", "--role", "operator", "--data-dir", h.dir},
		stdin: "four words are good\n"}).run(t); r.code != 0 {
		t.Fatal(r.err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := h.client.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = nil
	olav := &pageUser{hub: h, client: &http.Client{Transport: transport, Jar: jar, Timeout: patience}}
	olav.goes("/login", url.Values{"name": {"olav"}, "password": {"four words are good"}})
	olav.csrf = csrfField.FindStringSubmatch(olav.goes("/account", nil))[1]

	made := secretField.FindStringSubmatch(olav.goes("/account", url.Values{"action": {"create"},
		"note": {"laptop"}, "life": {"24h"}}))
	if made == nil {
		t.Fatal("the page must show the new token")
	}
	config := filepath.Join(t.TempDir(), "olav.yaml")
	if err := os.WriteFile(config, []byte(olav.goes("/account", url.Values{"action": {"kubeconfig"}, "token": {made[1]}})),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
	}{{"auth whoami", 0}, {"create namespace by-kubectl", 0}, {"create clusterrole x --verb get --resource nodes", 1}} {
		if out, errs, code := kubectltest.RunInput(t, kubectl, config, "", strings.Fields(c.args)...); code != c.code ||
			c.args == "auth whoami" && !strings.Contains(out, "olav") {
			t.Errorf("kubectl %s: code %d, want %d: %s%s", c.args, code, c.code, out, errs)
		}
	}
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: by-page, namespace: default}\n"
	olav.goes("/yaml", url.Values{"action": {"apply"}, "text": {text}, "namespace": {"default"},
		"checked": {"default false\n" + text}})
	h.kubectl("create", "configmap", "by-certificate")

	audit := func(from string) string {
		body, err := h.get("/audit?from=" + from)
		if err != nil {
			t.Fatal(err)
		}
		_, rows, _ := strings.Cut(string(body), "<tbody>")
		rows, _, _ = strings.Cut(rows, "</tbody>")
		return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(rows, " "))), " ")
	}
	page, api, line := audit("page"), audit("api"), audit("command")
	for _, c := range []struct{ where, has, hasNot string }{
		{page, "olav page, 127.0.0.1 changed config map default/by-page", "by-kubectl"},
		{page, "olav page, 127.0.0.1 made an API token: laptop", "command line"},
		{page, "olav page, password, 127.0.0.1 logged in", "by-certificate"},
		{api, "olav API, token, 127.0.0.1 created namespace by-kubectl", "by-page"},
		{api, "admin API, certificate, 127.0.0.1 created config map default/by-certificate", "laptop"},
		{line, "command line created user olav", "olav page"},
	} {
		if !strings.Contains(c.where, c.has) || strings.Contains(c.where, c.hasNot) {
			t.Errorf("the audit must have %q and must not have %q: %s", c.has, c.hasNot, c.where)
		}
	}
	if all := audit(""); strings.Contains(all, made[1]) || strings.Contains(all, strings.Split(made[1], ".")[2]) {
		t.Error("the audit must not have the token")
	}
}
