package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// promtool runs Prometheus' tool, if it is installed.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool is not installed: .ci/services installs it")
		}
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestTheAlertsAreValidRules(t *testing.T) { promtool(t, "check", "rules", "alerts.yml") }

func TestAlertsPassPromtool(t *testing.T) {
	promtool(t, "test", "rules", "testdata/stories.yml")
}

func TestTheScrapeConfigurationIsValid(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{ScrapeFile: Scrape, AlertsFile: string(Alerts), CAFile: "",
		CertFile: "", KeyFile: ""} {
		if !strings.Contains(Scrape, name) && name != ScrapeFile {
			t.Errorf("%s does not name %s", ScrapeFile, name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(Scrape, `"`+Target+`"`) != 2 {
		t.Errorf("%s must contain %q twice", ScrapeFile, Target)
	}
	promtool(t, "check", "config", "--syntax-only", filepath.Join(dir, ScrapeFile))
}

// A story of package serve makes each alert fire, which proves that its expression can be true.
func TestEveryAlertFiresInAStory(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `json:"alert"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(Alerts, &rules); err != nil {
		t.Fatal(err)
	}
	stories, err := os.ReadFile("testdata/stories.yml")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			seen++
			if !strings.Contains(string(stories), `alertname="`+r.Alert+`"`) {
				t.Errorf("alert %s does not fire in any story", r.Alert)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) ||
				r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description: %v", r.Alert, r)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d alerts were found", seen)
	}
}

// Every panel has a description and a unit.
func TestTheDashboardIsComplete(t *testing.T) {
	var d struct {
		Title  string `json:"title"`
		UID    string `json:"uid"`
		Panels []struct {
			Title       string `json:"title"`
			Type        string `json:"type"`
			Description string `json:"description"`
			GridPos     struct{ H, W, X, Y int }
			FieldConfig struct {
				Defaults struct {
					Unit string `json:"unit"`
				} `json:"defaults"`
			} `json:"fieldConfig"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(Dashboard, &d); err != nil {
		t.Fatal(err)
	}
	var taken [200][24]string
	for _, p := range d.Panels {
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				if x > 23 || taken[y][x] != "" {
					t.Fatalf("panel %s overlaps %s or the dashboard's edge", p.Title, taken[y][min(x, 23)])
				}
				taken[y][x] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s lacks a description, a unit or a query", p.Title)
		}
	}
	if d.UID == "" || len(d.Panels) < 10 {
		t.Errorf("the dashboard has %d panels and uid %q", len(d.Panels), d.UID)
	}
	var rules strings.Builder // promtool also parses the queries
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	fill := strings.NewReplacer("$__rate_interval", "5m", "$site", "oslo", "$instance", "hub")
	for i, p := range d.Panels {
		for j, q := range p.Targets {
			fmt.Fprintf(&rules, "  - {record: 'panel:query:%d_%d', expr: %q}\n", i, j, fill.Replace(q.Expr))
		}
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", "--lint=none", file)
}
