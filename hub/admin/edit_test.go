package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

const someConfig = "/yaml/api/v1/namespaces/default/configmaps/colours"

func configMap(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "colours", Namespace: "default", UID: "u1"}, Data: data}
}

// writes puts a text into the editor.
func (b *browser) writes(text string) {
	b.Helper()
	b.do(chromedp.SetValue(chromedp.CSS("#text"), text))
}

// replaces changes a part of the editor's text.
func (b *browser) replaces(old, new string) {
	b.Helper()
	if !b.eval("(t => t.value !== (t.value = t.value.replace(" + quote(old) + ", " + quote(new) + ")))(document.getElementById('text'))") {
		b.Errorf("the editor does not have %q", old)
	}
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

func (k *kit) config() map[string]string {
	return k.fleet.Snapshot().Get(state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: "colours"}).(*corev1.ConfigMap).Data
}

func TestYAMLIsCheckedShownAndApplied(t *testing.T) {
	t.Parallel()
	k := newKit(t, append(toolObjects(), configMap(map[string]string{"sky": "blue", "grass": "green", "hostile": `</textarea><script>alert(1)</script>`}))...)
	k.excuse("422")
	k.excuse("400")
	k.excuse("409")
	k.open(someConfig)
	k.says("colours", "ConfigMap as YAML")
	if !k.eval(`document.getElementById("text").value.startsWith("apiVersion: v1\ndata:\n") && !/uid|resourceVersion|managedFields/.test(document.getElementById("text").value)`) {
		t.Error("the editor does not begin with the object, or has fields of the hub")
	}
	k.sizes("yaml")

	k.replaces("blue", "grey")
	k.press("button[value=check]")
	k.says("Accepted", "- sky: blue", "+ sky: grey", "@@ -2,7 +2,7 @@")
	if k.config()["sky"] != "blue" {
		t.Error("a check has changed the object")
	}
	k.sizes("yaml-checked")
	k.press("button[value=apply]")
	k.says("Applied")
	if k.config()["sky"] != "grey" {
		t.Errorf("nothing was applied: %v", k.config())
	}

	k.press("button[value=check]")
	k.says("Nothing to apply")
	k.replaces("grey", "red")
	k.press("button[value=check]")
	k.replaces("red", "black") // after it was checked
	k.press("button[value=apply]")
	k.says("Check again", "+ sky: black")
	if k.config()["sky"] != "grey" {
		t.Error("a text whose diff was not shown has been applied")
	}

	k.writes("kind: ConfigMap\ndata: {a: 1, a: 2}")
	k.press("button[value=check]")
	k.says("Invalid YAML")
	k.writes("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: colours}\ndate: {a: b}\n")
	k.press("button[value=check]")
	k.says("date: unknown field (line 4)")
	k.writes("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n")
	k.press("button[value=check]")
	k.says("does not match the name on the URL")
	k.sizes("yaml-refused")
}

func TestAConflictShowsWhatOthersHaveChanged(t *testing.T) {
	t.Parallel()
	k := newKit(t, append(toolObjects(), configMap(map[string]string{"sky": "blue", "grass": "green"}))...)
	k.excuse("409")
	k.open(someConfig)
	k.replaces("blue", "grey")
	k.fleet.Put(t, configMap(map[string]string{"sky": "blue", "grass": "brown"}))
	k.press("button[value=check]")
	k.says("Somebody has changed this object since you opened it.", "- grass: green", "+ grass: brown")
	k.sizes("yaml-conflict")
	k.press("button[value=rebase]")
	k.says("Accepted", "- sky: blue", "+ sky: grey", "grass: brown")
	k.press("button[value=apply]")
	if got := k.config(); got["sky"] != "grey" || got["grass"] != "brown" {
		t.Errorf("the hub has %v", got)
	}

	// A field that only the hub writes, such as the status, is not a conflict.
	k.open("/yaml/apis/apps/v1/namespaces/default/deployments/till")
	k.replaces("replicas: 3", "replicas: 4")
	o := k.fleet.Snapshot().Get(state.Key{Kind: state.Deployments, Namespace: "default", Name: "till"}).(*appsv1.Deployment).DeepCopy()
	o.Status.ReadyReplicas = 2
	k.fleet.Put(t, o)
	k.press("button[value=check]")
	k.says("replicas: 4")
	if strings.Contains(k.text(), "Somebody has changed") {
		t.Error("a changed status counts as a conflict")
	}
}

// A text survives the end of its session. It stays in the form and is sent after a new login of the
// same user, but not in another user's name.
func TestATextSurvivesTheEndOfItsSession(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.become(access.Operator)
	k.open("/yaml")
	k.writes("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine}\n")
	if err := k.guard.SetPassword(t.Context(), "operator-person", "other words are good"); err != nil { // ends the session
		t.Fatal(err)
	}
	login := func(name, password string) {
		if !k.evalLater(`fetch("/login", {method: "POST", body: new URLSearchParams({name: ` + quote(name) + `, password: ` + quote(password) + `, next: "/session"})}).then((a) => a.json()).then((s) => s.in)`) {
			t.Fatalf("%s cannot log in", name)
		}
	}
	const check = `document.querySelector("button[value=check]").click(), true`
	k.eval(check)
	k.awaits("Your session has ended, and nothing was sent. Log in as operator-person in another tab")
	login("admin", "four words are good")
	k.eval(`document.getElementById("lost").replaceChildren(), true`)
	k.eval(check)
	k.awaits("Your session has ended, and nothing was sent.")
	login("operator-person", "other words are good")
	k.press("button[value=check]")
	k.says("Accepted", "Nothing has been applied yet.", "mine")
	k.press("button[value=apply]")
	k.says("Applied")
}

// The same holds for a small form with text and check boxes.
func TestASmallFormSurvivesTheEndOfItsSession(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	for _, form := range []struct{ path, field, typed, press string }{
		{"/settings", ".new input[name=name]", "dora", "button[value=user-create]"},
		{"/account", "input[name=note]", "my laptop", "button[value=create]"},
		{"/devices/add", "input[name=node]", "pi-99", "main button.primary"},
		{"/actions/deployments/scale?item=default/till", "input[name=replicas]", "17", "main button.primary"},
		{"/actions/nodes/cordon?item=/pi-1&item=/pi-2", "", "", "main button[data-do]"},
	} {
		k.open(form.path)
		k.eval(`document.querySelectorAll("main details").forEach(d => d.open = true), true`)
		kept := `document.querySelectorAll("input[name=item]:checked").length === 1`
		if form.field == "" {
			k.eval(`document.querySelector("input[name=item]").click(), true`)
		} else {
			k.eval(`document.querySelector(` + quote(form.field) + `).value = ` + quote(form.typed) + `, true`)
			kept = `document.querySelector(` + quote(form.field) + `).value === ` + quote(form.typed)
		}
		if !k.evalLater(`fetch("/logout", {method: "POST", body: new URLSearchParams({csrf: document.querySelector(".who").elements.csrf.value})}).then(() => true)`) {
			t.Fatal("not logged out")
		}
		k.eval(`for (const f of document.querySelectorAll("main [required]")) f.value ||= "oslo"; for (const f of document.querySelectorAll("main [type=password]")) f.value = "four words are good"; true`)
		k.eval(`document.querySelector(` + quote(form.press) + `).click(), true`)
		k.awaits("Your session has ended, and nothing was sent. Log in as admin in another tab")
		if !k.eval(kept) {
			t.Errorf("%s has lost the typed text", form.path)
		}
		k.open("/login")
		k.fill("input[name=name]", "admin")
		k.fill("input[name=password]", "four words are good")
		k.press("button.primary")
	}
}

// A broken line gives no error for minutes. The page then says that nothing was sent, and does not
// send the form when the line is back.
func TestAFormThatCannotBeSentSaysSo(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.open("/devices/add")
	k.fill("input[name=site]", "oslo")
	k.eval(`window.asked = 0, window.real = window.fetch, AbortSignal.timeout = (ms) => { const c = new AbortController(); setTimeout(() => c.abort(), ms / 20); return c.signal }, true`)
	k.eval(`window.fetch = (what, how) => { asked++; return new Promise((_, no) => how?.signal?.addEventListener("abort", () => no(how.signal.reason))) }, true`)
	for range 3 {
		k.eval(`document.querySelector("main button.primary").click(), true`)
	}
	if !k.eval(`asked === 1`) {
		t.Error("each click sends the form again")
	}
	k.awaits("The hub does not answer. Nothing was sent.")
	k.eval(`window.fetch = window.real, true`)
	k.press("main button.primary")
	k.says("FLT1.")
}

func TestAViewerOnlyReadsYAML(t *testing.T) {
	t.Parallel()
	k := newKit(t, append(toolObjects(), configMap(map[string]string{"sky": "blue"}))...)
	k.become(access.Viewer)
	k.open(someConfig)
	k.says("sky: blue")
	if !k.eval(`document.querySelectorAll("textarea, main button").length === 0`) {
		t.Error("a viewer is shown an editor")
	}
	k.sizes("yaml-viewer")
	k.excuse("403")
	k.open("/yaml/api/v1/namespaces/default/secrets/any")
	k.says("No YAML")
}

func TestYAMLIsPasted(t *testing.T) {
	t.Parallel()
	k := newKit(t, append(toolObjects(), configMap(map[string]string{"sky": "blue"}))...)
	k.excuse("422")
	k.open("/yaml")
	k.says("Apply YAML")
	k.sizes("paste-empty")
	text := `# two objects and a namespace
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: till, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec: {containers: [{name: web, image: registry.example/till:2.0}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fresh}
data: {sky: grey}
---
`
	k.writes(text + "apiVersion: v1\nkind: Colour\nmetadata: {name: x}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: BAD_NAME}\nspec: {replicas: -1}\n")
	k.press("button[value=check]")
	k.says("Refused", "Unknown kind Colour in v1.", "Nothing has been applied.", "BAD_NAME")
	k.sizes("paste-refused")
	if k.eval(`document.querySelector("button[value=apply]") !== null`) {
		t.Error("a refused text can be applied")
	}
	k.writes(text)
	k.press("button[value=check]")
	k.says("Accepted", "Namespace shop", "Deployment till", "ConfigMap fresh", "+ sky: grey", "Apply 3 objects")
	k.sizes("paste-checked")
	if k.fleet.Snapshot().Get(state.Key{Kind: state.Namespaces, Name: "shop"}) != nil {
		t.Error("a check has created an object")
	}
	k.press("button[value=apply]")
	k.says("Applied", "Created")
	k.sizes("paste-applied")
	for _, key := range []state.Key{{Kind: state.Namespaces, Name: "shop"}, {Kind: state.Deployments, Namespace: "shop", Name: "till"}, {Kind: state.ConfigMaps, Namespace: "default", Name: "fresh"}} {
		if k.fleet.Snapshot().Get(key) == nil {
			t.Errorf("there is no %s", key)
		}
	}
	k.press("button[value=check]")
	k.says("Unchanged")
}

// A conflict with a simultaneous change, unlike one over fields, is shown in the API's words and
// offers no box.
func TestAConcurrentChangeIsNotShownAsAFieldConflict(t *testing.T) {
	c := configOf(admintest.New(admintest.Sample()...))
	c.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPatch:
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"kind":"Status","status":"Failure","reason":"Conflict","code":409,"message":"the object has been modified while the request was carried out","details":{"name":"colours","kind":"configmaps"}}`)
		case strings.HasSuffix(r.URL.Path, "/v1"):
			_, _ = io.WriteString(w, `{"resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`)
		default:
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"colours"}}`)
		}
	})
	srv := start(t, c)
	_, body := srv.ask(t, "admin", http.MethodPost, "/yaml", url.Values{"csrf": {csrf}, "action": {"check"}, "text": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: colours}\n"}})
	if !strings.Contains(body, "The object has been modified while the request was carried out.") || strings.Contains(body, "Other field managers have set these fields") || strings.Contains(body, "or tick") {
		t.Errorf("the conflict is shown as %s", mainOf(body))
	}
}

func TestAFormMayHoldDocumentsOnlyWhereItIsMeantTo(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	large := strings.Repeat("# large\n", 100<<10)
	if resp, body := srv.ask(t, "admin", http.MethodPost, "/yaml", url.Values{"csrf": {csrf}, "text": {large}}); resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("/yaml: %d %.200s", resp.StatusCode, body)
	}
	if resp, _ := srv.ask(t, "admin", http.MethodPost, "/settings", url.Values{"csrf": {csrf}, "note": {large}}); resp.StatusCode < 400 {
		t.Errorf("/settings: %d", resp.StatusCode)
	}
}

// Invisible characters are marked in text. A form returns them unchanged, because emojis and many
// scripts need them.
func TestAFormReturnsInvisibleCharactersUnchanged(t *testing.T) {
	t.Parallel()
	const family, persian = "\U0001F469\u200d\U0001F527", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 co\u00adop \u202eback"
	k := newKit(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "words", Namespace: "default", UID: "w1"}, Data: map[string]string{"a": persian, "b": "one"}})
	k.open("/yaml/api/v1/namespaces/default/configmaps/words")
	k.await(`document.getElementById("text").value.includes("\u200c")`)
	if !k.eval(`!document.querySelector("pre.yaml").textContent.includes("\u202e")`) {
		t.Error("the text is shown in reverse")
	}
	k.eval(`(t => { t.value = t.value.replace("b: one", "b: two"); return true })(document.getElementById("text"))`)
	k.press(`button[value=check]`)
	k.awaits("Nothing has been applied yet")
	k.press(`button[value=apply]`)
	k.awaits("This is what the hub has now")
	words := func(name string) map[string]string {
		t.Helper()
		m, ok := k.fleet.Snapshot().Get(state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: name}).(*corev1.ConfigMap)
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		return m.Data
	}
	if d := words("words"); d["a"] != persian || d["b"] != "two" {
		t.Errorf("applied is %+q", d)
	}

	k.open("/yaml")
	text, err := json.Marshal("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\ndata:\n  a: |-\n    " + family + "\n    " + persian + "\n  b: '\"><b>&amp;' # " + persian + "\n")
	if err != nil {
		t.Fatal(err)
	}
	k.eval(`document.getElementById("text").value = ` + string(text) + `, true`)
	k.press(`button[value=check]`)
	k.await(`document.querySelector("button[value=apply]") !== null`)
	k.press(`button[value=apply]`)
	k.awaits("Created")
	if d := words("more"); d["a"] != family+"\n"+persian || d["b"] != "\"><b>&amp;" {
		t.Errorf("applied is %+q", d)
	}
}
