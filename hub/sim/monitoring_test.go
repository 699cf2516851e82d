package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/monitoring"
	"flotilla.dev/hub/panics"
	"flotilla.dev/web/manual"
)

// Every metric in an alert or panel exists in a hub that has had every kind of event, with every
// label that selects it.
func TestFleetAlertsAndPanelsUseExistingMetrics(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	defer inPrometheusManners(t, texts)
	simulate(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		time.Sleep(40 * 365 * 24 * time.Hour) // devices do not accept a time before their program was built
		w.tls = true
		w.cfg.Inventory = filepath.Join(w.dir, "machines.yaml")
		if err := os.WriteFile(w.cfg.Inventory,
			[]byte("- {name: pi-1, site: oslo, state: present}\n- {name: pi-2, site: oslo, state: present}\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		w.startHub()
		token, err := w.hub.Guard.CreateJoinToken(ctx, access.NewJoinToken{Site: "oslo", Uses: 2, Life: time.Hour,
			By: "anna"})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"pi-1", "pi-2"} {
			d := w.newDevice(name, "oslo")
			d.board.sensors = true
			if err := d.join(token.Text()); err != nil {
				t.Fatal(err)
			}
			d.start()
		}
		w.settleWithin(15*time.Second, "joining")
		w.deploy("kiosk", 2)
		w.settleWithin(10*time.Second, "the deployment")
		slow := func([]control.Row) error { time.Sleep(2 * time.Second); return nil }
		w.sick.Store(&slow)
		w.deploy("kiosk", 3)
		w.sick.Store(nil)
		if _, err := w.hub.Store.BackUpNow(ctx); err != nil {
			t.Fatal(err)
		}
		func() { defer panics.Catch("test"); panic("on purpose") }()
		w.lines.excuse("on purpose")
		time.Sleep(10 * time.Minute) // the CPU appears in the second vitals
		w.cut(w.devices[1])
		time.Sleep(2 * time.Minute)

		said, labels := map[string]bool{}, map[string][]string{}
		line := regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? `)
		label := regexp.MustCompile(`([a-z_]+)="`)
		for _, path := range []string{"/metrics", "/metrics/nodes"} {
			text := w.asViewer(path)
			texts[path] = text
			for _, m := range line.FindAllStringSubmatch(text, -1) {
				said[m[1]] = true
				for _, l := range label.FindAllStringSubmatch(m[2], -1) {
					labels[m[1]] = append(labels[m[1]], l[1])
				}
			}
		}
		named := regexp.MustCompile(`\b((?:flotilla|process|go)_[a-z_]+)(?:\{([^}]*)\})?`)
		chosen := regexp.MustCompile(`([a-z_]+)(?:=|!=|=~|!~)"`)
		// These metrics exist only in hubs with another set-up.
		elsewhere := []string{"flotilla_broker_connected", "flotilla_standby_lag_seconds"}
		count := 0
		for _, q := range queries(t) {
			for _, m := range named.FindAllStringSubmatch(q, -1) {
				if count++; slices.Contains(elsewhere, m[1]) {
					continue
				} else if !said[m[1]] {
					t.Errorf("no hub has the metric %s: %s", m[1], q)
					continue
				}
				for _, l := range chosen.FindAllStringSubmatch(m[2], -1) {
					if l[1] != "job" && l[1] != "instance" && !slices.Contains(labels[m[1]], l[1]) {
						t.Errorf("%s has no label %s, but %v: %s", m[1], l[1], labels[m[1]], q)
					}
				}
			}
		}
		if count < 50 {
			t.Errorf("only %d metrics are found: the test is broken", count)
		}
		told := manualPage(t, "monitoring")
		for _, name := range told {
			if strings.HasPrefix(name, "flotilla_") && !said[name] && !slices.Contains(elsewhere, name) {
				t.Errorf("the manual describes %s, which this hub does not have", name)
			}
		}
		for name := range said {
			if strings.HasPrefix(name, "flotilla_") && !slices.Contains(told, name) {
				t.Errorf("the manual does not describe %s", name)
			}
		}
		for _, name := range elsewhere {
			if said[name] || !slices.Contains(told, name) {
				t.Errorf("%s exists here, or is not described: remove it from elsewhere, or describe it", name)
			}
		}
	})
}

// Every cause in an alert exists.
func TestAlertsUseExistingCauses(t *testing.T) {
	causes := manualPage(t, "incidents")
	count := 0
	for _, q := range queries(t) {
		for _, in := range regexp.MustCompile(`cause(?:=|!=|=~|!~)"([^"]*)"`).FindAllStringSubmatch(q, -1) {
			for _, c := range strings.Split(in[1], "|") {
				if count++; !slices.Contains(causes, c) {
					t.Errorf("unknown cause %s: %s", c, q)
				}
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d causes are found: the test is broken", count)
	}
}

func manualPage(t *testing.T, name string) []string {
	t.Helper()
	m, err := manual.Load(manual.Files)
	if err != nil {
		t.Fatal(err)
	}
	return m.Page(name).Entries()
}

// inPrometheusManners checks names, units and help texts with promtool.
func inPrometheusManners(t *testing.T, texts map[string]string) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Error("promtool is not installed: .ci/services installs it")
		}
		return
	}
	for path, text := range texts {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: promtool: %v\n%s", path, err, out)
		}
	}
}

// queries returns the queries of the alerts and of the dashboard with its variables.
func queries(t *testing.T) (all []string) {
	var rules struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Query any }
		}
	}
	if err := yaml.Unmarshal(monitoring.Alerts, &rules); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(monitoring.Dashboard, &board); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all = append(all, r.Expr)
		}
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			all = append(all, q.Expr)
		}
	}
	for _, v := range board.Templating.List {
		all = append(all, fmt.Sprint(v.Query))
	}
	return all
}

// asViewer sends a request to the hub as a viewer.
func (w *world) asViewer(path string) string {
	w.t.Helper()
	ctx, name := context.Background(), "viewer"
	if _, err := w.hub.Store.User(ctx, name); err != nil {
		if err := w.hub.Guard.CreateUser(ctx, access.NewUser{Name: name, Password: "correct horse battery",
			Role: access.Viewer}); err != nil {
			w.t.Fatal(err)
		}
	}
	token, err := w.hub.Guard.CreateAPIToken(ctx, access.NewAPIToken{User: name, Life: time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "127.0.0.1:8443"
	r.Header.Set("Authorization", "Bearer "+token)
	rec := httptest.NewRecorder()
	w.hub.Handler().ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		w.t.Fatalf("GET %s: %d %s", path, rec.Code, rec.Body)
	}
	return rec.Body.String()
}
