package admin

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/web/manual"
)

// The manual's table has every search key.
func TestTheManualHasEachSearchKey(t *testing.T) {
	page, err := manual.Files.ReadFile("finding.md")
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `") && strings.Contains(line, ":` |") {
			told++
		}
	}
	for _, k := range search.Keys {
		var examples []string
		for e := range strings.SplitSeq(k.Example, ", ") {
			examples = append(examples, "`"+e+"`")
			if q := search.Parse(k.Lists[0], e, nil); q.Wrong != "" || q.Terms[0].Key != k.Name {
				t.Errorf("the example %s: %s", e, q.Wrong)
			}
		}
		row := "| " + strings.Join([]string{"`" + k.Name + ":`", k.Value, strings.Join(k.Lists, ", "), strings.Join(examples, ", ")}, " | ") + " |\n"
		if !strings.Contains(string(page), row) {
			t.Errorf("finding.md lacks the row\n%s", row)
		}
	}
	if told != len(search.Keys) {
		t.Errorf("finding.md has %d keys, want %d", told, len(search.Keys))
	}
}

func TestWhatASearchFinds(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	m.Put(t, admintest.Pod("elsewhere", "bone-4", func(p *corev1.Pod) {
		p.Namespace, p.Labels, p.Status.PodIP = "kube-system", map[string]string{"room": "Kitchen"}, "10.64.9.1"
		p.Spec.Containers[0].Image = "registry.example/odd:2"
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "node-exporter", UID: "x", Controller: new(true)}}
	}))
	names := func(list, q string) string {
		a := admintest.Ask(m.Snapshot(), admintest.Now, map[string]string{"q": q})
		var found []string
		kinds := []state.Kind{state.Kind(list)}
		if list == search.Workloads {
			kinds = nil
			for _, l := range frame.ListedWorkloads {
				kinds = append(kinds, l.Kind)
			}
		}
		for _, kind := range kinds {
			for _, o := range listings()[kind].Found(a) {
				found = append(found, o.GetName())
			}
		}
		if list == search.Workloads {
			slices.Sort(found)
		}
		return strings.Join(found, " ")
	}
	every := names(search.Nodes, "")
	for _, c := range []struct{ list, q, want string }{
		{search.Nodes, "pi- -pi-1", "pi-2 pi-3"},
		{search.Nodes, "node:PI-1", "pi-1"}, {search.Nodes, "node:pi-* -site:bergen status:unknown", "pi-2"},
		{search.Nodes, "status:cordoned", "gateway"}, {search.Nodes, "condition:ready=unknown pi", "pi-2"}, {search.Nodes, "site:oslo -status:ready", "pi-2"},
		{search.Nodes, "label:board=raspberrypi4 -label:zone=oslo", names(search.Nodes, "-site:oslo board:raspberrypi4")},
		{search.Nodes, "ip:10.1.2.0/24", every}, {search.Nodes, "-ip:10.1.2.3", ""},
		{search.Nodes, "image:odd", "bone-4"}, {search.Nodes, "-image:odd -node:bone-*", names(search.Nodes, "-bone")},
		{search.Nodes, "agent:1.0.0", every}, {search.Nodes, "-agent:v1.0*", ""},
		{search.Nodes, "site:nowhere", every}, // an invalid part is left out
		{search.Nodes, "nope:1 pi-1", "pi-1"},
		{search.Pods, "namespace:kube-system", "elsewhere"}, {search.Pods, "label:room=kitchen", "elsewhere"}, {search.Pods, "ip:10.64.9.", "elsewhere"}, {search.Pods, "image:odd:2", "elsewhere"},
		{search.Pods, "node:bone-4", "elsewhere"}, {search.Pods, "owner:node-exporter", "elsewhere"}, {search.Pods, "owner:daemonset/node-exporter", "elsewhere"}, {search.Pods, "-owner:x -site:oslo -status:pending", "elsewhere"},
		{search.Pods, "board:bone", "elsewhere"}, {search.Pods, "status:CrashLoopBackOff", "kiosk-7d9f-crash"}, {search.Pods, "status:pending", "kiosk-7d9f-klmno"},
		{search.Pods, "condition:PodScheduled=False", "kiosk-7d9f-klmno"}, {search.Pods, "pi-2 -kiosk", ""},
		{search.Workloads, "image:report -ledger -press", "nightly-report nightly-report-29923064"}, {search.Workloads, "namespace:kube-system", "node-exporter"}, {search.Workloads, "status:attention -image:quux", names(search.Workloads, "status:attention")},
	} {
		if got := names(c.list, c.q); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.list, c.q, got, c.want)
		}
	}
}

func TestASearchOfSitesAndEvents(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for path, want := range map[string][2]string{ // with it, and without it
		"/sites?q=status:normal":                     {"", `data-key="oslo"`},
		"/sites?q=-oslo":                             {`data-key="bergen"`, `data-key="oslo"`},
		"/sites?q=node:oslo":                         {"The list of sites has no key “node:”; use site:, status:, label:.", ""},
		"/events?q=node:pi-2+status:warning":         {"Node pi-2 does not answer", "SiteDisrupted"},
		"/events?q=site:bergen+-node:*":              {"SiteDisrupted", "Node pi-2 does not answer"},
		"/events?q=time:1":                           {"“1” is not two times", ""},
		"/events?q=namespace:nix":                    {"Unknown namespace “nix”", ""},
		"/nodes?q=%3Cb%3E:1":                         {"Unknown key “&lt;b&gt;:”", "Act on "},
		"/nodes?q=status:redy":                       {"Unknown status “redy”; use attention, ready, notready, unknown, never, cordoned, hot.", ""},
		"/nodes?q=" + strings.Repeat("x", 600):       {"more than 500", ""},
		"/workloads?q=namespace:default+-image:quux": {"kiosk", "node-exporter"},
	} {
		_, body := srv.ask(t, "viewer", "GET", path, nil)
		if !strings.Contains(body, want[0]) || want[1] != "" && strings.Contains(body, want[1]) {
			t.Errorf("%.60s: want %q and not %q", path, want[0], want[1])
		}
	}
}

// A list with an invalid search shows too much, so it offers no actions.
func TestAnInvalidSearchOffersNoActions(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for _, kind := range []string{"nodes/cordon", "pods/delete", "deployments/restart"} {
		resp, body := srv.ask(t, "admin", "GET", "/actions/"+kind+"?"+url.Values{"q": {"name:pi"}}.Encode(), nil)
		if resp.StatusCode != 404 || !strings.Contains(body, "Unknown key “name:”") || strings.Contains(body, `name="item"`) {
			t.Errorf("%s: %d", kind, resp.StatusCode)
		}
	}
	resp, body := srv.ask(t, "admin", "POST", "/actions/many?q=name:pi", url.Values{"csrf": {csrf}, "all": {"nodes"}, "do": {"cordon"}})
	if resp.StatusCode != 400 || !strings.Contains(body, "Unknown key “name:”") {
		t.Errorf("all that match: %d", resp.StatusCode)
	}
	if _, body := srv.ask(t, "admin", "GET", "/nodes?q=name:pi", nil); strings.Contains(body, "/actions/nodes/") {
		t.Error("an invalid search offers actions")
	}
	if _, body := srv.ask(t, "admin", "GET", "/actions/nodes/cordon?q=node:pi-1", nil); strings.Count(body, `name="item"`) != 1 {
		t.Error("an action on all does not follow the search")
	}
}

// manyPods has 5,000 nodes and 20,000 pods.
func manyPods() *admintest.Memory {
	m := admintest.Many(5000)
	var changes []state.Change
	for i := range 15000 {
		changes = append(changes, state.Put(admintest.Pod(fmt.Sprintf("more-%05d", i), fmt.Sprintf("node-%04d", i%5000), nil), ""))
	}
	m.Apply(changes)
	return m
}

// BenchmarkSearch searches 5,000 nodes and 20,000 pods.
func BenchmarkSearch(b *testing.B) {
	m := manyPods()
	for _, q := range []string{"", "499", "site:site-7 -status:attention", "ip:10.64.0.0/16 label:app=kiosk", "status:CrashLoopBackOff", "image:odd", "owner:x", "condition:ready=unknown"} {
		a := admintest.Ask(m.Snapshot(), admintest.Now, map[string]string{"q": q})
		b.Run("pods/"+q, func(b *testing.B) {
			for b.Loop() {
				listings()[state.Pods].Found(a)
			}
		})
		if a.WrongSearch(state.Nodes) == "" {
			b.Run("nodes/"+q, func(b *testing.B) {
				for b.Loop() {
					listings()[state.Nodes].Found(a)
				}
			})
		}
	}
}

// The menu of saved views stands beside the title and covers no button there.
func TestTheMenuOfViewsCoversNoButton(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, admintest.Sample()...)
	for _, pixels := range []int64{360, 768, 1280} {
		k.width(pixels, false)
		for _, path := range []string{"/nodes", "/workloads"} {
			k.open(path)
			k.await(`document.querySelectorAll(".views summary, main > .head a").length > 1`)
			if !k.eval(`(() => {
				const menu = document.querySelector(".views summary").getBoundingClientRect()
				return [...document.querySelectorAll("main > .head a")].map((b) => b.getBoundingClientRect()).every((b) =>
					b.right <= menu.left || b.left >= menu.right || b.bottom <= menu.top || b.top >= menu.bottom)
			})()`) {
				t.Errorf("%s at %d pixels: the menu covers a button", path, pixels)
			}
			k.fits(path)
		}
	}
}
