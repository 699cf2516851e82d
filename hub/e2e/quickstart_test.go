package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// After the build `make run` starts everything, Ctrl-C stops it, and the next start continues.
func TestMakeRun(t *testing.T) {
	t.Parallel()
	bin := filepath.Dir(program(t, "hub", here))
	program(t, "device", here)
	program(t, "simulate", here)
	data, https, dev := filepath.Join(t.TempDir(), "data"), freePort(t), freePort(t)
	args := []string{"CGO_ENABLED=0", "go", "run", "-trimpath", "flotilla.dev/hub/cli/quickstart", "--bin", bin, "--data",
		data, "--https-listen", https, "--mqtt-listen", freePort(t), "--mqtt-dev-listen", dev}
	if out, err := exec.Command("env", args[0], "go", "build", "-trimpath", "-o", os.DevNull,
		args[4]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { forgetVolatile(t, filepath.Join(data, "device")) })
	h := &hub{t: t, dir: filepath.Join(data, "hub"), https: https}
	var machine string
	for _, which := range []string{"first", "second"} {
		began := time.Now()
		p := start(t, "env", args...)
		await(t, "the "+which+" start", patience, func() error {
			if p.ended() {
				t.Fatalf("make run has ended: %s", p.output)
			}
			text, err := os.ReadFile(filepath.Join(data, "kubeconfig"))
			if err != nil {
				return err
			}
			if err := h.login(text); err != nil {
				return err
			}
			return h.quickstarted(p)
		})
		t.Logf("the %s start took %s", which, time.Since(began).Round(10*time.Millisecond))
		if name := h.ownNode(); machine == "" {
			machine = name
		} else if machine != name {
			t.Errorf("this machine was node %s before, and is now node %s", machine, name)
		}
		await(t, "the sample workload is available", patience, func() error { return h.available("kiosk", 3) })
		if out := h.kubectl("get", "nodes"); strings.Count(out, "sim-") != 8 {
			t.Errorf("kubectl get nodes must print 8 simulated nodes:\n%s", out)
		}
		if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil { // the terminal sends Ctrl-C to the whole group
			t.Fatal(err)
		}
		await(t, "make run ends after Ctrl-C", patience, func() error {
			if !p.ended() {
				return errors.New("it runs")
			}
			return nil
		})
		if left := processesWith(t, data, dev); len(left) > 0 {
			t.Errorf("after Ctrl-C these programs still run:\n%s", strings.Join(left, "\n"))
		}
		if strings.Contains(p.output.String(), "level=ERROR") {
			t.Errorf("it printed\n%s", p.output)
		}
	}
}

// quickstarted returns nil when all nine nodes are ready. Without an engine this machine's node is
// not ready, and its condition says how to install an engine.
func (h *hub) quickstarted(p *process) error {
	var l corev1.NodeList
	if err := h.read("/api/v1/nodes", &l); err != nil {
		return err
	}
	if len(l.Items) != 9 {
		return fmt.Errorf("%d nodes", len(l.Items))
	}
	for _, n := range l.Items {
		c := ready(n)
		_, noDocker := os.Stat("/var/run/docker.sock")
		_, noPodman := os.Stat("/run/podman/podman.sock")
		bare := noDocker != nil && noPodman != nil && n.Labels["flotilla.dev/simulated"] == ""
		if bare && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "apt install") {
			continue
		}
		if c.Status != corev1.ConditionTrue {
			return fmt.Errorf("node %s is not ready: %s: %s", n.Name, c.Reason, c.Message)
		}
	}
	if printed := p.output.String(); !strings.Contains(printed, "Flotilla is up") ||
		!strings.Contains(printed, "https://"+h.https) {
		return fmt.Errorf("make run printed %q", printed)
	}
	return nil
}

// ownNode returns the name of this machine's node.
func (h *hub) ownNode() string {
	h.t.Helper()
	var l corev1.NodeList
	if err := h.read("/api/v1/nodes?labelSelector=%21flotilla.dev%2Fsimulated", &l); err != nil || len(l.Items) != 1 {
		h.t.Fatalf("%d nodes that are not simulated, %v", len(l.Items), err)
	}
	return l.Items[0].Name
}

// processesWith returns the processes that have one of these words in their command line.
func processesWith(t testing.TB, words ...string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the process has ended
		}
		line := strings.ReplaceAll(string(text), "\x00", " ")
		for _, w := range words {
			if strings.Contains(line, w) {
				found = append(found, line)
				break
			}
		}
	}
	return found
}

// forgetVolatile removes the files, and their mounts, that a stopped agent leaves in memory for its
// next start.
func forgetVolatile(t testing.TB, stateDir string) {
	t.Helper()
	if _, err := os.Stat(stateDir); err == nil {
		output(t, program(t, "device", here), "reset", "--yes", "--state-dir", stateDir, "--engine", "none")
	}
	name := strings.ReplaceAll(strings.Trim(stateDir, "/"), "/", "-")
	if _, err := os.Stat(filepath.Join("/run/flotilla", name)); err == nil {
		t.Errorf("/run/flotilla/%s was not removed", name)
	}
}
