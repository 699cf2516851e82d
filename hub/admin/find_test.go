package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// keys presses keys, whatever has the focus.
func (b *browser) keys(text string, options ...chromedp.KeyOption) {
	b.Helper()
	b.do(chromedp.KeyEvent(text, options...))
}

// slash presses the key / as a keyboard does: no letter is typed if the page handles the key.
func (b *browser) slash() {
	b.Helper()
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
			p := input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash", WindowsVirtualKeyCode: 191}
			if kind == input.DispatchKeyEventTypeKeyDown {
				p.Text = "/"
			}
			if _, err := chromedp.Call(ctx, input.DispatchKeyEvent, p); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (b *browser) palette() {
	b.Helper()
	b.keys("k", chromedp.KeyModifiers(chromedp.ModifierCtrl))
	b.await(`document.activeElement.matches("dialog[open] input")`)
}

func TestASearchIsCompletedAsItIsTyped(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.open("/nodes")
	k.slash()
	k.await(`document.activeElement.name === "q" && document.activeElement.getAttribute("aria-expanded") === "true"`) // the known keys
	k.axe("completion, keys")
	k.shot("complete-1280-light")
	k.keys("sit")
	k.await(`document.querySelectorAll("#completions [role=option]").length === 1`)
	k.keys(kb.ArrowDown)
	k.await(`document.getElementById(document.activeElement.getAttribute("aria-activedescendant")).innerText.startsWith("site:")`)
	k.keys(kb.Enter)
	k.await(`document.activeElement.value === "site:" && document.querySelectorAll("#completions [role=option]").length === 2`)
	k.keys(kb.ArrowUp) // the last one
	k.await(`document.querySelector("#completions [aria-selected=true]")?.innerText === "site:oslo"`)
	k.keys(kb.Enter)
	k.await(`document.activeElement.value === "site:oslo " && new URLSearchParams(location.search).get("q").trim() === "site:oslo" && document.getElementById("completions").hidden`)
	k.awaits("4 nodes found")
	k.keys("-pi nope:x")
	k.awaits("Unknown key “nope:”")
	k.awaits("1 node found") // the unfinished part is left out
	k.keys(" st")
	k.await(`document.querySelectorAll("#completions [role=option]").length === 1`)
	k.keys(kb.Escape)
	k.await(`document.getElementById("completions").hidden && document.activeElement.value.includes("nope")`)
	for range " st" {
		k.keys(kb.Backspace)
	}
	k.width(360, true)
	k.fits("completion")
	k.axe("an invalid search")
	k.shot("wrong-360-dark")

	// Completions come and go with the search, and the button does not come back.
	k.fleet.Put(t, admintest.Node("bench", "oslo", nil))
	k.awaits("2 nodes found")
	if !k.eval(`getComputedStyle(document.querySelector(".filters button")).display === "none" && document.activeElement.name === "q"`) {
		t.Error("after an update the Filter button is back, or the search has lost its focus")
	}
	k.width(1280, false)

	k.script(false)
	k.open("/nodes")
	k.says("how to search")
	k.do(chromedp.SendKeys(chromedp.CSS("main input[type=search]"), "node:pi-*"), chromedp.Click(chromedp.CSS(".filters button")), chromedp.WaitVisible(chromedp.CSS(".found span a")))
	k.says("3 nodes found")
	k.open("/find")
	k.do(chromedp.SendKeys(chromedp.CSS("main input[type=search]"), "pi-2"), chromedp.Click(chromedp.CSS("main .primary")), chromedp.WaitVisible(chromedp.CSS(".finds a")))
	k.says("Node pi-2 oslo", "Incident pi-2 does not answer open")
	k.script(true)
	k.open("/find?q=pi-2")
	k.sizes("find")
}

func TestKeysMoveOverRows(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.open("/nodes?sort=name")
	at := func(row string) string {
		return fmt.Sprintf(`document.activeElement.closest("tr")?.dataset.key === %q`, row)
	}
	k.keys("j")
	k.await(at("bone-1"))
	k.keys("jj")
	k.await(at("bone-3"))
	k.keys("k")
	k.await(at("bone-2"))
	k.fleet.Put(t, admintest.Node("aaa", "oslo", nil))
	k.awaits("aaa")
	k.await(at("bone-2")) // an arriving row does not take the focus
	k.keys("x")
	k.await(`document.activeElement.closest("tr").querySelector("[name=pick]").checked`)
	k.keys("x")
	k.await(`!document.activeElement.closest("tr").querySelector("[name=pick]").checked`)
	k.keys("?")
	k.await(`document.querySelector("dialog[open]") && document.activeElement.closest("dialog") !== null`)
	k.axe("the keys")
	k.shot("keys-1280-light")
	for range 6 { // the focus stays in the dialog, or goes to the browser's own controls
		k.keys(kb.Tab)
		if !k.eval(`document.activeElement === document.body || document.activeElement.closest("dialog") !== null`) {
			t.Fatal("the focus leaves the dialog")
		}
	}
	k.keys(kb.Escape)
	k.await(`!document.querySelector("dialog[open]")`)
	k.await(at("bone-2")) // the focus returns to where it was
	k.eval("window.left = true")
	k.keys("o")
	k.await(`!window.left && location.pathname === "/nodes/bone-2" && document.readyState === "complete"`)
	k.keys("gp")
	k.await(`location.pathname === "/pods" && document.readyState === "complete"`)

	// Typed letters are text, and with Ctrl they are the browser's shortcuts.
	k.fill("main input[type=search]", "jgn?")
	k.await(`document.activeElement.value === "jgn?" && !document.querySelector("dialog[open]") && location.pathname === "/pods"`)
	k.open("/nodes?sort=name")
	k.keys("j", chromedp.KeyModifiers(chromedp.ModifierAlt))
	if k.eval(`!!document.activeElement.closest("tr")`) {
		t.Error("Alt+J moves")
	}

	// A user can switch the shortcuts off in this browser.
	k.keys("?")
	k.await(`!!document.querySelector("dialog[open]")`)
	k.do(chromedp.Click(chromedp.CSS("#keys-on")))
	k.keys(kb.Escape)
	k.open("/nodes?sort=name")
	k.keys("j?/")
	if k.eval(`!!document.activeElement.closest("tr, form") || !!document.querySelector("dialog[open]")`) {
		t.Error("shortcuts work although they are switched off")
	}
	k.palette()
	k.do(chromedp.Click(chromedp.CSS("dialog[open] .row button:first-child"))) // and on again, through the palette
	k.await(`document.querySelector("dialog[open] #keys-on")?.checked === false`)
	k.do(chromedp.Click(chromedp.CSS("#keys-on")))
	k.keys(kb.Escape)
	k.keys("j")
	k.await(at("aaa"))

	k.open("/sites")
	k.keys("j")
	k.await(`document.activeElement.closest("li")?.dataset.key === "bergen"`)
}

func TestThePaletteLeadsThere(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.open("/events")
	k.palette()
	k.awaits("Nodes, sites, pods")
	k.keys("drain pi-2")
	k.await(`document.querySelector("dialog [aria-selected=true]")?.innerText.includes("Drain pi-2")`)
	k.axe("the palette")
	k.shot("palette-1280-light")
	k.eval("window.left = true")
	k.keys(kb.Enter)
	k.await(`!window.left && location.pathname === "/actions/nodes/drain" && document.readyState === "complete"`)
	k.says("Drain", "pi-2")
	if k.fleet.Snapshot().Node("pi-2").Spec.Unschedulable {
		t.Error("the palette has run the action without a confirmation")
	}

	k.width(360, true)
	k.open("/nodes")
	if !k.eval(`(() => { const r = document.querySelector("[data-find]").getBoundingClientRect(); return r.width >= 36 && r.height >= 36; })()`) {
		t.Error("the button is smaller than 36 pixels")
	}
	k.do(chromedp.Click(chromedp.CSS("[data-find]")))
	k.await(`document.activeElement.matches("dialog[open] input")`)
	// A button stays under the finger when the palette opens again, also with old results.
	const top = `document.querySelector("dialog[open] .row button").getBoundingClientRect().top`
	k.keys("pi-2")
	k.await(`!!document.querySelector("dialog[open] [role=option]")`)
	k.keys(kb.Escape)
	if !k.eval(`(() => { document.querySelector("[data-find]").click(); window.top0 = ` + top + `; return !document.querySelector("dialog[open] [role=option]")?.offsetParent; })()`) {
		t.Error("the palette opens with old results")
	}
	time.Sleep(300 * time.Millisecond) // the palette asks 120 ms after a key
	if !k.eval(top + ` === window.top0`) {
		t.Error("its buttons move after it has opened")
	}
	k.keys("zzqx")
	k.awaits("Nothing is like that.")
	k.eval(`document.activeElement.value = "", true`)
	k.keys("kiosk")
	k.await(`document.querySelectorAll("dialog [role=option]").length > 3`)
	k.fits("the palette")
	k.axe("the palette on a phone")
	k.shot("palette-360-dark")
	k.keys(kb.Escape)
	k.await(`!document.querySelector("dialog[open]") && document.activeElement.matches("[data-find]")`)
	k.do(chromedp.Click(chromedp.CSS("[data-find]")))
	k.keys("site bergen")
	k.await(`document.querySelector("dialog [aria-selected=true]")?.innerText.includes("bergen")`)
	k.do(chromedp.Click(chromedp.CSS("dialog [aria-selected=true]")))
	k.await(`location.pathname === "/sites/bergen"`)
}

func TestAViewIsSavedAndDeleted(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.become(access.Viewer)
	k.open("/nodes")
	k.fill("main input[type=search]", "site:oslo")
	k.awaits("4 nodes found")
	k.do(chromedp.Click(chromedp.CSS(".views summary")))
	k.axe("saving a view")
	k.shot("views-menu-1280-light")
	k.fill(".views input[name=name]", "Oslo's <nodes>")
	k.press(".views button[value=save]")
	k.await(`location.search === "?q=site%3Aoslo" && document.querySelector(".views a[aria-current=page]")?.innerText === "Oslo's <nodes>"`)
	k.sizes("views")
	k.width(1280, false)
	k.open("/pods")
	if k.eval(`!!document.querySelector(".views a")`) {
		t.Error("a view of nodes is shown with the pods")
	}
	k.palette()
	k.keys("oslo's")
	k.await(`document.querySelector("dialog [aria-selected=true]")?.innerText.startsWith("View")`)
	k.keys(kb.Escape)
	k.script(false)
	k.open("/nodes?sort=-name&page=2&did=x")
	k.do(chromedp.Click(chromedp.CSS(".views summary")))
	k.fill(".views input[name=name]", "Last first")
	k.press(".views button[value=save]")
	if at := k.string("location.pathname + location.search"); at != "/nodes?sort=-name" {
		t.Errorf("the saved view is %s", at)
	}
	k.do(chromedp.Click(chromedp.CSS(".views summary")))
	k.press(".views button[value=delete]")
	k.script(true)
	if views, err := k.guard.Views(k.ctx, "viewer-person"); err != nil || len(views) != 1 || views[0] != (store.View{Name: "Oslo's <nodes>", Href: "/nodes?q=site%3Aoslo"}) {
		t.Errorf("%v, %v", views, err)
	}
	if views, _ := k.guard.Views(k.ctx, "admin"); len(views) != 0 {
		t.Errorf("another user has the views %v", views)
	}
}

// Where column heads are hidden, a menu has the orders, and buttons are large enough for a finger.
func TestAListOnAPhone(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.width(360, false)
	for _, path := range []string{"/nodes", "/pods", "/workloads", "/sites", "/events"} {
		k.open(path)
		small := k.string(`[...document.querySelectorAll("main .filters :is(input, select, button), main .rows tbody :is(th a, td a, summary, button):not(.explained), main .pager a, main .cards h2 a, .views :is(a, summary), .find")]
			.filter((e) => e.offsetParent && !e.disabled).map((e) => [e, e.getBoundingClientRect()]).filter(([, r]) => r.height < 35.9 || r.width < 24)
			.map(([e, r]) => e.outerHTML.slice(0, 80) + " " + Math.round(r.width) + "x" + Math.round(r.height)).slice(0, 5).join("\n")`)
		if small != "" {
			t.Errorf("%s has controls smaller than 36 pixels:\n%s", path, small)
		}
		k.fits(path)
		k.axe(path)
		k.shot("phone-" + strings.TrimPrefix(path, "/"))
	}
	k.open("/nodes?sort=name")
	first := `document.querySelector("main .rows tbody tr").dataset.key`
	if got := k.string(first); got != "bone-1" {
		t.Errorf("the first is %s", got)
	}
	k.fleet.Put(t, admintest.Node("a-node-with-a-very-long-name-of-its-own", "oslo", admintest.Condition("MemoryPressure", "True", "KubeletHasInsufficientMemory", "m")))
	k.awaits("Ready, MemoryPressure")
	if over := k.string(`[...document.querySelectorAll("main .rows tbody tr:not(.reason)")].filter((tr) => {
			const name = tr.querySelector("th").getBoundingClientRect(), pill = tr.querySelector(".pill").getBoundingClientRect();
			return tr.querySelector("th a").getBoundingClientRect().right > pill.left && name.bottom > pill.top;
		}).map((tr) => tr.dataset.key).join(" ")`); over != "" {
		t.Errorf("a status covers the name of %s", over)
	}
	k.fleet.End(t, k.fleet.Snapshot().Node("a-node-with-a-very-long-name-of-its-own"))
	k.await(first + ` === "bone-1"`)
	shown := `[...document.querySelectorAll("main .rows tbody tr:not(.reason)")].filter((tr) => tr.offsetParent).length`
	for i := range 20 {
		k.fleet.Put(t, admintest.Node(fmt.Sprintf("z-%02d", i), "oslo", nil))
	}
	k.await(shown + ` === 20`)
	k.do(chromedp.Click(chromedp.CSS(".first-rows")))
	k.await(shown + ` === 28`)
	for i := range 20 {
		k.fleet.End(t, k.fleet.Snapshot().Node(fmt.Sprintf("z-%02d", i)))
	}
	k.await(shown + ` === 8`)
	k.eval(`{ const s = document.querySelector(".sortby"); s.value = "-name"; s.dispatchEvent(new Event("input", {bubbles: true})); }; true`)
	k.await(first + ` === "pi-3" && location.search === "?sort=-name"`)
	k.fleet.Put(t, admintest.Node("zzz", "oslo", func(n *corev1.Node) { n.Labels["x"] = "y" }))
	k.await(first + ` === "zzz"`)
	if !k.eval(`document.querySelector(".sortby").value === "-name" && getComputedStyle(document.querySelector(".sortby")).display !== "none"`) {
		t.Error("the chosen order is not shown")
	}
	// A phone folds a node's sections. Opened ones stay open during updates.
	k.open("/nodes/pi-1")
	labels := `document.querySelector("[data-key='section Labels'] .labels").offsetParent !== null`
	if k.eval(labels) {
		t.Error("the labels are not folded")
	}
	k.do(chromedp.Click(chromedp.CSS("[data-key='section Labels'] h2 label")))
	k.await(labels)
	k.fleet.Put(t, admintest.Node("pi-1", "oslo", func(n *corev1.Node) { n.Labels["fresh"] = "yes" }))
	k.awaits("fresh")
	k.width(1280, false)
	k.open("/nodes")
	if !k.eval(`getComputedStyle(document.querySelector(".sortby")).display === "none"`) {
		t.Error("the menu of orders is shown beside the column heads")
	}
}

// A list's filter stays chosen in its menu, also that of a site without nodes.
func TestAFilterStaysChosen(t *testing.T) {
	m := admintest.New(append(admintest.Sample(), &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "narvik"}})...)
	srv := start(t, configOf(m))
	for path, chosen := range map[string]string{
		"/nodes?site=narvik": "narvik", "/nodes?site=oslo": "oslo", "/pods?namespace=default": "default",
		"/events?since=2h": "2h", "/incidents?cause=CrashLoop": "CrashLoop",
	} {
		_, body := srv.ask(t, "viewer", "GET", path, nil)
		if !strings.Contains(body, `<option value="`+chosen+`" selected>`) || strings.Count(body, `<option value="`+chosen+`"`) != 1 {
			t.Errorf("%s: the menu does not say %s: %.1500s", path, chosen, mainOf(body))
		}
	}
}

// A * stands for any text, also in a status and in a condition. A pattern without a match finds
// nothing.
func TestAStatusMayBeAPattern(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	list := func(path, q string) string {
		t.Helper()
		a := admintest.Ask(m.Snapshot(), admintest.Now, map[string]string{"q": q})
		var names []string
		for _, o := range listings()[state.Kind(strings.TrimPrefix(path, "/"))].Found(a) {
			names = append(names, o.GetName())
		}
		return strings.Join(names, " ")
	}
	for _, c := range []struct{ path, pattern, same string }{
		{"/nodes", "status:not*", "status:notready"}, {"/nodes", "status:UN*n", "status:unknown"}, {"/nodes", "-status:*ready", "-status:ready -status:notready"},
		{"/nodes", "status:nothing*", "pi -pi"}, {"/nodes", "-status:nothing*", ""}, {"/nodes", "status:r*", "status:ready"},
		{"/pods", "status:run*", "status:running"}, {"/pods", "status:nothing*", "pi -pi"}, {"/pods", "status:crash*", "status:CrashLoopBackOff"},
		{"/deployments", "status:comp*", "status:complete"}, {"/deployments", "status:nothing*", "pi -pi"},
		{"/sites", "status:norm*", "status:normal"}, {"/sites", "status:nothing*", "pi -pi"},
		{"/nodes", "condition:rea*", "condition:Ready"}, {"/nodes", "condition:Ready=F*", "condition:Ready=False"}, {"/nodes", "-condition:*ead*=True", "-condition:Ready"},
		{"/pods", "condition:*led=True", "condition:PodScheduled"},
	} {
		if got, want := list(c.path, c.pattern), list(c.path, c.same); got != want {
			t.Errorf("%s %s finds %q, want what %s finds, %q", c.path, c.pattern, got, c.same, want)
		}
	}
}

// Saving is offered for lists with objects, not for empty ones and refused addresses.
func TestAnEmptyListIsNotOfferedAsAView(t *testing.T) {
	for _, c := range []struct {
		name, path string
		fleet      *admintest.Memory
		want       bool
	}{
		{"nodes", "/nodes", admintest.New(admintest.Sample()...), true},
		{"a search without a result", "/nodes?q=nothing", admintest.New(admintest.Sample()...), true},
		{"an unknown order", "/nodes?sort=x", admintest.New(admintest.Sample()...), false},
		{"no nodes", "/nodes", admintest.New(), false}, {"no workloads", "/workloads", admintest.New(), false},
	} {
		config := configOf(c.fleet)
		with, _ := guarded(t, c.fleet)
		config.Views = with.Views
		_, body := start(t, config).ask(t, "admin", "GET", c.path, nil)
		if got := strings.Contains(body, "Save this view"); got != c.want {
			t.Errorf("%s: it can be saved: %v", c.name, got)
		}
	}
}

func TestOnlyListsAreSavedAsViews(t *testing.T) {
	c, _ := guarded(t, admintest.New(admintest.Sample()...))
	g := c.Views
	c = configOf(admintest.New(admintest.Sample()...))
	c.Views = g
	var done []string
	c.Audit = func(_ context.Context, a store.Audit) { done = append(done, fmt.Sprint(keptOf(a), " ", a.Code)) }
	srv := start(t, c)
	for what, form := range map[string]url.Values{
		"another page": {"action": {"save"}, "name": {"x"}, "href": {"/settings"}}, "unknown user": {"action": {"save"}, "name": {"x"}, "href": {"/nodes"}},
		"no action": {"name": {"x"}, "href": {"/nodes"}}, "no name": {"action": {"save"}, "href": {"/nodes"}},
	} {
		form.Set("csrf", csrf)
		if resp, _ := srv.ask(t, "viewer", "POST", "/views", form); resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", what, resp.StatusCode)
		}
	}
	if resp, _ := srv.ask(t, "viewer", "POST", "/views", url.Values{"action": {"save"}, "name": {"x"}, "href": {"/nodes"}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("without the form's token: %d", resp.StatusCode)
	}
	done = nil
	if err := g.(*access.Guard).CreateUser(t.Context(), access.NewUser{Name: "test-viewer", Password: "four words are good", Role: access.Viewer}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []url.Values{{"action": {"save"}, "name": {" dark  ones "}}, {"action": {"save"}, "name": {""}}, {"action": {"delete"}, "name": {"dark ones"}}} {
		form.Set("csrf", csrf)
		form.Set("href", "/nodes?q=site:oslo")
		srv.ask(t, "viewer", "POST", "/views", form)
	}
	if want := []string{"update views dark ones 200", "refused: update views 400", "delete views dark ones 200"}; !slices.Equal(done, want) {
		t.Errorf("the audit says %q, want %q", done, want)
	}
}
