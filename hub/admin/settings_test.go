package admin

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func TestTheHubsOwnViews(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	evil := `<img src=x onerror=alert(1)>`
	k.fleet.Put(t, &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Spec: fleet.BoardProfileSpec{Title: evil, Match: fleet.BoardMatch{Compatible: []string{evil}}, Labels: map[string]string{evil: evil}}},
		admintest.Node("odd", "oslo", func(n *corev1.Node) { n.Labels[fleet.LabelBoard] = evil }))
	k.estate.acts[3].Who, k.estate.acts[3].Message = evil, "javascript:alert(2)\u202e"
	for _, v := range []struct {
		name, path string
		says       []string
	}{
		{"boards", "/boards", []string{"Raspberry Pi 4", "1 node", "raspberrypi,4-model-b or raspberrypi,400; arm64 or arm; 900 MiB of memory or more", "200m cpu, 160Mi memory", "memory.available below 64Mi", "No profile fits these boards:", "beaglebone-black (3 nodes)", "Edit as YAML"}},
		{"audit", "/audit", []string{"anna", "changed deployment default/kiosk-0", "wanted to delete node pi-2", "nobody known", "wanted to log in", "wrong name or password", "Older →", "page, 10.1.2.9", "API, token, 2001:db8::17", "page, password"}},
		{"audit-from", "/audit?from=command", []string{"root", "command line", "kiosk-4"}},
		{"audit-none", "/audit?from=device", []string{"No record matches."}},
		{"audit-search", "/audit?q=pi-2&result=refused", []string{"bo", "Refused", `role "operator" does not allow it`}},
		{"settings", "/settings", []string{"cleo.nordmann@example.org", "you", "3 of 10", "Used up", "the backup script", "Ends soon", "hub-20261121T010000Z.db", "The next daily backup is due in 20h", "https://gateway.example:8443"}},
	} {
		k.open(v.path)
		k.says(v.says...)
		if !k.eval(`document.querySelectorAll('main img, main script, a[href^="javascript:"]').length === 0`) {
			t.Errorf("%s renders a name as an element", v.path)
		}
		k.sizes(v.name)
	}
	k.open("/audit")
	k.press("a[rel=next]")
	k.says("kiosk-69", "← Newest")

	k.open("/boards")
	k.fleet.Put(t, &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "bone"}, Spec: fleet.BoardProfileSpec{Title: "BeagleBone Black"}})
	k.awaits("BeagleBone Black") // live
}

// The list of boards counts the nodes that its links lead to.
func TestABoardsLinkLeadsToItsNodes(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	m.Put(t, &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "raspberry-pi-4"}},
		admintest.Node("pi-7", "oslo", func(n *corev1.Node) { n.Labels[fleet.LabelProfile] = "raspberry-pi-4" }),
		admintest.Node("bone-8", "oslo", func(n *corev1.Node) {
			n.Labels[fleet.LabelBoard], n.Labels[fleet.LabelProfile] = "beaglebone-x15", "another"
		}),
		admintest.Node("bone-7", "oslo", func(n *corev1.Node) { n.Labels[fleet.LabelBoard] = "beaglebone-x15" }))
	srv := start(t, configOf(m))
	_, body := srv.ask(t, "viewer", "GET", "/boards", nil)
	for _, c := range []struct{ link, leads string }{{">1 node</a>", "pi-7"}, {">beaglebone-x15</a>", "bone-7"}} {
		before, _, ok := strings.Cut(body, c.link)
		if !ok {
			t.Fatalf("there is no link %s: %s", c.link, mainOf(body))
		}
		href := html.UnescapeString(strings.TrimSuffix(before[strings.LastIndex(before, `href="`)+len(`href="`):], `"`))
		if _, list := srv.ask(t, "viewer", "GET", href, nil); !strings.Contains(list, "1 node found") || !strings.Contains(list, ">"+c.leads+"</a>") || strings.Contains(list, "That part is left out") {
			t.Errorf("%s leads to %s: %.900s", c.link, href, mainOf(list))
		}
	}
}

func TestSettingsAreChanged(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.excuse("409")
	k.open("/settings")
	k.eval(`document.querySelectorAll("main details").forEach(d => d.open = true), true`)
	k.sizes("settings-open")
	k.fill(".new input[name=name]", "dora")
	k.fill(".new input[name=password]", "four words are good")
	k.press("button[value=user-create]")
	k.says("Done", "The person can now log in.")
	for _, step := range []struct{ fill, text, press, says, did string }{
		{"", "", `input[value=bo] ~ button[value=user-role]`, "The role is changed.", `make bo operator`},
		{"input[value=bo] ~ input[name=password]", "four words are new", "input[value=bo] ~ button[value=user-password]", "The password is changed", `password for bo`},
		{"", "", "input[value=bo] ~ button[value=user-delete]", "The user is deleted", "delete bo"},
		{"", "", "button[value=join-revoke]", "The join token is revoked", "revoke join k3jx7w2mqa"},
		{"", "", "button[value=api-revoke]", "The API token is revoked.", "revoke api h2m9xq4rtb"},
		{"", "", "button[value=backup]", "A backup has been written.", "back up"},
	} {
		k.eval(`document.querySelectorAll("main details").forEach(d => d.open = true), true`)
		if step.fill != "" {
			k.fill(step.fill, step.text)
		}
		k.press(step.press)
		k.says(step.says)
		if !k.estate.done(step.did) {
			t.Errorf("%s did not %s: %q", step.press, step.did, k.estate.did)
		}
	}
	k.estate.fail = errors.New("the disk is full")
	k.excuse("500")
	k.press("button[value=backup]")
	k.says("see its log") // details of the hub's own fault are not shown
	if len(k.acts) != 8 {
		t.Errorf("the audit has %d records, want 8", len(k.acts))
	}
}

// A refused form keeps what was typed, except the password.
func TestARefusedFormKeepsTheTypedName(t *testing.T) {
	c := configOf(admintest.New(admintest.Sample()...))
	_, e := equip(&c)
	e.fail = access.ErrConflict
	srv := start(t, c)
	resp, body := srv.ask(t, "admin", http.MethodPost, "/settings", url.Values{"csrf": {csrf}, "action": {"user-create"}, "name": {"dora"}, "role": {"viewer"}, "password": {"nobody else reads it"}})
	_, form, ok := strings.Cut(body, `<details class="new" open>`)
	form, _, _ = strings.Cut(form, "</form>")
	if resp.StatusCode != http.StatusConflict || !ok || !strings.Contains(form, `name="name" value="dora"`) || !strings.Contains(form, `<option value="viewer" selected>`) || strings.Contains(body, "nobody else reads it") {
		t.Errorf("%d, with the form %s", resp.StatusCode, form)
	}
	if _, body := srv.ask(t, "admin", http.MethodGet, "/settings", nil); strings.Contains(body, `<details class="new" open>`) || !strings.Contains(body, `<option value="operator" selected>`) {
		t.Errorf("the empty form is %s", mainOf(body))
	}
}

func TestNobodyTakesTheirOwnAccountAway(t *testing.T) {
	c := configOf(admintest.New(admintest.Sample()...))
	_, e := equip(&c)
	srv := start(t, c)
	for action, says := range map[string]string{"user-delete": "another administrator can", "user-role": "another administrator can", "user-password": "your own password in Your account"} {
		resp, body := srv.ask(t, "admin", http.MethodPost, "/settings", url.Values{"csrf": {csrf}, "action": {action}, "name": {"test-admin"}, "role": {"viewer"}, "password": {"four words are good"}})
		if resp.StatusCode != http.StatusConflict || !strings.Contains(body, says) || len(e.did) > 0 {
			t.Errorf("%s: %d %q", action, resp.StatusCode, e.did)
		}
	}
	if resp, _ := srv.ask(t, "admin", http.MethodPost, "/settings", url.Values{"csrf": {csrf}, "action": {"burn"}}); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown action: %d", resp.StatusCode)
	}
	if resp, _ := srv.ask(t, "viewer", http.MethodPost, "/account", url.Values{"action": {"revoke"}, "id": {"h2m9xq4rtb"}}); resp.StatusCode != http.StatusForbidden || len(e.did) > 0 {
		t.Errorf("a form of another site to the account: %d %q", resp.StatusCode, e.did)
	}
	if resp, _ := srv.ask(t, "admin", http.MethodPost, "/settings", url.Values{"action": {"backup"}}); resp.StatusCode != http.StatusForbidden || len(e.did) > 0 {
		t.Errorf("a form of another site: %d %q", resp.StatusCode, e.did)
	}
}

func TestHostileNamesInTheTools(t *testing.T) {
	t.Parallel()
	evil := `<img src=x onerror=alert(1)>"'></textarea></title><script>alert(2)</script>`
	name := `<img src=x onerror=alert(3)>"'><script>alert(4)`
	k := newKit(t, append(toolObjects(), admintest.Pod(name, "pi-1", func(p *corev1.Pod) {
		p.Spec.Containers[0].Name = evil
		p.Status.ContainerStatuses[0].Name = evil
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "\u202eexe.web", Image: evil})
	}))...)
	k.excuse("422")
	k.device.lines = []string{evil}
	at := "/pods/default/" + url.PathEscape(name)
	for _, path := range []string{at + "/logs", at + "/logs?q=" + url.QueryEscape(evil), at + "/terminal?command=" + url.QueryEscape(evil), "/audit?q=" + url.QueryEscape(evil), "/yaml"} {
		k.open(path)
		if path == "/yaml" {
			k.writes("kind: " + evil)
			k.press("button[value=check]")
			k.writes("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + quote(evil) + "}\n")
			k.press("button[value=check]")
		}
		k.await(`document.readyState === "complete"`)
		if !k.eval(`document.querySelectorAll('main img, main script, [onerror], a[href^="javascript:"]').length === 0`) {
			t.Errorf("%s renders a name as an element", path)
		}
		if strings.Contains(k.text(), "\u202e") {
			t.Errorf("%s shows a character that reverses text", path)
		}
	}
}

// Requests that end because the hub stops are not logged as errors.
func TestAHubThatStopsSaysSo(t *testing.T) {
	for _, err := range []error{control.ErrStopped, fmt.Errorf("read users: %w", context.Canceled)} {
		c := configOf(admintest.New(admintest.Sample()...))
		c.Tokens = stopping{err: err}
		var log strings.Builder
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		srv := start(t, c)
		for path, form := range map[string]url.Values{
			"/devices/add": {"site": {"oslo"}, "uses": {"1"}, "life": {"24h"}, "csrf": {csrf}},
			"/settings":    {"action": {"join-revoke"}, "id": {"abcdefghij"}, "csrf": {csrf}},
		} {
			resp, body := srv.ask(t, "admin", "POST", path, form)
			if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "he hub is stopping") || strings.Contains(body, "see its log") {
				t.Errorf("%v, %s: %d: %s", err, path, resp.StatusCode, wordsOf(body))
			}
		}
		if srv.end(); strings.Contains(log.String(), "page failed") {
			t.Errorf("the log says %s", &log)
		}
	}
}

// stopping has the tokens of a hub that stops.
type stopping struct {
	frame.Tokens
	err error
}

func (s stopping) JoinTokens(context.Context) ([]store.JoinToken, error) { return nil, s.err }

func (s stopping) RevokeJoinToken(context.Context, string) error { return s.err }

func (s stopping) CreateJoinToken(context.Context, access.NewJoinToken) (wire.JoinToken, error) {
	return wire.JoinToken{}, s.err
}
