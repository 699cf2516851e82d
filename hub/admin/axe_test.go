package admin

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

//go:embed testdata/axe/axe.min.js
var axeSource string

// axeRun checks WCAG 2.1 A and AA and best practices, as far as a program can.
const axeRun = `axe.run(document, {resultTypes: ["violations"], ...%s}).then((found) => JSON.stringify(found.violations
	.filter((v) => v.impact !== "minor")
	.map((v) => v.id + " (" + v.impact + "): " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | "))))`

// The checks for another colour scheme, which changes only colours.
const (
	allRules = "{}"
	colours  = `{runOnly: ["color-contrast", "link-in-text-block"]}`
)

// axe fails for findings of axe-core that are more than minor.
func (b *browser) axe(where string) { b.Helper(); b.axeFor(where, allRules) }

func (b *browser) axeFor(where, rules string) {
	b.Helper()
	if found := b.hindrances(rules); len(found) > 0 {
		b.Errorf("%s is not accessible:\n\t%s", where, strings.Join(found, "\n\t"))
	}
}

func (b *browser) hindrances(rules string) (found []string) {
	b.Helper()
	if !b.eval("!!window.axe") {
		b.eval(axeSource + "; true")
	}
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf(axeRun, rules), chromedp.EvalAwaitPromise))
	if err == nil {
		err = json.Unmarshal([]byte(text), &found)
	}
	if err != nil {
		b.Fatalf("run axe-core: %v", err)
	}
	return found
}

// tab opens another tab of the browser with the same session.
func (b *browser) tab(t testing.TB) *browser {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	t.Cleanup(cancel)
	other := watch(t, ctx, b.url)
	other.excused = b.excused
	return other
}

// look checks the open page at both widths and in both colour schemes; in the second scheme only
// colours.
func (b *browser) look(where string) {
	b.Helper()
	for _, as := range []struct {
		pixels int64
		dark   bool
		rules  string
	}{{360, false, allRules}, {360, true, colours}, {1280, true, allRules}, {1280, false, colours}} {
		b.width(as.pixels, as.dark)
		name := fmt.Sprintf("%s-%d-%s", where, as.pixels, map[bool]string{true: "dark", false: "light"}[as.dark])
		b.axeFor(name, as.rules)
		b.fits(name)
		b.shot("axe-" + strings.NewReplacer(" ", "-", ",", "", "/", "").Replace(name))
	}
}

// A situation is an open page, and the steps that lead to it.
type situation struct {
	name, path string
	do         func(b *browser) // steps on the page; nil: none
}

// unfold opens all details, which contain menus and forms.
func unfold(b *browser) {
	b.eval(`document.querySelectorAll("main details:not(.menu)").forEach((d) => d.open = true), true`)
}

// menus opens the menus one after the other.
func menus(b *browser) {
	b.eval(`document.querySelector("main .menu").open = true`)
}

// axe-core has no finding on any page, with menus open and forms refused, at both widths and in both
// colour schemes.
func TestEachPageIsAccessible(t *testing.T) {
	k := newKit(t, toolObjects()...)
	k.excuse("404") // a missing object
	k.excuse("400") // a refusal
	k.excuse("422")
	k.excuse("410") // the setup, which is over
	var situations []situation
	for _, v := range everyView {
		situations = append(situations, situation{v.name, v.path, nil})
	}
	k.fleet.Put(t, admintest.Node("drained", "oslo", func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Annotations = map[string]string{
			state.DrainAnnotation:       state.DrainOrder{By: "anna", Timeout: "1h"}.String(),
			state.DrainStatusAnnotation: state.DrainStatus{State: state.Draining, By: "anna", Began: admintest.Now.Add(-12 * time.Minute)}.String(),
		}
	}), admintest.Pod("left-behind", "drained", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: admintest.Now} }))
	till := "/yaml/apis/apps/v1/namespaces/default/deployments/till"
	situations = append(situations, []situation{
		{"account", "/account", unfold},
		{"account with a refusal", "/account", func(b *browser) {
			b.eval(`document.querySelectorAll("[required]").forEach((i) => i.required = false), true`)
			b.press("button[value=password]")
		}},
		{"settings", "/settings", unfold},
		{"audit", "/audit", nil},
		{"boards", "/boards", nil},
		{"log", "/pods/default/two-7d9f/logs?container=web", nil},
		{"terminal", "/pods/default/two-7d9f/terminal?container=web", func(b *browser) { b.await(screen + `.includes("two-7d9f $")`) }},
		{"empty terminal", "/pods/default/kiosk-7d9f-crash/terminal", nil},
		{"editor", till, nil},
		{"editor with a difference", till, func(b *browser) { b.replaces("till:1.0", "till:1.1"); b.press("button[value=check]") }},
		{"editor with a refusal", till, func(b *browser) { b.replaces("replicas: 3", "replicas: -3"); b.press("button[value=check]") }},
		{"paste", "/yaml", func(b *browser) { b.writes("kind: x"); b.press("button[value=check]") }},
		{"node, with its menu", "/nodes/pi-1", menus},
		{"node with a running drain", "/nodes/drained", nil},
		{"daemon set to roll back", "/actions/daemonsets/undo?item=kube-system%2Fnode-exporter", nil},
		{"daemon set", "/workloads/daemonsets/kube-system/node-exporter", menus},
		{"node, unfolded", "/nodes/pi-2", unfold},
		{"nodes, with their menu", "/nodes", menus},
		{"sites, with a menu", "/sites", menus},
		{"the top menu", "/", func(b *browser) { b.eval(`document.querySelector(".top .menu").open = true`) }},
		{"a refused form", "/actions/sites/settings?item=%2Foslo", func(b *browser) {
			b.fill("input[name=nodeMonitorGracePeriod]", "5s")
			b.press("button.primary")
		}},
		{"manual", "/help", nil},
		{"manual, with pictures", "/help/sites", unfold},
		{"manual, a table", "/help/conditions", nil},
		{"manual, flags", "/help/flotilla-hub#flotilla-hub-serve.--policy", nil},
		{"manual, code", "/help/start", nil},
		{"manual, found", "/help?q=pods+node", nil},
		{"manual, nothing found", "/help?q=nothing+of+that+kind", nil},
		{"a missing page", "/nowhere", nil},
		{"no action", "/actions/NONE", nil},
		{"a lost connection", "/nodes", func(b *browser) { // shown although the connection is good
			b.eval(`document.documentElement.classList.add("is-lost"), document.body.prepend(Object.assign(document.createElement("p"), {className: "lost", role: "status",
				textContent: "Connection to the hub lost. This is what was known at 12:05:41; trying again…"})), true`)
			b.await(`document.getAnimations().length === 0`)
		}},
	}...)
	k.open("/nodes/pi-1")
	k.press(`.actions a[href^="/actions/nodes/drain"]`)
	k.do(chromedp.Click(chromedp.CSS("input[name=bare]")))
	k.press("button.danger")
	k.awaits("0 of 3 pods have left")
	situations = append(situations, situation{"a running drain", strings.TrimPrefix(k.string("location.href"), k.url), nil})

	t.Run("tabs", func(t *testing.T) {
		const tabs = 4
		for i := range tabs {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				t.Parallel()
				b := k.tab(t)
				for n := i; n < len(situations); n += tabs {
					s := situations[n]
					b.width(360, false)
					b.open(s.path)
					if s.do != nil {
						s.do(b)
					}
					b.look(s.name)
				}
			})
		}
	})
	k.logout()
	for _, path := range []string{"/login", "/setup?token=x"} {
		k.open(path)
		k.look(path)
	}
	k.eval(`document.body.append(Object.assign(new Image(), {src: "/static/icon.svg"})), true`)
	if found := k.hindrances(allRules); len(found) == 0 {
		t.Error("axe-core accepts an image without a text: the test cannot fail")
	}
}
