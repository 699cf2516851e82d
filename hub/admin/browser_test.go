package admin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"
)

// A browser is a tab of a real Chromium. Any complaint in its console fails the test.
type browser struct {
	testing.TB
	ctx context.Context
	url string

	mu       sync.Mutex
	excused  []string // parts of expected complaints
	problems []string
}

// The running Chromiums. A test has one to itself, because only one tab has the focus; another test
// uses it afterwards.
var chromiums struct {
	sync.Mutex
	idle []context.Context
	stop []func()
}

func takeChromium() (context.Context, error) {
	chromiums.Lock()
	defer chromiums.Unlock()
	if n := len(chromiums.idle); n > 0 {
		ctx := chromiums.idle[n-1]
		chromiums.idle = chromiums.idle[:n-1]
		return ctx, nil
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.IgnoreCertErrors, chromedp.Flag("disable-background-networking", true), chromedp.Flag("hide-scrollbars", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(ctx)
	chromiums.stop = append(chromiums.stop, func() { _ = chromedp.Cancel(ctx); cancel() })
	return ctx, chromedp.Do(ctx)
}

func returnChromium(ctx context.Context) {
	chromiums.Lock()
	defer chromiums.Unlock()
	chromiums.idle = append(chromiums.idle, ctx)
}

func TestMain(m *testing.M) {
	if beBrowsers() {
		return
	}
	if code, ran := apart(); ran {
		os.Exit(code)
	}
	code := m.Run()
	for _, stop := range chromiums.stop {
		stop()
	}
	os.Exit(code)
}

func browse(t testing.TB, url string) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: not tested in a browser")
	}
	parent, err := takeChromium()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no Chromium: %v; install Debian's package chromium", err)
		}
		t.Skipf("no Chromium (%v): the page is not tested in a browser", err)
	}
	t.Cleanup(func() { returnChromium(parent) })
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	return watch(t, ctx, url)
}

// watch opens a tab and collects the browser's complaints.
func watch(t testing.TB, ctx context.Context, url string) *browser {
	t.Helper()
	ctx, cancelTime := context.WithTimeout(ctx, 30*time.Minute) // for a whole test on a busy machine
	t.Cleanup(cancelTime)
	b := &browser{TB: t, ctx: ctx, url: url, excused: []string{changed, hurried}}
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Call(ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true})
		return err
	}))
	messages, dialogs := chromedp.Console(ctx), chromedp.Events(ctx, cdppage.JavascriptDialogOpening)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning || m.IsException() {
				b.complain(m.String() + " " + m.URL)
			}
		}
	}()
	go func() {
		for d, err := range dialogs {
			if err != nil {
				return
			}
			b.complain("dialog: " + d.Message)
			_, _ = chromedp.Call(ctx, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{Accept: true})
		}
	}()
	t.Cleanup(b.check)
	return b
}

func (b *browser) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.excused {
		if strings.Contains(text, e) {
			return
		}
	}
	b.problems = append(b.problems, text)
}

func (b *browser) excuse(part string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.excused = append(b.excused, part)
}

func (b *browser) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.Errorf("the browser complains: %s", p)
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatalf("drive the browser: %v", err)
	}
}

func (b *browser) open(path string) {
	b.Helper()
	b.steady(func() error {
		err := chromedp.Do(b.ctx, chromedp.Navigate(b.url+path))
		for end := time.Now().Add(time.Minute); err != nil && strings.Contains(err.Error(), "Not attached to an active page") && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			err = chromedp.Do(b.ctx, chromedp.Navigate(b.url+path)) // the tab is not ready, or still busy with the last page
		}
		return err
	}, "open "+path)
}

// steady loads a page, and again if Chromium aborts it because an address of the machine has
// changed.
func (b *browser) steady(load func() error, what string) {
	b.Helper()
	err := load()
	for try := 0; err != nil && strings.Contains(err.Error(), changed) && try < 5; try++ {
		err = chromedp.Do(b.ctx, chromedp.Reload())
	}
	if err != nil {
		b.Fatalf("%s: %v; the page says: %.600s", what, err, b.text())
	}
}

const changed = "ERR_NETWORK_CHANGED"

// hurried is a message of the terminal on a busy machine.
const hurried = "task queue exceeded allotted deadline"

// await waits until an expression is true, and returns how long that took.
func (b *browser) await(expression string) time.Duration {
	b.Helper()
	begin := time.Now()
	whole := "(() => { try { return " + expression + " } catch { return false } })()" // a page may be half loaded
	for {
		_, err := chromedp.Run(b.ctx, chromedp.Poll[bool](whole, chromedp.WithPollingTimeout(3*time.Minute)))
		switch {
		case err == nil:
			return time.Since(begin)
		case strings.Contains(err.Error(), "Cannot find context") || strings.Contains(err.Error(), "navigated or closed"):
			continue // the page is being replaced
		}
		b.Fatalf("wait for %s: %v; the page says: %.600s", expression, err, b.text())
	}
}

// awaits waits until the page contains a text.
func (b *browser) awaits(text string) time.Duration {
	b.Helper()
	return b.await(fmt.Sprintf(`document.body.innerText.replace(/\s+/g, " ").includes(%q)`, text))
}

func (b *browser) eval(expression string) bool {
	b.Helper()
	ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
	if err != nil {
		b.Fatalf("evaluate %s: %v", expression, err)
	}
	return ok
}

// evalLater evaluates a promise of a bool.
func (b *browser) evalLater(expression string) bool {
	b.Helper()
	b.eval("window.later = undefined, (" + expression + ").then((is) => { window.later = is }), true")
	b.await("window.later !== undefined")
	return b.eval("window.later")
}

func (b *browser) text() string {
	text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	return strings.Join(strings.Fields(text), " ")
}

// unfold opens the sections that are folded on a phone.
func (b *browser) unfold() {
	b.Helper()
	b.eval(`document.querySelectorAll(".unfold").forEach((box) => box.click()), true`)
}

func (b *browser) says(parts ...string) {
	b.Helper()
	text := b.text()
	for _, p := range parts {
		expr, isExpr := strings.CutPrefix(p, "~")
		if isExpr && !regexp.MustCompile(expr).MatchString(text) || !isExpr && !strings.Contains(text, p) {
			b.Errorf("the page does not say %q; it says: %.1500s", p, text)
		}
	}
}

func (b *browser) fill(selector, text string) {
	b.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// press clicks a link or button and waits for the next page.
func (b *browser) press(selector string) {
	b.Helper()
	b.eval("window.left = true")
	b.steady(func() error {
		_, err := chromedp.RunResponse(b.ctx, chromedp.Click(chromedp.CSS(selector)))
		return err
	}, "press "+selector)
	b.await(`!window.left && document.readyState === "complete"`)
}

func (b *browser) logout() {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS(".who summary")))
	b.press(".who button")
}

func (b *browser) width(pixels int64, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	height := int64(900)
	if pixels < 500 {
		height = 780
	}
	b.do(chromedp.EmulateViewport(pixels, height), chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

// shot saves a picture in the directory that SCREENSHOTS names.
func (b *browser) shot(name string) {
	b.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600)
	}
	if err != nil {
		b.Errorf("take a picture of %s: %v", name, err)
	}
}

// fits fails when something is wider than the window.
func (b *browser) fits(where string) {
	b.Helper()
	if !b.eval("document.documentElement.scrollWidth <= window.innerWidth") {
		wide, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('pre, nav')).map(e => e.outerHTML.slice(0, 90)).slice(0, 4).join(' | ')`))
		b.Errorf("%s is wider than the window: %s", where, wide)
	}
}
