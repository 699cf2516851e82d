package admin

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

func TestCompletion(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	m.Put(t, admintest.Pod("spaced", "pi-1", func(p *corev1.Pod) {
		p.Labels["room"], p.OwnerReferences = "Kitchen", []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "kiosk-7d9f", UID: "x", Controller: new(true)}}
	}))
	srv := start(t, configOf(m))
	for _, c := range []struct{ list, text, head, want string }{
		{"nodes", "", "", "site: status: condition: label: ip: board: agent: image: node:"},
		{"sites", "os", "", "site:oslo"},
		{"nodes", "pi s", "pi ", "site: status:"},
		{"nodes", "-sit", "", "-site:"},
		{"nodes", "osl", "", "site:oslo"},
		{"nodes", "-osl", "", "-site:oslo"},
		{"nodes", "pi site:", "pi ", "site:bergen site:oslo"},
		{"nodes", "site:L", "", "site:oslo"},
		{"nodes", "status:n", "", "status:notready status:never status:attention status:unknown status:cordoned"},
		{"nodes", "label:zone=", "", "label:zone=bergen label:zone=oslo"},
		{"pods", "label:ro", "", "label:room"},
		{"pods", "label=room=", "", "label:room=Kitchen"},
		{"pods", "status:crash", "", "status:CrashLoopBackOff"},
		{"pods", "owner:", "", "owner:replicaset/kiosk-7d9f"},
		{"workloads", "image:report", "", "image:registry.example/report:4"},
		{"nodes", "condition:ready=u", "", "condition:ready=Unknown condition:ready=True"},
		{"nodes", "owner:x", "", ""},
		{"nodes", "ip:10", "", ""},
	} {
		resp, body := srv.ask(t, "viewer", "GET", "/find/complete?"+url.Values{"list": {c.list}, "text": {c.text}}.Encode(), nil)
		var got offers
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatalf("%s, %q: %d %v", c.list, c.text, resp.StatusCode, err)
		}
		var texts []string
		for _, o := range got.Offers {
			texts = append(texts, o.Text)
		}
		if got.Head != c.head || strings.Join(texts, " ") != c.want {
			t.Errorf("%s, %q: %q and %q; want %q and %q", c.list, c.text, got.Head, texts, c.head, c.want)
		}
	}
	if resp, _ := srv.ask(t, "viewer", "GET", "/find/complete?list=secrets&text=", nil); resp.StatusCode != 404 {
		t.Errorf("an unknown list: %d", resp.StatusCode)
	}
	if resp, _ := srv.ask(t, "device", "GET", "/find/complete?list=nodes&text=site:", nil); resp.StatusCode != 404 {
		t.Errorf("a device, which may list no nodes: %d", resp.StatusCode)
	}
}

// finds returns what a role finds, as "kind name".
func (s *server) finds(t testing.TB, role, question string) (all []find, text []string) {
	t.Helper()
	_, body := s.ask(t, role, "GET", "/find?"+url.Values{"q": {question}}.Encode(), nil, "Accept", "application/json")
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("%q: %v in %.200s", question, err, body)
	}
	for _, f := range all {
		text = append(text, f.Kind+" "+f.Name)
	}
	return all, text
}

func TestThePaletteFindsObjectsAndActions(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	m.Put(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kiosk-settings", Namespace: "default"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kiosk-secret", Namespace: "default"}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-ledger-0", Namespace: "default"}})
	srv := start(t, configOf(m))
	for _, c := range []struct{ question, first, href string }{
		{"pi-2", "Node pi-2", "/nodes/pi-2"},
		{"PI-2 ", "Node pi-2", "/nodes/pi-2"},
		{"oslo", "Site oslo", frame.SiteHref("oslo")},
		{"kiosk", "Deployment kiosk", "/workloads/deployments/default/kiosk"},
		{"pod crash", "Pod kiosk-7d9f-crash", "/pods/default/kiosk-7d9f-crash"},
		{"kiosk-set", "ConfigMap kiosk-settings", "/yaml/api/v1/namespaces/default/configmaps/kiosk-settings"},
		{"data-l", "PersistentVolumeClaim data-ledger-0", "/yaml/api/v1/namespaces/default/persistentvolumeclaims/data-ledger-0"},
		{"nightly-report", "CronJob nightly-report", "/workloads?namespace=default&q=nightly-report"},
		{"audit log", "Page Audit log", "/audit"},
		{"moved", "Page Evictions", "/events?q=evict"},
		{"add a device", "Page Add a device", "/devices/add"},
		{"drain pi-2", "Action Drain pi-2", "/actions/nodes/drain?item=" + url.QueryEscape(m.Form(state.Nodes, "", "pi-2"))},
		{"dr pi-2", "Action Drain pi-2", ""},
		{"drain node pi-2", "Action Drain pi-2", ""},
		{"drain", "Action Drain", "/nodes"},
		{"cordon pi-1", "Action Cordon pi-1", ""},
		{"hold site oslo", "Action Hold oslo", ""},
		{"restart kiosk", "Action Restart kiosk", ""},
		{"FailedMount", "Manual FailedMount", "/help/events#FailedMount"},
		{"unknown nodes", "List Nodes: unknown (1)", "/nodes?status=unknown"},
		{"nodes that are not ready", "List Nodes: not ready (3)", "/nodes?status=notready"},
		{"hot nodes", "List Nodes: hot (0)", "/nodes?status=hot"},
		{"pending pods", "List Pods: pending (1)", "/pods?status=pending"},
	} {
		all, text := srv.finds(t, "admin", c.question)
		if len(all) == 0 || text[0] != c.first || c.href != "" && all[0].Href != c.href {
			t.Errorf("%q: %q %v; want first %s at %s", c.question, text, all[:min(1, len(all))], c.first, c.href)
			continue
		}
		if len(all) > mostFinds {
			t.Errorf("%q has %d finds", c.question, len(all))
		}
		if resp, _ := srv.ask(t, "admin", "GET", strings.Split(all[0].Href, "#")[0], nil); resp.StatusCode != 200 && !strings.HasPrefix(all[0].Href, "/yaml") {
			t.Errorf("%q leads to %s: %d", c.question, all[0].Href, resp.StatusCode)
		}
	}
	if _, text := srv.finds(t, "admin", "secret"); slices.ContainsFunc(text, func(s string) bool { return strings.Contains(s, "kiosk-secret") }) {
		t.Errorf("secrets are found: %q", text)
	}
	if _, text := srv.finds(t, "viewer", "drain pi-2"); slices.ContainsFunc(text, func(s string) bool { return strings.HasPrefix(s, "Action") }) {
		t.Errorf("a viewer is offered actions: %q", text)
	}
	if _, text := srv.finds(t, "viewer", "audit"); slices.Contains(text, "Page Audit log") {
		t.Errorf("a viewer finds the audit: %q", text)
	}
	if _, text := srv.finds(t, "device", "pi-2"); slices.Contains(text, "Node pi-2") {
		t.Errorf("a device finds %q", text)
	}
	if all, _ := srv.finds(t, "viewer", "10.1.2.3"); len(all) != mostOfOne || all[0].Kind != "Node" {
		t.Errorf("an address finds %v", all)
	}
	for _, q := range []string{"", " ", strings.Repeat("a ", 300), "\xff<b>", "drain <script>"} {
		srv.finds(t, "admin", q)
	}
	_, body := srv.ask(t, "viewer", "GET", "/find?q=%3Cb%3E", nil)
	if !strings.Contains(body, "Nothing matches “&lt;b&gt;”.") {
		t.Error("without scripts the page does not say that nothing matches")
	}
	if _, body := srv.ask(t, "viewer", "GET", "/find?q=pi-2", nil); !strings.Contains(body, `<a href="/nodes/pi-2"><small>Node</small> <b>pi-2</b>`) {
		t.Error("without scripts the palette does not find the node")
	}
}

// Many objects of one kind leave room for the others.
func TestThePaletteIsBounded(t *testing.T) {
	srv := start(t, configOf(manyPods()))
	all, text := srv.finds(t, "admin", "node-00")
	count := map[string]int{}
	for _, f := range all {
		count[f.Kind]++
	}
	if len(all) > mostFinds || count["Node"] != mostOfOne || count["Pod"] != mostOfOne || text[0] != "Node node-0000" {
		t.Errorf("%v: %q", count, text)
	}
	if _, text := srv.finds(t, "admin", "cordon 499"); text[0] != "Action Cordon node-0499" && text[0] != "Action Cordon node-4990" || len(text) != mostActedOn {
		t.Errorf("%q", text)
	}
}

// Text that looks like an address may not be one: an IPv6 zone may contain any character.
func TestThePaletteTakesAnyAddress(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for _, question := range []string{`fe80::1%"`, `fe80::1%"a"`, `fe80::1%a:b`, `fe80::1%*`, `::ffff:10.0.0.1`, `fe80::1%`} {
		srv.finds(t, "viewer", question)
	}
}

// BenchmarkPalette searches 5,000 nodes and 20,000 pods.
func BenchmarkPalette(b *testing.B) {
	m := manyPods()
	a := New(configOf(m)).RequestFor(frame.Question{Role: access.Admin})
	for _, q := range []string{"n", "node-4999", "drain 499", "nothing of that"} {
		b.Run(fmt.Sprint("find ", q), func(b *testing.B) {
			for b.Loop() {
				found(a, q, nil, nil, func(string) bool { return true })
			}
		})
	}
	for _, text := range []string{"", "site:", "image:", "owner:", "status:c"} {
		b.Run("complete "+text, func(b *testing.B) {
			for b.Loop() {
				completed(a, "pods", text)
			}
		})
	}
}

// A search matches word beginnings: till does not find flotilla. No find has its name twice.
func TestThePaletteMatchesBeginningsOfWords(t *testing.T) {
	srv := start(t, configOf(admintest.New(admintest.Sample()...)))
	for _, question := range []string{"till", "faults", "ode"} {
		all, text := srv.finds(t, "admin", question)
		for _, f := range all {
			if strings.Contains(strings.ToLower(f.Name), "flotilla") || question == "ode" && strings.Contains(strings.ToLower(f.Name), "node") {
				t.Errorf("%q: %q", question, text)
			}
			if f.Name == f.Where {
				t.Errorf("%q: %s is printed twice", question, f.Name)
			}
		}
	}
}
