package admin

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/store"
)

// with sends a request with an API token.
func (k *kit) with(method, path, token string, form url.Values) (code int, body string) {
	k.Helper()
	r, err := http.NewRequestWithContext(k.ctx, method, k.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		k.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	client := *k.server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(r)
	if err != nil {
		k.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func (b *browser) string(expression string) string {
	b.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("evaluate %s: %v", expression, err)
	}
	return text
}

// script turns scripts on or off, from the next page on.
func (b *browser) script(on bool) {
	b.Helper()
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
		return err
	}))
}

func TestPeopleHaveAnAccountOfTheirOwn(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.become(access.Viewer)
	k.do(chromedp.Click(chromedp.CSS(".who summary")))
	k.press(".who a")
	k.says("Your account", "viewer-person", "viewer: may look at all but secrets", "You have none.")
	k.sizes("account")

	// A token is shown once: as text, and as a kubeconfig.
	k.do(chromedp.Click(chromedp.CSS("details.new summary")))
	k.fill("input[name=note]", "kubectl on my laptop")
	k.press("button[value=create]")
	k.says("It is shown only once.", "kubectl --kubeconfig flotilla-viewer-person.yaml get nodes", "in 29d")
	token := k.string(`document.getElementById("secret").textContent`)
	if code, _ := k.with("GET", "/nodes", token, nil); code != http.StatusOK {
		t.Errorf("with the new token: %d", code)
	}
	file := k.string(`(async () => {
		const button = document.querySelector("button[value=kubeconfig]");
		const answer = await fetch("/account", {method: "POST", body: new URLSearchParams(new FormData(button.form, button))});
		return answer.headers.get("Content-Disposition") + "\n" + await answer.text();
	})()`)
	if want := "attachment; filename=flotilla-viewer-person.yaml\n"; !strings.HasPrefix(file, want) || !strings.Contains(file, "server: "+k.server.URL+"\n") || !strings.Contains(file, "token: "+token+"\n") {
		t.Errorf("the file is %q, want %q", file, want)
	}
	k.sizes("account-token")
	k.open("/account")
	if strings.Contains(k.text(), token) {
		t.Error("the token is shown again")
	}

	// A token may not make another token, nor change the password.
	for _, form := range []url.Values{{"action": {"create"}, "note": {"x"}, "life": {"1h"}}, {"action": {"password"}, "old": {"four words are good"}, "password": {"four words are bad"}, "again": {"four words are bad"}}} {
		if code, body := k.with("POST", "/account", token, form); code != http.StatusConflict || !strings.Contains(body, "An API token cannot create API tokens") {
			t.Errorf("a token may do %s: %d", form["action"], code)
		}
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(token, "FLA1."), ".")
	foreign, err := k.guard.CreateAPIToken(k.ctx, access.NewAPIToken{User: "admin", Note: "x", Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	other, _, _ := strings.Cut(strings.TrimPrefix(foreign, "FLA1."), ".")
	if code, _ := k.with("POST", "/account", token, url.Values{"action": {"revoke"}, "id": {other}}); code != http.StatusNotFound {
		t.Errorf("a user revokes another user's token: %d", code)
	}
	if code, body := k.with("POST", "/account", token, url.Values{"action": {"kubeconfig"}, "token": {foreign}}); code != http.StatusConflict || strings.Contains(body, "server:") {
		t.Errorf("a user gets the kubeconfig of another user's token: %d", code)
	}

	// It works without scripts.
	k.script(false)
	k.open("/account")
	revoke := "input[value='" + id + "'] ~ button[value=revoke]"
	k.do(chromedp.Click(chromedp.CSS(revoke)), chromedp.WaitVisible(chromedp.CSS("[role=status] .ok")))
	k.says("The API token is revoked.", "You have none.")
	if code, _ := k.with("GET", "/nodes", token, nil); code == http.StatusOK {
		t.Error("the revoked token is still accepted")
	}
	k.script(true)

	// A password change needs the old password, and ends the other sessions.
	elsewhere, err := k.guard.Login(k.ctx, "viewer-person", "four words are good", "10.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, password, again, says, excuse string }{
		{"four words are wrong", "another four words", "another four words", "The old password is wrong.", "403"},
		{"four words are good", "another four words", "another four word", "The two new passwords differ.", "409"},
		{"four words are good", "viewer-person", "viewer-person", "The password is based on the user name", "400"},
		{"four words are good", "another four words", "another four words", "Your password is changed.", ""},
	} {
		if c.excuse != "" {
			k.excuse(c.excuse)
		}
		k.open("/account")
		k.fill("input[name=old]", c.old)
		k.fill("input[name=password]", c.password)
		k.fill("input[name=again]", c.again)
		k.press("button[value=password]")
		k.says(c.says, "Your account")
	}
	r, _ := http.NewRequest(http.MethodGet, k.server.URL, nil)
	r.AddCookie(elsewhere)
	if _, err := k.guard.Authenticate(r); err == nil {
		t.Error("the other session is still valid")
	}
	if _, err := k.guard.Login(k.ctx, "viewer-person", "another four words", "10.0.0.9"); err != nil {
		t.Error("the new password:", err)
	}

	var did []string
	for len(k.acts) > 0 {
		a := <-k.acts
		if a.Resource == "account" || a.Resource == "apitokens" {
			did = append(did, keptOf(a))
		}
		if strings.Contains(a.Name+a.Message, "words are") || strings.Contains(a.Name+a.Message, "another") || strings.Contains(a.Name+a.Message, "FLA1") {
			t.Errorf("the audit has a secret: %+v", a)
		}
	}
	want := "create apitokens kubectl on my laptop; refused: create apitokens x; refused: update account; refused: revoke apitokens " + other + "; revoke apitokens " + id +
		strings.Repeat("; refused: update account", 3) + "; update account"
	if got := strings.Join(did, "; "); got != want {
		t.Errorf("the audit says\n%s, want\n%s", got, want)
	}
}

// keptOf is the audit record of an action.
func keptOf(a store.Audit) string {
	text := strings.TrimSpace(a.Verb + " " + a.Resource + " " + a.Name)
	if a.Code >= 400 {
		return "refused: " + text
	}
	return text
}
