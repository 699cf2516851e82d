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

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A night is a fleet in which a site of ten nodes goes dark, while something crashes.
func night() []state.Object {
	since := metav1.NewTime(now0.Add(-time.Hour))
	next := metav1.NewMicroTime(now0.Add(12 * time.Second))
	objects := []state.Object{
		&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Status: fleet.SiteStatus{State: fleet.SiteNormal, Since: &since, EvictionRate: "0.1"}},
		&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "bergen"}, Status: fleet.SiteStatus{State: fleet.SiteFullDisruption, Since: &since, EvictionRate: "0.1", Waiting: 10, NextEviction: &next}},
		testNode("oslo-1", "oslo", nil), testNode("oslo-2", "oslo", condition(fleet.ConditionPowerOK, "False", "UnderVoltage", "the supply voltage is too low now: use a stronger power supply or a shorter cable")),
		testPod("till-5c6b-x2x4z", "oslo-1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", RestartCount: 7, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}
		}),
		testPod("menu-77d8-plm2k", "oslo-1", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "registry.example/menu:2.0.0"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "registry.example said: manifest unknown"}}}}
		}),
		&fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "oslo-dark-0a0b0c", UID: "1"}, State: fleet.IncidentClosed, Cause: "NodeDark", Severity: fleet.SeverityCritical, Message: "oslo-2 does not answer", About: fleet.IncidentObject{Kind: "Site", Name: "oslo"},
			Since: ago0(5 * time.Hour), Opened: ago0(5 * time.Hour), Closed: new(ago0(4 * time.Hour)), Most: fleet.IncidentCount{Nodes: 1, Pods: 6, Workloads: 2}, Evicted: 5, ShortSeconds: 340},
	}
	for i := range 10 {
		name := fmt.Sprintf("brg-%04d", i)
		objects = append(objects, testNode(name, "bergen", nil), &state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Boot: "b"}, testPod("kiosk-"+name, name, tolerates))
	}
	return objects
}

// tolerates that its node is silent, for five minutes.
func tolerates(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))}}
}

// dark silences bergen.
func dark(t testing.TB, m *memory) {
	t.Helper()
	var silent []state.Object
	for n := range m.Snapshot().NodesIn("bergen") {
		n = n.DeepCopy()
		condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
		silent = append(silent, n)
	}
	m.put(t, silent...)
}

// TestANightOnTheOverview lets a site go dark while the overview is open: its card comes first,
// and then nothing moves any more, at every width.
func TestANightOnTheOverview(t *testing.T) {
	t.Parallel()
	var b *kit
	for _, width := range []int64{360, 768, 1280} {
		b = newKitOf(t, night()...)
		b.width(width, false)
		b.open("/")
		b.says("till-5c6b-x2x4z crashes again and again")
		dark(t, b.fleet)
		b.awaits("bergen is dark")
		b.string(frames)
		b.eval(shifts)
		another := b.fleet.Snapshot().Pod("default", "menu-77d8-plm2k").DeepCopy()
		another.Name, another.UID = "menu-77d8-zzzzz", "another"
		b.fleet.put(t, another)
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
				t.Errorf("at %d px not so: %s", width, want)
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
		t.Error("what moves by 300 pixels does not move: the test cannot fail")
	}
}

// Each dark site says when its first pods move, or that none has to, or why they stay.
func TestADarkSitesCardSaysWhatBecomesOfItsPods(t *testing.T) {
	next := metav1.NewMicroTime(now0.Add(12 * time.Second))
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
		"Pods start to move in":                           {site, func(i *fleet.Incident) { i.NextMove = new(ago0(-5 * time.Minute)) }},
		"Pods stay: the site is on hold.":                 {held, func(i *fleet.Incident) { i.Held = "fully disrupted, and its disruptionPolicy is Hold" }},
		"Pods stay: somebody holds them.":                 {site, func(i *fleet.Incident) { i.Held = "somebody holds them" }},
		"Pods stay: the eviction rate of the site is 0.":  {still, func(*fleet.Incident) {}},
	} {
		i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "x"}, State: fleet.IncidentOpen, Cause: "SiteDark", Severity: fleet.SeverityCritical, Site: "oslo", About: fleet.IncidentObject{Kind: "Site", Name: "oslo"}, Since: ago0(time.Hour), Opened: ago0(time.Hour), Message: "oslo is dark"}
		c.give(i)
		m := newMemory(c.site, testNode("oslo-1", "oslo", nil))
		m.put(t, i)
		_, body := start(t, configOf(m)).ask(t, "admin", "GET", "/", nil)
		if words := wordsOf(body); !strings.Contains(words, want) {
			t.Errorf("it does not say %q: %s", want, words)
		}
	}
}

// Hold shows first what it keeps; then its card offers Release, which shows what moves then.
func TestHoldShowsWhatItKeepsAndIsTakenBackOnItsCard(t *testing.T) {
	m := newMemory(night()...)
	m.put(t, testPod("watch-1", "brg-0000", func(p *corev1.Pod) {
		tolerates(p)
		p.Spec.Tolerations[0].TolerationSeconds = nil
	}))
	srv := acting(t, m)
	item := url.Values{"item": {m.form(state.Sites, "", "bergen")}}
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
	says("/actions/sites/hold?"+item.Encode(), "bergen: 10 pods stay: 1 of Pod kiosk-brg-0000, 1 of Pod kiosk-brg-0001", "and 2 more.", "bergen: staying in any case, by their tolerations: 1 pod.")
	srv.do(t, "admin", "/actions/sites/hold", item)
	says("/", "bergen is dark", "Release… Maintenance…")
	says("/actions/sites/evict?"+item.Encode(), "bergen: 10 pods move to other sites: ")
}

// A card leads to what it is about, whichever kind of workload that is.
func TestACardLeadsToItsWorkload(t *testing.T) {
	m := worksample(t)
	bare := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash1"}).DeepCopyObject().(*appsv1.ReplicaSet)
	m.end(t, bare)
	m.end(t, m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"}))
	bare.Name, bare.UID, bare.OwnerReferences = "nobodys", "", nil
	m.put(t, bare)
	srv := acting(t, m)
	for _, kind := range []state.Kind{state.Deployments, state.DaemonSets, state.StatefulSets, state.ReplicaSets, state.CronJobs} {
		for o := range m.Snapshot().All(kind, "default") {
			i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "stuck-" + o.GetName()}, State: fleet.IncidentOpen, Severity: fleet.SeverityWarning, Message: "Stuck: " + o.GetName(),
				About: fleet.IncidentObject{Kind: kind.Row().Name, Namespace: "default", Name: o.GetName()}}
			m.put(t, i)
			_, body := srv.ask(t, "viewer", "GET", "/", nil)
			before, _, ok := strings.Cut(body, ">"+i.Message+"</a>")
			if !ok {
				t.Fatalf("there is no card of %s: %s", o.GetName(), mainOf(body))
			}
			href := html.UnescapeString(strings.TrimSuffix(before[strings.LastIndex(before, `href="`)+len(`href="`):], `"`))
			resp, there := srv.ask(t, "viewer", "GET", href, nil)
			if resp.StatusCode != http.StatusOK || strings.Contains(there, "is like that") || !strings.Contains(there, o.GetName()) {
				t.Errorf("the card of %s %s leads to %s: %d %.900s", kind, o.GetName(), href, resp.StatusCode, mainOf(there))
			}
		}
	}
}
