package admin

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/shared/fleet"
)

// The hub refuses a form's value that is too long or invalid with the limit; the browser neither
// cuts it nor refuses it itself.
func TestAFormOverItsLimitsIsRefusedWithTheLimit(t *testing.T) {
	c, _ := guarded(t, admintest.New(admintest.Sample()...))
	g := c.Views.(*access.Guard)
	d := configOf(admintest.New(admintest.Sample()...))
	d.Views, d.People, d.Tokens = g, g, g
	if err := g.CreateUser(t.Context(), access.NewUser{Name: "test-admin", Password: "four words are good", Role: access.Admin}); err != nil {
		t.Fatal(err)
	}
	srv := start(t, d)
	long := strings.Repeat("a", 300)
	for _, f := range []struct {
		path string
		form url.Values
		says []string
	}{
		{"/devices/add", url.Values{"site": {"site 01"}, "uses": {"1"}, "life": {"1h"}}, []string{"Site &#34;site 01&#34; is not valid; use lower-case letters, digits and &#39;-&#39;, such as oslo."}},
		{"/devices/add", url.Values{"site": {long}, "uses": {"1"}, "life": {"1h"}}, []string{"Site has 300 characters; use at most 63."}},
		{"/devices/add", url.Values{"site": {"oslo"}, "node": {long}, "uses": {"1"}, "life": {"1h"}}, []string{"at most 253"}},
		{"/devices/add", url.Values{"site": {"oslo"}, "names": {"a1,till-1\nb2"}, "prefix": {"till-"}, "uses": {"1"}, "life": {"1h"}}, []string{"line 2: &#34;b2&#34; is not SERIAL,NAME", "a1,till-1\nb2</textarea>", `value="till-"`, "<details open>"}},
		{"/devices/add", url.Values{"site": {"oslo"}, "prefix": {"Till "}, "uses": {"1"}, "life": {"1h"}}, []string{"Name prefix: "}},
		{"/settings", url.Values{"action": {"user-create"}, "name": {long}, "role": {"viewer"}, "password": {"four words are good"}}, []string{"63"}},
		{"/views", url.Values{"action": {"save"}, "name": {long}, "href": {"/nodes"}}, []string{"40"}},
	} {
		f.form.Set("csrf", csrf)
		resp, body := srv.ask(t, "admin", "POST", f.path, f.form)
		if resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s %v: %d", f.path, f.form, resp.StatusCode)
		}
		for _, want := range f.says {
			if !strings.Contains(body, want) {
				t.Errorf("%s %.40v does not say %q: %.900s", f.path, f.form, want, mainOf(body))
			}
		}
	}
	for path, limit := range map[string]string{"/settings": "64 KiB", "/login": "64 KiB", "/yaml": "4096 KiB"} {
		form := url.Values{"csrf": {csrf}, "text": {strings.Repeat("x", 5<<20)}}
		if resp, body := srv.ask(t, "admin", "POST", path, form); resp.StatusCode != http.StatusRequestEntityTooLarge ||
			!strings.Contains(body, limit) {
			t.Errorf("%s, far too long: %d %.600s", path, resp.StatusCode, mainOf(body))
		}
	}
	for _, path := range []string{"/devices/add", "/settings", "/nodes"} {
		if resp, body := srv.ask(t, "admin", "GET", path, nil); resp.StatusCode != http.StatusOK || strings.Contains(body, " pattern=") {
			t.Errorf("%s has the browser say what is wrong", path)
		}
	}
}

func TestSettingsSayHowToBeNotified(t *testing.T) {
	c := configOf(admintest.New(admintest.Sample()...))
	_, body := start(t, c).ask(t, "admin", "GET", "/settings", nil)
	if !strings.Contains(body, "No one is notified.") || !strings.Contains(body, `href="/help/incidents#who-is-told"`) {
		t.Errorf("without a webhook and mail: %s", mainOf(body))
	}
}

// Without a profile that has a boot configuration the page offers one for the fleet's boards.
func TestARolloutBeginsWithAReadyProfile(t *testing.T) {
	n := admintest.Node("pi-1", "oslo", func(n *corev1.Node) { n.Labels[fleet.LabelProfile] = "raspberrypi-5" })
	srv := start(t, configOf(admintest.New(n)))
	_, body := srv.ask(t, "admin", "GET", "/rollouts/_new", nil)
	if !strings.Contains(body, "kind: BoardProfile") || !strings.Contains(body, "name: raspberrypi-5") || !strings.Contains(body, `formaction="/yaml"`) {
		t.Errorf("%s", mainOf(body))
	}
}
