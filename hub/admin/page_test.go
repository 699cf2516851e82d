package admin

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// everyView has every readable page with texts on it; a text after ~ is a regular expression.
var everyView = []struct {
	name, path string
	says       []string
}{
	{"overview", "/", []string{"Needs attention", "pi-2 does not answer", "Pods stay: partially disrupted", "kiosk-7d9f-klmno cannot be placed", "crashes again and again"}},
	{"nodes", "/nodes", []string{"8 nodes", "pi-1", "Ready, cordoned", "raspberrypi4", `~\b[0-9]{1,3}s ago`}},
	{"nodes-search", "/nodes?q=board:bone&status=attention", []string{"3 nodes found", "bone-4"}},
	{"nodes-none", "/nodes?q=nobody", []string{"No node matches"}},
	{"node", "/nodes/pi-2", []string{"It does not answer", "The device no longer reports.", "Its pods stay for now: site oslo gives up one node every 10s, and it is next, at about", "~In the .* known: ready for", "Raspberry Pi 4 Model B Rev 1.5", "kiosk-7d9f-fghij", "~The other [0-9]+ conditions? (are|is) good", "raspberrypi4"}},
	{"sites", "/sites", []string{"bergen", "Partial disruption", "Pods stay: a large part of this small site", "one node every 10s", "Next to be given up"}},
	{"site", "/sites/oslo", []string{"pi-2", "Next to be given up", "one node every 10s", "gateway"}},
	{"workloads", "/workloads", []string{"kiosk", "1 of 3 pods are available", "node-exporter", "Complete", "nightly-report", "30 2 * * * Europe/Oslo", "ledger", "2/3", "ledger-1 on pi-2 may still run", "press-backup", "Job has reached the specified backoff limit"}},
	{"workload", "/workloads/deployments/default/kiosk", []string{"kiosk", "1 of 3 pods are available", "Restart", "It has no pod."}},
	{"workloads-none", "/workloads?q=nothing", []string{"No workload matches"}},
	{"actions", "/actions", []string{"No action has been started since the hub started."}},
	{"drain", "/actions/nodes/drain?site=oslo", []string{"Drain 4 nodes", "Delete 3 pods without an owner", "1 node is not ready: pods there stay Terminating", "pi-2"}},
	{"cordon", "/actions/nodes/cordon?site=oslo", []string{"Cordon 3 nodes", "is cordoned already"}},
	{"site-settings", "/actions/sites/settings?item=%2Foslo", []string{"Settings: oslo", "A silent node is unknown after"}},
	{"pods", "/pods", []string{"4 pods", "kiosk-7d9f-klmno", "Pending", "untolerated taint", "Node silent"}},
	{"pod", "/pods/default/kiosk-7d9f-crash", []string{"back-off 5 min restarting failed container, last ended with exit code 1", "registry.example/kiosk:1.4.2", "back-off restarting container web"}},
	{"events", "/events", []string{"SiteDisrupted", "Node pi-2 does not answer"}},
	{"add", "/devices/add", []string{"Make a token"}},
	{"missing", "/nodes/nobody", []string{"There is no node nobody."}},
}

func TestAPersonComesInByTheSetupLinkAndSeesEveryView(t *testing.T) {
	t.Parallel()
	m := admintest.New(admintest.Sample()...)
	c, secret := guarded(t, m)
	b := browse(t, start(t, c).URL)
	b.excuse("404") // for the missing object
	b.excuse("401") // for the wrong password

	b.width(360, false)
	b.open("/")
	b.says("open the setup link")
	b.open("/setup?token=" + secret)
	b.shot("setup-360-light")
	b.fits("setup")
	b.fill("input[name=password]", "four words are good")
	b.fill("input[name=again]", "four words are good")
	b.press("button.primary")
	b.says("Needs attention", "admin")
	b.logout()
	b.open("/nodes?status=ready")
	b.fill("input[name=name]", "admin")
	b.fill("input[name=password]", "wrong password")
	b.press("button.primary")
	b.says("wrong name or password")
	b.shot("login-360-light")
	b.fill("input[name=password]", "four words are good")
	b.press("button.primary")
	b.says("Nodes", "4 nodes")

	for _, w := range []struct {
		pixels int64
		dark   bool
	}{{360, true}, {1280, false}, {360, false}, {1280, true}} {
		if w.dark == (w.pixels == 1280) && os.Getenv("SCREENSHOTS") == "" {
			continue // colours do not change the layout
		}
		b.width(w.pixels, w.dark)
		for _, v := range everyView {
			b.open(v.path)
			if w.pixels == 360 { // sections are folded there
				b.unfold()
			}
			b.says(v.says...)
			name := fmt.Sprintf("%s-%d-%s", v.name, w.pixels, map[bool]string{true: "dark", false: "light"}[w.dark])
			b.fits(name)
			b.shot(name)
		}
		b.open("/devices/add?site=oslo")
		b.press("button.primary")
		b.says("flotilla-device join https://127.0.0.1:", "--token FLT1.")
		b.awaits("Waiting for the device")
		b.fits("token")
		b.shot(fmt.Sprintf("token-%d-%v", w.pixels, w.dark))
	}
	path := b.string("document.querySelector('[data-src]').dataset.src")
	token := regexp.MustCompile("token=([a-z0-9]+)").FindStringSubmatch(path)[1]
	m.Put(t, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-new"}, Token: token, Enrolled: metav1.NewTime(time.Now().Add(-10 * time.Second))})
	b.awaits("Has its certificate pi-new has joined")
	b.says("the hub waits for the device's first report")
	m.Put(t, admintest.Node("pi-new", "oslo", func(n *corev1.Node) { n.CreationTimestamp = metav1.Now() }))
	b.awaits("Ready pi-new has joined")
	b.says("The token is used up.")
}

func loggedIn(t testing.TB, m frame.Fleet) *browser {
	t.Helper()
	c, secret := guarded(t, m)
	b := browse(t, start(t, c).URL)
	b.width(1280, false)
	b.open("/setup?token=" + secret)
	b.fill("input[name=password]", "four words are good")
	b.fill("input[name=again]", "four words are good")
	b.press("button.primary")
	return b
}

// The delay of an update is logged and measured by BenchmarkAChangeReachesThePage, because a test
// depends on the machine's load.
func TestAChangeReachesThePage(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	b := loggedIn(t, m)
	b.open("/nodes")
	b.await(`document.querySelector('[data-key="pi-1"] .pill').innerText === 'Ready'`)
	for i, want := range []corev1.ConditionStatus{"Unknown", "True", "Unknown"} {
		m.Put(t, admintest.Node("pi-1", "oslo", admintest.Condition("Ready", want, "x", "y")))
		text := map[corev1.ConditionStatus]string{"Unknown": "Unknown", "True": "Ready"}[want]
		t.Logf("change %d was on the page after %s", i+1, b.await(fmt.Sprintf(`document.querySelector('[data-key="pi-1"] .pill').innerText === %q`, text)))
	}
	b.open("/nodes/bone-1")
	m.Put(t, admintest.Node("bone-1", "bergen", func(n *corev1.Node) { n.Labels["colour"] = "green" }))
	t.Logf("a label was on the node's page after %s", b.awaits("green"))
}

// BenchmarkAChangeReachesThePage measures from a change in the loop to its text in Chromium.
func BenchmarkAChangeReachesThePage(b *testing.B) {
	m := admintest.New(admintest.Sample()...)
	page := loggedIn(b, m)
	page.open("/nodes/bone-1")
	worst, i := time.Duration(0), 0
	for b.Loop() {
		i++
		text := fmt.Sprintf("green-%d", i)
		m.Put(b, admintest.Node("bone-1", "bergen", func(n *corev1.Node) { n.Labels["colour"] = text }))
		worst = max(worst, page.awaits(text))
	}
	b.ReportMetric(float64(worst.Milliseconds()), "ms-at-most")
}

func TestFocusAndWhatIsTypedSurviveAChange(t *testing.T) {
	t.Parallel()
	m := admintest.New(admintest.Sample()...)
	b := loggedIn(t, m)
	b.open("/nodes")
	b.fill("input[type=search]", "pi-")
	b.await(`document.body.innerText.includes("3 nodes found") && location.search === "?q=pi-"`)
	m.Put(t, admintest.Node("pi-9", "oslo", nil))
	b.awaits("4 nodes found")
	if !b.eval(`document.activeElement.name === "q" && document.activeElement.value === "pi-"`) {
		t.Error("the search lost its focus or its text")
	}
}

func TestALostConnectionIsShownAndHeals(t *testing.T) {
	t.Parallel()
	m := admintest.New(admintest.Sample()...)
	c, secret := guarded(t, m)
	srv := start(t, c)
	b := browse(t, srv.URL)
	b.excuse("net::ERR_")
	b.open("/setup?token=" + secret)
	b.fill("input[name=password]", "four words are good")
	b.fill("input[name=again]", "four words are good")
	b.press("button.primary")
	b.open("/nodes")
	b.await(`!document.body.classList.contains("is-lost")`)
	srv.down.Store(true)
	srv.CloseClientConnections()
	b.await(`document.body.classList.contains("is-lost") && document.getElementById("lost").innerText.includes("Connection to the hub lost")`)
	b.shot("lost-1280-light")
	m.Put(t, admintest.Node("pi-while-away", "oslo", nil))
	srv.down.Store(false)
	b.await(`!document.body.classList.contains("is-lost") && document.body.innerText.includes("pi-while-away")`)
}

func TestHostileNamesAreOnlyText(t *testing.T) {
	t.Parallel()
	evil := `<img src=x onerror=alert(1)>"'><script>alert(2)</script>`
	m := admintest.New(admintest.Sample()...)
	m.Put(t, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: evil}, Spec: fleet.SiteSpec{Description: evil, Location: "javascript:alert(3)"},
		Status: fleet.SiteStatus{State: fleet.SiteFullDisruption, HeldReason: fleet.HeldByDisruptionPolicy, Held: evil}})
	n := admintest.Node("evil", evil, admintest.Condition("Ready", "Unknown", evil, evil+"\u202egnp.exe\u200b"))
	n.Labels[evil], n.Labels[fleet.LabelBoard] = evil, evil
	n.Status.NodeInfo.OSImage, n.Status.NodeInfo.KernelVersion = evil, "javascript:alert(4)"
	n.Spec.Taints = []corev1.Taint{{Key: evil, Value: evil, Effect: "NoSchedule"}}
	p := admintest.Pod(evil, "evil", func(p *corev1.Pod) {
		p.Namespace = "default"
		p.Labels = map[string]string{evil: evil}
		p.Spec.Containers[0].Image = evil
	})
	m.Put(t, n, p, admintest.Event("Node", "evil", evil, evil, time.Second), admintest.Event("Node", evil, "NodeNotReady", evil, time.Second),
		&fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: "evil"}, Hardware: runtime.RawExtension{
			Raw: []byte(`{"board":{"model":"<img src=x onerror=alert(5)>","<script>alert(6)</script>":"</dd><script>alert(7)</script>"}}`)}})
	b := loggedIn(t, m)
	b.excuse("400") // a value that no form can send
	for _, path := range []string{"/", "/nodes", "/nodes/evil", "/sites", "/pods", "/pods?q=%3Cscript%3Ealert(8)%3C/script%3E", "/events", "/workloads", "/workloads?q=%22%3E%3Cscript%3Ealert(10)%3C/script%3E",
		"/actions/nodes/drain?status=unknown", "/actions/nodes/label?item=%2Fevil&key=%22%3E%3Cscript%3Ealert(11)%3C/script%3E&back=javascript:alert(12)", "/actions/pods/delete", "/actions/sites/settings?item=" + url.QueryEscape("/"+evil),
		"/nodes?sort=%22%3E%3Cscript%3Ealert(13)%3C/script%3E", "/devices/add?site=%22%3E%3Cscript%3Ealert(9)%3C/script%3E"} {
		b.open(path)
		b.await(`document.readyState === "complete"`)
		if strings.ContainsAny(b.text(), "\u202e\u200b") {
			t.Errorf("%s shows characters that reverse or hide text", path)
		}
		if !b.eval(`document.querySelectorAll('main img, main script, main [onerror], a[href^="javascript:"]').length === 0`) {
			t.Errorf("%s renders a name as an element", path)
		}
	}
	b.open("/nodes/evil")
	n = n.DeepCopy()
	n.Labels["again"] = evil
	m.Put(t, n) // with the script, too
	b.awaits("again")
	if !b.eval(`document.querySelectorAll('main img, main script').length === 0`) {
		t.Error("the script renders a name as an element")
	}
}

func TestThePageIsReadableWithoutScript(t *testing.T) {
	t.Parallel()
	b := loggedIn(t, admintest.New(admintest.Sample()...))
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	b.open("/nodes")
	b.fill("input[type=search]", "bone")
	b.do(chromedp.Click(chromedp.CSS(".filters button")), chromedp.WaitVisible(chromedp.CSS(".found span a")))
	b.says("4 nodes found", "bone-4", "the container engine has not answered for 30s")
	b.open("/nodes/bone-1")
	if b.eval(`matchMedia("(scripting: enabled)").matches`) {
		t.Error("the browser still runs scripts")
	}
}

// A tab that is open during an upgrade of the hub reloads, because the new content does not fit the
// old scripts and style sheet.
func TestAnOpenPageReloadsAfterAnUpgrade(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.open("/nodes?site=oslo")
	heard := func() { // the content follows the query
		t.Helper()
		name := fmt.Sprintf("pi-new-%d", time.Now().UnixNano())
		k.fleet.Put(t, admintest.Node(name, "oslo", nil))
		k.awaits(name)
	}
	heard()
	k.eval(`window.first = true`)
	k.excuse("net::ERR_")
	again := func() {
		t.Helper()
		k.server.down.Store(true)
		k.server.CloseClientConnections()
		k.awaits("Connection to the hub lost")
		k.server.down.Store(false)
		k.await(`!document.body.classList.contains("is-lost")`)
	}
	again() // the same version, restarted
	heard()
	if !k.eval(`window.first === true`) {
		t.Fatal("a page of the same version reloads")
	}
	k.eval(`document.getElementById("main").dataset.look = "of the hub before", document.querySelector("input[type=search]").focus(), true`)
	again()
	heard()
	if !k.eval(`window.first === true`) {
		t.Fatal("it reloads while the user types")
	}
	k.eval(`document.activeElement.blur(), true`)
	k.await(`window.first === undefined && location.search === "?site=oslo"`)
	heard()
}
