package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The manual's kubectl commands run as written against a hub with simulated devices. Only names of
// nodes, sites and pods are replaced.
func TestTheManualsKubectlCommandsRun(t *testing.T) {
	t.Parallel()
	program := kubectl(t)
	h := newHub(t)
	h.simulate(8, 3)
	h.kubectl("create", "deployment", "shop", "--image", "example.org/shop:1")
	h.kubectl("create", "cronjob", "nightly", "--image", "example.org/job:1", "--schedule", "0 3 1 1 *")
	pod := ""
	await(t, "shop has a pod", patience, func() error {
		pods, err := h.pods("shop", "")
		if err == nil && len(pods) == 0 {
			err = errors.New("shop has no pods")
		}
		if err == nil {
			pod = pods[0].Name
		}
		return err
	})
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // directory of the files that commands name
	if err := os.Symlink(filepath.Join(root, "hub"), filepath.Join(dir, "hub")); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range []struct {
		name  string
		file  string // file that the page tells users to write
		names []string
	}{
		{"start", "", nil},
		{"workloads", "", []string{"NAME", pod}},
		{"events", "", []string{"NAME", pod}},
		{"conditions", "", []string{"NAME", "sim-0001"}},
		{"troubleshooting", "", []string{"NAME", "sim-0001"}},
		{"sites", "", []string{"oslo", "site-01"}},
		{"nodes", "", []string{"pi-1", "sim-0002"}},
		{"hardware", "", []string{"pi-1", "sim-0002"}},
		{"board-profiles", "", nil},
		{"firmware", "memory-limits.yaml", nil},
		{"volumes", "claim.yaml", nil},
		{"incidents", "", nil},
		{"kinds", "", nil},
		{"pod-fields", "", nil},
		{"policy", "", nil},
		{"devices", "", []string{"pi-7", "sim-0008"}},
	} {
		text, err := os.ReadFile(filepath.Join(root, "web/manual", page.name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		if page.file != "" {
			_, object, _ := strings.Cut(string(text), "```yaml\n")
			object, _, _ = strings.Cut(object, "```")
			if err := os.WriteFile(filepath.Join(dir, page.file), []byte(object), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range regexp.MustCompile(`(?m)^kubectl .*$`).FindAllString(string(text), -1) {
			if needsMore.MatchString(line) {
				continue
			}
			ran++
			typed := strings.NewReplacer(append(page.names, " --kubeconfig data/kubeconfig", "", " -w", "")...).Replace(line)
			shell := exec.Command("/bin/sh", "-c", "kubectl() { "+program+` "$@"; }; `+typed)
			shell.Dir, shell.Env = dir, append(os.Environ(), "KUBECONFIG="+h.config)
			if out, err := shell.CombinedOutput(); err != nil {
				t.Errorf("%s.md: %s: %v: %s", page.name, line, err, out)
			}
		}
	}
	if ran < 30 {
		t.Errorf("only %d commands of the manual ran", ran)
	}
}

// needsMore matches commands that wait for input, or that need something this fleet does not have.
var needsMore = regexp.MustCompile(
	` (edit|debug|certificate|logs|wait firmwarerollout) | (incident|pv) NAME| -f pod.yaml`)
