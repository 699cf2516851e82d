package admin

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

//go:embed testdata/axe/axe.min.js
var axeSource string

// axeRun looks for what hinders people: everything of WCAG 2.1, A and AA, and best
// practice, as far as a program can see it.
const axeRun = `axe.run(document, {resultTypes: ["violations"]}).then((found) => JSON.stringify(found.violations
	.filter((v) => v.impact === "serious" || v.impact === "critical")
	.map((v) => v.id + " (" + v.impact + "): " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | "))))`

// axe fails for whatever of a page is a serious hindrance to somebody.
func (b *browser) axe(where string) {
	b.Helper()
	if found := b.hindrances(); len(found) > 0 {
		b.Errorf("%s hinders people:\n\t%s", where, strings.Join(found, "\n\t"))
	}
}

func (b *browser) hindrances() (found []string) {
	b.Helper()
	if !b.eval("!!window.axe") {
		b.eval(axeSource + "; true")
	}
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](axeRun, chromedp.EvalAwaitPromise))
	if err == nil {
		err = json.Unmarshal([]byte(text), &found)
	}
	if err != nil {
		b.Fatalf("look for hindrances: %v", err)
	}
	return found
}

// TestNothingHindersPeople looks at every page that is read, in both colours and at
// both widths; the tests of single pages look at theirs.
func TestNothingHindersPeople(t *testing.T) {
	k := newKit(t, toolObjects()...)
	k.excuse("404") // of the view that is missing
	for _, w := range []struct {
		pixels int64
		dark   bool
	}{{360, true}, {1280, false}} {
		k.width(w.pixels, w.dark)
		for _, v := range everyView {
			k.open(v.path)
			k.axe(fmt.Sprintf("%s at %d pixels", v.name, w.pixels))
		}
	}
	k.eval(`document.body.append(Object.assign(new Image(), {src: "/static/icon.svg"})), true`)
	if found := k.hindrances(); len(found) == 0 {
		t.Error("an image without words hinders nobody: the test cannot fail")
	}
}
