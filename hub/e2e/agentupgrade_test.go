package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// An agentRelease builds and signs versions of the agent.
type agentRelease struct {
	t   *testing.T
	key ed25519.PrivateKey
}

// build builds a version that trusts the release's key; broken: `run` ends at once.
func (r *agentRelease) build(version string, broken bool) string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "flotilla-device")
	args := []string{"build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w -X main.version=" + version +
		" -X main.releaseKey=" + base64.StdEncoding.EncodeToString(r.key.Public().(ed25519.PublicKey))}
	if broken {
		main, err := filepath.Abs(filepath.Join(repository, "device/main.go"))
		if err != nil {
			r.t.Fatal(err)
		}
		text, err := os.ReadFile(main)
		if err != nil {
			r.t.Fatal(err)
		}
		changed := filepath.Join(r.t.TempDir(), "main.go")
		text = []byte(strings.Replace(string(text), "func main() {\n", "func main() {\n\tif len(os.Args) > 1 && os.Args[1] == \"run\" {\n\t\tos.Exit(3)\n\t}\n", 1))
		overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{main: changed}})
		if err := os.WriteFile(changed, text, 0o644); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(changed+".json", overlay, 0o644); err != nil {
			r.t.Fatal(err)
		}
		args = append(args, "-overlay", changed+".json")
	}
	cmd := exec.Command("go", append(args, "-o", file, "./device")...)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if printed, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("build agent %s: %v\n%s", version, err, printed)
	}
	return file
}

// offer puts a program into the hub's directory of agents.
func (r *agentRelease) offer(dir, program, version string) {
	r.t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		r.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	b := fleet.AgentBuild{Version: version, Arch: runtime.GOARCH, Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
	b.Signature = ed25519.Sign(r.key, b.Text())
	about, err := json.Marshal(b)
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(dir, "flotilla-device-"+runtime.GOARCH)
	for name, content := range map[string][]byte{file: text, file + ".json": about} {
		if err := os.WriteFile(name+".new", content, 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			r.t.Fatal(err)
		}
	}
}

// supervise starts an agent again and again, as its systemd unit does, until the test ends.
func supervise(t *testing.T, program string, args ...string) *outputBuffer {
	t.Helper()
	out := &outputBuffer{}
	var mu sync.Mutex
	var now *exec.Cmd
	ended, over := false, make(chan struct{})
	go func() {
		defer close(over)
		for {
			cmd := exec.Command(program, args...)
			cmd.Env = environment("NOTIFY_SOCKET=" + filepath.Join(filepath.Dir(program), "notify"))
			cmd.Stdout, cmd.Stderr = out, out
			mu.Lock()
			if ended {
				mu.Unlock()
				return
			}
			err := cmd.Start()
			now = cmd
			mu.Unlock()
			if err == nil {
				_ = cmd.Wait()
			}
			time.Sleep(time.Second) // RestartSec
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		ended = true
		if now != nil && now.Process != nil {
			_ = now.Process.Signal(syscall.SIGTERM)
		}
		mu.Unlock()
		<-over
		healthy(t, "flotilla-device", out.String())
		if t.Failed() {
			t.Logf("the end of the agent's output:\n%s", tail(out.String(), 60))
		}
	})
	return out
}

// TestAgentsUpgradeThemselves: the hub hands out a second build of the agent, which takes over; a
// third one, which ends at once, does not. Both leave the containers alone.
func TestAgentsUpgradeThemselves(t *testing.T) {
	t.Parallel()
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &agentRelease{t, key}
	agents, installed := t.TempDir(), r.build("1.0.0", false)
	h := newHub(t, "--agents-dir", agents)
	d := h.join("oslo", e)
	supervise(t, installed, "run", "--state-dir", d.dir, "--engine", e.socket, "--eviction-hard", anyDisk, "--image-mirror", "")
	await(t, d.node+" is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before, err := e.containers(d.node)
	if err != nil || len(before) < 2 {
		t.Fatalf("%d containers, %v", len(before), err)
	}
	hub := program(t, "hub", here)
	if c := (command{path: hub, args: []string{"agents", "upgrade", "--data-dir", h.dir, "--version", "2.0.0"}}).run(t); c.code == 0 || !strings.Contains(c.err, "the hub has no agent of version 2.0.0") {
		t.Errorf("a version that the hub does not have: code %d: %s", c.code, c.err)
	}
	phase := func(want fleet.RolloutPhase) func() error {
		return func() error {
			var r fleet.AgentRollout
			if err := h.read("/apis/flotilla.dev/v1alpha1/agentrollouts/agents", &r); err != nil {
				return err
			}
			if r.Status.Phase != want || r.Status.ObservedGeneration != r.Generation {
				return fmt.Errorf("it is %s: %s: %+v", r.Status.Phase, r.Status.Sentence, r.Status.NodeStates)
			}
			return nil
		}
	}
	runs := func(version, when string) {
		t.Helper()
		if printed := output(t, installed, "version"); !strings.Contains(printed, " "+version+" ") {
			t.Errorf("%s: the installed program is %s", when, printed)
		}
		await(t, when+": "+d.node+" is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		n, err := h.node(d.node)
		if err != nil || !strings.HasSuffix(n.Status.NodeInfo.KubeletVersion, "."+version) {
			t.Errorf("%s: the node shows %s, %v", when, n.Status.NodeInfo.KubeletVersion, err)
		}
		e.same(t, d.node, before, when)
	}

	r.offer(agents, r.build("2.0.0", false), "2.0.0")
	began := time.Now()
	output(t, hub, "agents", "upgrade", "--data-dir", h.dir, "--version", "2.0.0")
	await(t, "the rollout is complete", 2*patience, phase(fleet.RolloutComplete))
	took := time.Since(began)
	runs("2.0.0", "after the upgrade")
	if printed := output(t, hub, "agents", "list", "--data-dir", h.dir); !strings.Contains(printed, "2.0.0") || !strings.Contains(printed, "oslo") {
		t.Errorf("agents list printed %q", printed)
	}

	r.offer(agents, r.build("3.0.0", true), "3.0.0")
	output(t, hub, "agents", "upgrade", "--data-dir", h.dir, "--version", "3.0.0", "--site", "oslo")
	h.kubectl("delete", "agentrollout", "agents-oslo") // its nodes belong to the older one
	began = time.Now()
	output(t, hub, "agents", "upgrade", "--data-dir", h.dir, "--version", "3.0.0")
	await(t, "the rollout has stopped", 2*patience, phase(fleet.RolloutStopped))
	runs("2.0.0", "after a version that ends at once")
	if printed := h.kubectl("get", "agentrollout", "agents"); !strings.Contains(printed, "it ended 2 times before the hub had acknowledged it") {
		t.Errorf("kubectl prints %s", printed)
	}
	seen(t, fmt.Sprintf("agent 2.0.0 took over within %.0f s, 3.0.0 was left within %.0f s, and no container restarted", took.Seconds(), time.Since(began).Seconds()))
}
