package admin

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
)

// A browser goes through each kind of action: at once and undone, on a filtered list, with a form,
// and one that takes time.
func TestActionsInABrowser(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	node := func(name string) *corev1.Node { return k.fleet.Snapshot().Node(name) }
	shots := func(name string) {
		for _, w := range []int64{360, 1280} {
			k.width(w, w == 360)
			k.fits(name)
			k.axe(fmt.Sprintf("%s at %d pixels", name, w))
			k.shot(fmt.Sprintf("%s-%d", name, w))
		}
	}

	// An action without a confirmation, and its undo.
	k.open("/nodes/pi-1")
	k.press(`button[formaction="/actions/nodes/cordon"]`)
	k.says("pi-1 is cordoned by admin.", "Ready, cordoned", "no new pods are placed here")
	if !node("pi-1").Spec.Unschedulable {
		t.Error("the node is not cordoned")
	}
	shots("did")
	k.press(`.did button`)
	k.says("Undone: Cordon node pi-1 by admin.")
	if node("pi-1").Spec.Unschedulable {
		t.Error("the node is still cordoned")
	}

	// An action on a filtered list: the confirmation counts the objects, and unticked ones do not change.
	k.open("/nodes?site=oslo")
	k.do(chromedp.Click(chromedp.CSS(".found .menu summary")))
	k.await(`document.querySelector(".found .menu").open`)
	shots("bulk-menu")
	k.press(`.found .menu a[href^="/actions/nodes/cordon"]`)
	k.says("Cordon 3 nodes", "is cordoned already")
	k.do(chromedp.Click(chromedp.CSS(`input[value^="/pi-3="]`)))
	k.await(`document.querySelector("[data-do]").innerText === "Cordon 2 nodes"`)
	shots("bulk-before")
	k.press("[data-do]")
	k.says("Cordon 2 nodes", "2 of 2 done", "pi-1", "pi-2")
	shots("bulk-done")
	if !node("pi-1").Spec.Unschedulable || !node("pi-2").Spec.Unschedulable || node("pi-3").Spec.Unschedulable {
		t.Error("the wrong nodes are cordoned")
	}
	k.press(`.actions button[value="undo"]`)
	k.says("Undone: Cordon 2 nodes", "2 of 2 done")
	if node("pi-1").Spec.Unschedulable || node("pi-2").Spec.Unschedulable {
		t.Error("the nodes are still cordoned")
	}

	// An action with a form that the API checks.
	k.open("/sites")
	k.do(chromedp.Click(chromedp.CSS(`[data-key="oslo"] .menu summary`)))
	k.press(`[data-key="oslo"] .menu a[href^="/actions/sites/settings"]`)
	k.fill("input[name=nodeMonitorGracePeriod]", "5s")
	k.excuse("422")
	k.press("button.primary")
	k.says("must be at least 40s")
	shots("site-refused")
	k.do(chromedp.SetValue(chromedp.CSS("input[name=nodeMonitorGracePeriod]"), "2m"))
	k.press("button.primary")
	k.says("oslo has new settings by admin.", "A silent node is unknown after 2m0s")

	// An action that takes time shows its progress.
	k.open("/nodes/pi-1")
	k.press(`.actions a[href^="/actions/nodes/drain"]`)
	k.says("2 pods do not leave.", "Delete 2 pods without an owner")
	k.do(chromedp.Click(chromedp.CSS("input[name=bare]")))
	k.press("button.danger")
	k.awaits("0 of 2 pods have left")
	shots("drain-going")
	k.open("/")
	k.awaits("0 of 1 done, by admin")
	shots("overview-with-action")
	k.open("/actions")
	k.press(`.rows a[href^="/actions/"]`)
	k.fleet.End(t, k.fleet.Snapshot().Pod("default", "kiosk-7d9f-abcde"))
	k.awaits("1 of 2 pods have left")
	k.fleet.End(t, k.fleet.Snapshot().Pod("default", "kiosk-7d9f-crash"))
	k.awaits("2 of 2 pods have left")
	k.awaits("1 of 1 done")
	shots("drain-done")
	k.open("/actions/nodes/taint?q=pi-")
	k.says("Taint 3 nodes", "no new pods")
	shots("taint-before")
	k.open("/nodes/pi-1?span=7d")
	k.do(chromedp.Click(chromedp.CSS(`[data-key="strip table"] summary`)))
	shots("timeline-table")
	k.open("/actions")
	k.says("pi-1 is drained", "Undone: Cordon 2 nodes")
	shots("actions")

	// A viewer sees what was done, and no buttons.
	k.become(access.Viewer)
	for _, path := range []string{"/", "/nodes", "/nodes/pi-1", "/sites", "/workloads", "/workloads/deployments/default/kiosk", "/pods", "/pods/default/kiosk-7d9f-klmno", "/actions"} {
		k.open(path)
		if !k.eval(`document.querySelectorAll('main [form="act"], main a[href^="/actions/nodes/"], main a[href^="/actions/pods/"], main a[href^="/actions/deployments/"], main a[href^="/actions/sites/"]').length === 0`) {
			t.Errorf("a viewer is offered an action on %s", path)
		}
	}
	k.excuse("403")
	k.open("/actions/nodes/drain?item=%2Fpi-1")
	k.says("Not for your role")
}

func TestActingNeedsNoScript(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	k.open("/nodes?site=oslo")
	k.do(chromedp.Click(chromedp.CSS(".found .menu summary")), chromedp.WaitVisible(chromedp.CSS(".found .menu a")))
	k.do(chromedp.Click(chromedp.CSS(`.found .menu a[href^="/actions/nodes/cordon"]`)), chromedp.WaitVisible(chromedp.CSS("[data-do]")))
	k.do(chromedp.Click(chromedp.CSS("[data-do]")), chromedp.WaitVisible(chromedp.CSS(`button[value="undo"]`)))
	k.says("3 of 3 done")
	k.do(chromedp.Click(chromedp.CSS(`button[value="undo"]`)), chromedp.WaitNotPresent(chromedp.CSS(`button[value="undo"]`)))
	k.says("Undone: Cordon 3 nodes")
	for _, name := range []string{"pi-1", "pi-2", "pi-3"} {
		if k.fleet.Snapshot().Node(name).Spec.Unschedulable {
			t.Errorf("%s is still cordoned", name)
		}
	}
}

func TestWhatSomebodyIsAtSurvivesAChange(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.width(360, false)
	k.open("/nodes/pi-1")
	k.unfold()
	k.do(chromedp.Click(chromedp.CSS(".actions .menu summary")))
	k.await(`document.querySelector(".actions .menu").open`)
	if !k.eval(`(r => r.left >= 0 && r.right <= innerWidth && r.bottom <= innerHeight)(document.querySelector(".actions .menu > div").getBoundingClientRect())`) {
		t.Error("the menu is not entirely visible")
	}
	k.shot("menu-360")
	k.eval(`document.querySelector(".actions .menu a").focus(), scrollTo(0, 300), document.querySelector('[data-key="strip table"]').open = true`)
	k.fleet.Put(t, admintest.Node("pi-1", "oslo", func(n *corev1.Node) { n.Labels["colour"] = "green" }))
	k.awaits("colour")
	if !k.eval(`document.querySelector(".actions .menu").open && document.activeElement.matches(".actions .menu a") && document.querySelector('[data-key="strip table"]').open && scrollY === 300`) {
		t.Error("a change closed the menu, the table, moved the focus or scrolled")
	}
}

func TestTheKeyboardIsEnough(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.open("/nodes/pi-1")
	k.do(chromedp.KeyEvent("\t"))
	if !k.eval(`document.activeElement.matches(".skip") && document.activeElement.getBoundingClientRect().left >= 0`) {
		t.Error("the keyboard does not first reach the visible link that skips the navigation")
	}
	k.do(chromedp.KeyEvent("\r"))
	k.await(`document.activeElement.id === "main"`)
	for i := 0; !k.eval(`document.activeElement.matches(".actions .menu summary")`); i++ {
		if k.do(chromedp.KeyEvent("\t")); i == 20 {
			t.Fatal("the keyboard does not reach the menu")
		}
		if !k.eval(`getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
			t.Error("the focus is not visible")
		}
	}
	k.do(chromedp.KeyEvent("\r"))
	k.await(`document.querySelector(".actions .menu").open`)
	k.do(chromedp.KeyEvent("\t"))
	if !k.eval(`document.activeElement.matches(".actions .menu a")`) {
		t.Error("the keyboard does not reach the menu's items")
	}
	k.do(chromedp.KeyEvent("\x1b"))
	if !k.eval(`!document.querySelector(".actions .menu").open && document.activeElement.matches(".actions .menu summary")`) {
		t.Error("Escape does not close the menu and go back to it")
	}
}
