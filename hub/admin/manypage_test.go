package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

// In a browser rows are ticked with keyboard and Shift while the list changes, is sorted and paged.
// Then the ticked nodes are deleted, with their number typed.
func TestRowsAreTickedInABrowser(t *testing.T) {
	t.Parallel()
	var objects []state.Object
	for i := range 130 {
		objects = append(objects, admintest.Node(fmt.Sprintf("node-%03d", i), fmt.Sprintf("site-%d", i%3), nil))
	}
	k := newKitOf(t, objects...)
	box := func(name string) string { return fmt.Sprintf(`[data-key=%q] input[name=pick]`, name) }
	picks := func(text string) {
		t.Helper()
		k.await(fmt.Sprintf(`document.querySelector("#picks output").innerText === %q`, text))
	}
	shots := func(name string) {
		for _, w := range []struct {
			pixels int64
			dark   bool
		}{{360, true}, {768, false}, {1280, false}} {
			k.width(w.pixels, w.dark)
			where := fmt.Sprintf("%s at %d pixels", name, w.pixels)
			k.fits(where)
			if strings.HasPrefix(name, "many-before") {
				k.axe(where) // a page of a hundred rows takes long; a short one is checked below
			}
			k.shot(fmt.Sprintf("%s-%d", name, w.pixels))
		}
	}
	shiftClick := func(selector string) { // a click on its label ticks it once

		k.eval(fmt.Sprintf(`(document.querySelector(%q).scrollIntoView({block: "center"}), true)`, selector))
		at, err := chromedp.Run(k.ctx, chromedp.Evaluate[[]float64](fmt.Sprintf(`(r => r.width > 30 ? [r.x + 3, r.y + 5] : [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector(%q).getBoundingClientRect())`, selector)))
		if err != nil {
			t.Fatal(err)
		}
		k.do(chromedp.MouseClickXY(at[0], at[1], chromedp.ButtonModifiers(chromedp.ModifierShift)))
	}

	k.open("/nodes?sort=name")
	if !k.eval(`document.querySelectorAll("input[name=pick]").length === 100 && !document.querySelector("input[name=pick]:checked") && getComputedStyle(document.getElementById("picks")).visibility === "hidden"`) {
		t.Error("the list does not have a hundred unticked boxes")
	}
	k.eval(`(window.shifted = 0, new PerformanceObserver((l) => l.getEntries().forEach((e) => window.shifted += e.value)).observe({type: "layout-shift", buffered: false}), true)`)
	k.do(chromedp.Click(chromedp.CSS(box("node-003"))))
	picks("1 selected")
	shiftClick(box("node-008"))
	picks("6 selected")
	for _, want := range []string{"5 selected", "6 selected"} {
		shiftClick(`[data-key="node-008"] label.pick`)
		picks(want)
	}

	if !k.eval(`window.shifted <= 0.02`) {
		t.Error("ticking a row moves the page")
	}

	// The list changes: ticks stay, arriving rows have none, and the bar stays.
	changed := k.fleet.Snapshot().Node("node-004").DeepCopy()
	admintest.Condition("Ready", "Unknown", "x", "y")(changed)
	k.fleet.Put(t, changed, admintest.Node("node-0041", "site-1", nil))
	k.await(`document.querySelector('[data-key="node-004"] .pill').innerText === "Unknown" && !!document.querySelector('[data-key="node-0041"]')`)
	picks("6 selected")
	if !k.eval(`document.querySelectorAll("input[name=pick]:checked").length === 6 && !document.querySelector('[data-key="node-0041"] input[name=pick]').checked && getComputedStyle(document.getElementById("picks")).visibility === "visible"`) {
		t.Error("an update has changed the ticks or removed the bar")
	}
	shots("picked")
	// Another device with the same name has no tick.
	k.fleet.End(t, k.fleet.Snapshot().Node("node-005"))
	k.fleet.Put(t, admintest.Node("node-005", "site-2", nil))
	picks("6 selected, 1 not on this page")
	k.do(chromedp.Click(chromedp.CSS(box("node-005"))))
	picks("7 selected, 1 not on this page")

	// The list is sorted and paged.
	k.press(`thead a[href*="sort=-name"]`)
	picks("7 selected, 7 not on this page")
	k.do(chromedp.Click(chromedp.CSS(box("node-129"))))
	shiftClick(box("node-123"))
	picks("14 selected, 7 not on this page")
	k.press(`a[rel=next]`)
	picks("14 selected, 8 not on this page")
	if !k.eval(`document.querySelectorAll("input[name=pick]:checked").length === 6 && document.querySelector("th.pick input").indeterminate`) {
		t.Error("the ticks were lost between pages")
	}

	// Deleting needs the right number.
	k.do(chromedp.Click(chromedp.CSS("#picks button[value=delete]")))
	k.awaits("Type 13 to delete all of them")
	k.says("Delete 13 nodes", "1 left out", "node-005 was deleted, and a new object has its name", "By site", "Type 13 to delete all of them")
	shots("many-before")
	k.fill("input[name=number]", "12")
	k.excuse("422")
	k.press("button.danger")
	k.says(`You typed "12", but there are 13 objects.`)
	if n := k.fleet.Snapshot().Len(state.Nodes); n != 131 {
		t.Errorf("%d nodes are left after a wrong number", n)
	}
	shots("many-wrong")
	k.do(chromedp.SetValue(chromedp.CSS("input[name=number]"), "13"))
	k.press("button.danger")
	k.awaits("13 of 13 done")
	shots("many-done")
	if n := k.fleet.Snapshot().Len(state.Nodes); n != 118 || k.fleet.Snapshot().Node("node-003") != nil || k.fleet.Snapshot().Node("node-0041") == nil {
		t.Errorf("%d nodes are left, or the wrong ones", n)
	}

	// All matches, without earlier ticks.
	k.open("/nodes?site=site-1")
	k.await(`!document.querySelector("input[name=pick]:checked")`)
	k.do(chromedp.Click(chromedp.CSS(`th.pick input`)))
	k.await(`document.querySelector("#picks output").innerText.endsWith("selected")`)
	k.do(chromedp.Click(chromedp.CSS(`#picks [data-none]`)))
	k.await(`getComputedStyle(document.getElementById("picks")).visibility === "hidden" && !document.querySelector("input[name=pick]:checked")`)
	k.open("/nodes")
	k.do(chromedp.Click(chromedp.CSS(`th.pick input`)))
	picks("100 selected")
	k.do(chromedp.Click(chromedp.CSS(`input[name=all]`)))
	picks("All 118 that match")
	k.press(`#picks button[value=cordon]`)
	k.says("Cordon 118 nodes")
	k.press("button.primary")
	k.awaits("118 of 118 done")
	if k.eval(`document.querySelectorAll("tbody tr").length !== 100`) {
		t.Error("the page of a large action shows all objects")
	}
	shots("many-paged")
}

func TestPickingWorkloadsOffersWhatTheyHaveInCommon(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.open("/workloads")
	offered := func(want string) {
		t.Helper()
		k.await(fmt.Sprintf(`[...document.querySelectorAll("#picks [data-kinds]:not([hidden])")].map((b) => b.value).join(" ") === %q`, want))
	}
	k.do(chromedp.Click(chromedp.CSS(`section[data-key=deployments] td.pick input`)))
	offered("restart undo resume scale pause delete")
	k.do(chromedp.Click(chromedp.CSS(`section[data-key=daemonsets] td.pick input`)))
	offered("restart undo delete")
	for _, w := range []int64{360, 768, 1280} {
		k.width(w, w == 768)
		k.fits("workloads")
		k.axe(fmt.Sprintf("workloads at %d pixels", w))
		k.shot(fmt.Sprintf("picked-workloads-%d", w))
	}
	k.press(`#picks button[value=delete]`)
	k.says("Delete 2 workloads", "Deployments: Deletes the deployment with its pods.")
	k.shot("many-workloads")
	k.open("/sites")
	k.do(chromedp.Click(chromedp.CSS(`li[data-key=oslo] input[name=pick]`)))
	for _, w := range []int64{360, 1280} {
		k.width(w, w == 360)
		k.fits("sites")
		k.axe(fmt.Sprintf("sites at %d pixels", w))
		k.shot(fmt.Sprintf("picked-sites-%d", w))
	}
	k.press(`#picks button[value=maintenance]`)
	k.says("Maintenance 1 site")
}

func TestPickingNeedsNoScript(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	k.open("/nodes?site=oslo")
	k.shot("no-script")
	for _, name := range []string{"pi-1", "pi-2"} {
		k.do(chromedp.Click(chromedp.CSS(fmt.Sprintf(`[data-key=%q] input[name=pick]`, name))))
	}
	k.do(chromedp.Click(chromedp.CSS(`#picks button[value=cordon]`)), chromedp.WaitVisible(chromedp.CSS("[data-do]")))
	k.says("Cordon 2 nodes")
	k.do(chromedp.Click(chromedp.CSS("[data-do]")), chromedp.WaitVisible(chromedp.CSS(`button[value="undo"]`)))
	k.says("2 of 2 done")
	for name, want := range map[string]bool{"pi-1": true, "pi-2": true, "pi-3": false} {
		if n := k.fleet.Snapshot().Node(name); n.Spec.Unschedulable != want {
			t.Errorf("%s is cordoned: %v", name, n.Spec.Unschedulable)
		}
	}
}
