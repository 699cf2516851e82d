package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"golang.org/x/net/websocket"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/ask"
)

// screen is the text in the terminal.
const screen = `(document.querySelector("#terminal .xterm-rows")?.innerText ?? "").replaceAll("\u00a0", " ")`

func (k *kit) types(text string) {
	k.Helper()
	key := func(ctx context.Context, kind input.DispatchKeyEventType) error {
		_, err := chromedp.Call(ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13})
		return err
	}
	k.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		for i, part := range strings.Split(text, "\r") {
			if i > 0 {
				if err := errors.Join(key(ctx, "rawKeyDown"), key(ctx, "keyUp")); err != nil {
					return err
				}
			}
			if part == "" {
				continue
			}
			if _, err := chromedp.Call(ctx, input.InsertText, input.InsertTextParams{Text: part}); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestATerminalInAContainer(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.open("/pods/default/two-7d9f/terminal?container=web")
	k.await(screen + `.includes("two-7d9f $")`)
	// The page's policy forbids how xterm.js adds its styles; these are in effect:
	if !k.eval(`getComputedStyle([...document.querySelectorAll(".xterm-rows span")].find(s => s.innerText.includes("$"))).color === "rgb(255, 160, 60)"`) {
		t.Error("a colour of 24 bits is not shown")
	}
	if !k.eval(`document.querySelector(".xterm-rows span").getBoundingClientRect().height > 10 && document.querySelector(".xterm-cursor") !== null`) {
		t.Error("the terminal has no size")
	}
	k.types("grüß dich\r")
	k.await(screen + `.includes("you said: grüß dich")`)
	k.types(`<img src=x onerror=alert(1)>` + "\r")
	k.await(screen + `.includes("you said: <img src=x onerror=alert(1)>")`)
	k.sizes("terminal")

	k.device.mu.Lock()
	sizes := slices.Clone(k.device.sizes)
	k.device.mu.Unlock()
	if len(sizes) < 2 || sizes[0].Width < 100 || sizes[len(sizes)-2].Width > 60 {
		t.Errorf("the device was told the sizes %v, want those of 1280 and of 360 pixels", sizes)
	}

	k.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error { // the keyboard can leave the terminal
		key := input.DispatchKeyEventParams{Key: "F6", Code: "F6", WindowsVirtualKeyCode: 117, Modifiers: 8}
		for _, key.Type = range []input.DispatchKeyEventType{"rawKeyDown", "keyUp"} {
			if _, err := chromedp.Call(ctx, input.DispatchKeyEvent, key); err != nil {
				return err
			}
		}
		return nil
	}))
	k.await(`document.activeElement.name === "command"`)
	k.eval(`document.querySelector("#terminal textarea").focus(), true`)

	const boxes = `JSON.stringify([...document.querySelectorAll("h1, #terminal, #state, #bar")].map((e) => [e.id, e.offsetTop, e.offsetHeight]))`
	before := k.string(boxes)
	k.types("\rexit 3\r")
	k.awaits("The command has ended with exit code 3.")
	if after := k.string(boxes); after != before {
		t.Errorf("the page moves at the end: %s, before %s", after, before)
	}
	k.sizes("terminal-ended")
	k.eval(`document.querySelector("#state button").click(), true`)
	k.await(screen + `.includes("two-7d9f $") && document.getElementById("state").innerText === "Connected."`)
	k.types("exit\r")
	k.awaits("The command has ended.")

	act := <-k.acts
	if act.Verb != "create" || act.Resource != "pods/exec" || act.Namespace != "default" || act.Name != "two-7d9f" || act.Who != "admin" || act.Message != "web: sh" {
		t.Errorf("the audit has %+v", act)
	}

	k.open("/pods/default/two-7d9f/terminal?container=web&command=nothing")
	k.awaits("The image of container web has no nothing.")
	k.open("/pods/default/two-7d9f/terminal?container=web&command=tool+--flag+x")
	k.await(screen + `.includes("two-7d9f $")`)
	k.device.mu.Lock()
	last := k.device.runs[len(k.device.runs)-1]
	k.device.mu.Unlock()
	if !slices.Equal(last, []string{"tool", "--flag", "x"}) {
		t.Errorf("runs %q", last)
	}

	k.excuse("WebSocket") // the hub stops
	k.server.cut()
	k.awaits("Connection to the hub lost.")

	k.device.fail(fmt.Errorf("exec of node pi-1: %w", ask.ErrOffline))
	k.eval(`document.querySelector("#state button").click(), true`)
	k.awaits("The device of node pi-1 is not connected to the hub.")
	k.open("/pods/default/kiosk-7d9f-crash/terminal")
	k.awaits("Container web is not running")
}

func TestATerminalEndsWithItsSession(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.become(access.Operator)
	k.open("/pods/default/two-7d9f/terminal")
	k.await(screen + `.includes("two-7d9f $")`)
	if err := k.guard.DeleteUser(t.Context(), "operator-person"); err != nil {
		t.Fatal(err)
	}
	k.awaits("Your session has ended.")
}

func TestWhoMayOpenATerminal(t *testing.T) {
	m := admintest.New(append(admintest.Sample(), toolObjects()...)...)
	c := configOf(m)
	srv := start(t, c)
	dial := func(role, origin, token string) (string, error) {
		config, err := websocket.NewConfig(strings.Replace(srv.URL, "https", "wss", 1)+"/pods/default/two-7d9f/terminal/socket", "https://x")
		if err != nil {
			t.Fatal(err)
		}
		config.TlsConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a test's own server
		config.Header = http.Header{nameHeader: {role}}
		if config.Origin, err = url.Parse(strings.Replace(origin, "SELF", srv.URL, 1)); err != nil {
			t.Fatal(err)
		}
		conn, err := websocket.DialConfig(config)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		if err := websocket.Message.Send(conn, fmt.Sprintf(`{"csrf":%q,"cols":80,"rows":24}`, token)); err != nil {
			return "", err
		}
		var first string
		err = websocket.Message.Receive(conn, &first)
		return first, err
	}
	for _, tt := range []struct {
		name, role, origin, token string
		want                      string // "": no connection
	}{
		{"an operator from our own page", "operator", "SELF", csrf, `"ready":true`},
		{"an administrator from our own page", "admin", "SELF", csrf, `"ready":true`},
		{"a viewer", "viewer", "SELF", csrf, ""},
		{"a device", "device", "SELF", csrf, ""},
		{"nobody", "", "SELF", csrf, ""},
		{"a page of another site with the cookie", "admin", "https://evil.example", csrf, ""},
		{"a request without an origin", "admin", "null", csrf, ""},
		{"a page of another session", "admin", "SELF", "another", "Not accepted"},
		{"no token", "admin", "SELF", "", "Not accepted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := dial(tt.role, tt.origin, tt.token)
			if (err != nil) != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
