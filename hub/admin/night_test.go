package admin

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// dark silences the nodes of bergen.
func dark(t testing.TB, m *admintest.Memory) {
	t.Helper()
	var silent []state.Object
	for n := range m.Snapshot().NodesIn("bergen") {
		n = n.DeepCopy()
		admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
		silent = append(silent, n)
	}
	m.Put(t, silent...)
}

// A site goes dark while the overview is open. Its card comes first, and then nothing moves, at
// every width.
func TestANightOnTheOverview(t *testing.T) {
	t.Parallel()
	var b *kit
	for _, width := range []int64{360, 768, 1280} {
		b = newKitOf(t, admintest.Night()...)
		b.width(width, false)
		b.open("/")
		b.says("till-5c6b-x2x4z crashes again and again")
		dark(t, b.fleet)
		b.awaits("bergen is dark")
		b.string(frames)
		b.eval(shifts)
		another := b.fleet.Snapshot().Pod("default", "menu-77d8-plm2k").DeepCopy()
		another.Name, another.UID = "menu-77d8-zzzzz", "another"
		b.fleet.Put(t, another)
		b.awaits("2 pods · since")
		b.string(frames)
		if !b.eval("window.shifted <= 0.02") {
			t.Errorf("at %d px the overview moves: %s", width, b.string(`window.jumps.join("; ")`))
		}
		for _, want := range []string{
			`document.querySelectorAll(".incidents > li").length === 4`,
			`document.querySelector(".incidents > li").textContent.includes("is dark")`,
			`/^\(4\) Overview/.test(document.title)`, `document.querySelector("link[rel=icon]").href.includes("icon-bad")`,
			`[...document.querySelectorAll(".incidents button, .incidents a.button")].map((e) => e.textContent).join() === "Hold…,Maintenance…"`,
		} {
			if !b.eval(want) {
				t.Errorf("at %d px it is false that %s", width, want)
			}
		}
		b.fits(fmt.Sprintf("night-%d", width))
		if os.Getenv("SCREENSHOTS") != "" {
			b.picture(fmt.Sprintf("night-%d", width))
		}
	}
	b.eval(`document.querySelector(".incidents").style.marginTop = "300px", true`)
	b.string(frames)
	if b.eval("window.shifted <= 0.02") {
		t.Error("a shift by 300 pixels is not measured: the test cannot fail")
	}
}

// Each dark site says when its first pods move, that no pod has to, or why they stay.
func TestADarkSitesCardSaysWhatHappensToItsPods(t *testing.T) {
	next := metav1.NewMicroTime(admintest.Now.Add(12 * time.Second))
	site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Status: fleet.SiteStatus{State: fleet.SiteFullDisruption, EvictionRate: "0.1", Waiting: 3, NextEviction: &next}}
	still := site.DeepCopy()
	still.Status.EvictionRate, still.Status.NextEviction = "0", nil
	held := still.DeepCopy()
	held.Status.HeldReason = fleet.HeldByDisruptionPolicy
	for want, c := range map[string]struct {
		site *fleet.Site
		give func(*fleet.Incident)
	}{
		"No pod has to move.":                             {site, func(*fleet.Incident) {}},
		"3 pods told to leave. No other pod has to move.": {site, func(i *fleet.Incident) { i.Evicted = 3 }},
		"Pods start to move in": {site, func(i *fleet.Incident) {
			i.NextMove, i.Actions = new(admintest.Ago(-5*time.Minute)), []fleet.IncidentAction{fleet.ActionHold}
		}},
		"Pods stay: the site is on hold.":                {held, func(i *fleet.Incident) { i.Held = "fully disrupted, and its disruptionPolicy is Hold" }},
		"Pods stay: somebody holds them.":                {site, func(i *fleet.Incident) { i.Held = "somebody holds them" }},
		"Pods stay: the eviction rate of the site is 0.": {still, func(*fleet.Incident) {}},
	} {
		i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "x"}, State: fleet.IncidentOpen, Cause: "SiteDark", Severity: fleet.SeverityCritical, Site: "oslo", About: fleet.IncidentObject{Kind: "Site", Name: "oslo"}, Since: admintest.Ago(time.Hour), Opened: admintest.Ago(time.Hour), Message: "oslo is dark"}
		c.give(i)
		m := admintest.New(c.site, admintest.Node("oslo-1", "oslo", nil))
		m.Put(t, i)
		_, body := start(t, configOf(m)).ask(t, "admin", "GET", "/", nil)
		if words := wordsOf(body); !strings.Contains(words, want) {
			t.Errorf("it does not say %q: %s", want, words)
		} else if advises := strings.Contains(words, "before they move"); advises != strings.HasPrefix(want, "Pods start") {
			t.Errorf("%q: it advises to keep the pods: %v", want, advises)
		}
	}
}

// Hold has a preview of what it keeps. Then the card offers Release, with a preview of what moves.
func TestHoldHasAPreviewAndItsCardOffersRelease(t *testing.T) {
	m := admintest.New(admintest.Night()...)
	m.Put(t, admintest.Pod("watch-1", "brg-0000", func(p *corev1.Pod) {
		admintest.Tolerates(p)
		p.Spec.Tolerations[0].TolerationSeconds = nil
	}))
	srv := acting(t, m)
	item := url.Values{"item": {m.Form(state.Sites, "", "bergen")}}
	says := func(path string, want ...string) {
		t.Helper()
		_, body := srv.ask(t, "admin", "GET", path, nil)
		for _, w := range want {
			if words := wordsOf(body); !strings.Contains(words, w) {
				t.Errorf("%s does not say %q: %.1500s", path, w, words)
			}
		}
	}
	says("/actions/sites/hold?"+item.Encode(), "bergen: nothing changes now, as 10 nodes are ready.")
	dark(t, m)
	says("/", "bergen is dark", "Hold… Maintenance…")
	says("/actions/sites/hold?"+item.Encode(), "bergen: 10 pods stay: 1 of Pod kiosk-brg-0000, 1 of Pod kiosk-brg-0001", "and 2 more.", "bergen: stay in any case, by their tolerations: 1 pod.")
	srv.do(t, "admin", "/actions/sites/hold", item)
	says("/", "bergen is dark", "Release… Maintenance…")
	says("/actions/sites/evict?"+item.Encode(), "bergen: 10 pods move to other sites: ")
}

// A card links the page of its workload, of every kind.
func TestACardLeadsToItsWorkload(t *testing.T) {
	m := admintest.Work(t)
	bare := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash1"}).DeepCopyObject().(*appsv1.ReplicaSet)
	m.End(t, bare)
	m.End(t, m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"}))
	bare.Name, bare.UID, bare.OwnerReferences = "nobodys", "", nil
	m.Put(t, bare)
	srv := acting(t, m)
	for _, kind := range []state.Kind{state.Deployments, state.DaemonSets, state.StatefulSets, state.ReplicaSets, state.CronJobs} {
		for o := range m.Snapshot().All(kind, "default") {
			i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "stuck-" + o.GetName()}, State: fleet.IncidentOpen, Severity: fleet.SeverityWarning, Message: "Stuck: " + o.GetName(),
				About: fleet.IncidentObject{Kind: kind.Row().Name, Namespace: "default", Name: o.GetName()}}
			m.Put(t, i)
			_, body := srv.ask(t, "viewer", "GET", "/", nil)
			before, _, ok := strings.Cut(body, ">"+i.About.Kind+" "+i.About.Name+"</a>")
			if !ok || !strings.Contains(body, `<a href="/incidents/`+i.Name+`">`+i.Message+"</a>") {
				t.Fatalf("there is no card of %s: %s", o.GetName(), mainOf(body))
			}
			href := html.UnescapeString(strings.TrimSuffix(before[strings.LastIndex(before, `href="`)+len(`href="`):], `"`))
			resp, there := srv.ask(t, "viewer", "GET", href, nil)
			if resp.StatusCode != http.StatusOK || strings.Contains(there, "is like that") || !strings.Contains(there, o.GetName()) {
				t.Errorf("the card of %s %s leads to %s: %d %.900s", kind, o.GetName(), href, resp.StatusCode, mainOf(there))
			}
			m.End(t, i)
		}
	}
}
