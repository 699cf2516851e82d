package admin

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"flotilla.dev/hub/admin/admintest"
)

// A card of the overview that has the focus, or is pressed, stays in place while other cards come and
// go. New cards wait behind a button, and a live region says so.
func TestACardInUseStaysInPlace(t *testing.T) {
	t.Parallel()
	for _, pixels := range []int64{1280, 360} {
		k := newKitOf(t, admintest.Node("pi-1", "oslo", nil), admintest.Node("pi-2", "bergen", nil),
			admintest.Node("pi-3", "lund", admintest.Condition("DiskPressure", "True", "KubeletHasDiskPressure", "x")))
		k.width(pixels, false)
		k.open("/")
		k.awaits("Too little disk space on pi-3")
		const card = `document.querySelector(".incidents li")`
		const top = card + `.getBoundingClientRect().top`
		silent := func(name string) {
			n := k.fleet.Snapshot().Node(name).DeepCopy()
			admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x")(n)
			k.fleet.Put(t, n)
		}
		stays := func(when, news string) {
			t.Helper()
			k.await(fmt.Sprintf(`document.querySelector("[role=status] button")?.textContent === %q`, news))
			if !k.eval(card + ` === window.card && Math.abs(` + top + ` - window.was) <= 1`) { // pages scroll by whole pixels
				t.Errorf("%s at %d pixels, the card has moved by %s", when, pixels, k.string(`String(`+top+` - window.was)`))
			}
		}
		k.eval(`window.card = ` + card + `, window.card.querySelector("h3 a").focus(), window.was = ` + top + `, true`)
		silent("pi-1")
		stays("with the focus", "1 new")
		silent("pi-2")
		stays("with the focus", "2 new")
		if !k.eval(`document.activeElement === window.card.querySelector("h3 a")`) {
			t.Error("the focus is lost")
		}
		k.axe(fmt.Sprintf("cards that wait at %d pixels", pixels))
		k.shot(fmt.Sprintf("news-%d", pixels))
		k.do(chromedp.Click(chromedp.CSS("#news button")))
		k.await(`document.querySelectorAll(".incidents > li").length > 1 && !document.querySelector("#news button")`)
		if k.eval(card + ` === window.card`) {
			t.Error("the worst card is not the first one")
		}

		k.eval(`window.card = ` + card + `, window.card.scrollIntoView({block: "center"}), window.was = ` + top + `, true`)
		x, y := 0.0, 0.0
		if _, err := fmt.Sscan(k.string(`(({x, y, width, height}) => (x + width - 8) + " " + (y + height - 8))(`+
			card+`.getBoundingClientRect())`), &x, &y); err != nil {
			t.Fatal(err)
		}
		mouse := func(typ input.DispatchMouseEventType) {
			k.do(chromedp.MouseEvent(typ, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
		}
		k.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, y))
		mouse(input.DispatchMouseEventTypeMousePressed)
		n := k.fleet.Snapshot().Node("pi-1").DeepCopy()
		admintest.Condition("PowerOK", "False", "UnderVoltage", "x")(n)
		admintest.Condition("Ready", "True", "KubeletReady", "")(n)
		k.fleet.Put(t, n)
		stays("pressed", "1 new")
		mouse(input.DispatchMouseEventTypeMouseReleased)
		k.do(chromedp.Click(chromedp.CSS("#news button")))
		k.awaits("power")
	}
}
