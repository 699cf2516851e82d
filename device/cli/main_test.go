package cli

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/device/memory"
)

// output runs the command line and returns its exit code and stderr.
func output(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stderr
	os.Stderr = w
	code = Run(args, nil)
	os.Stderr = old
	_ = w.Close()
	b := make([]byte, 1<<16)
	n, _ := r.Read(b)
	return code, string(b[:n])
}

// Wrong usage exits with code 2 and one sentence that names the mistake.
func TestWrongUsage(t *testing.T) {
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("privilege: yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := "--state-dir=" + filepath.Join(dir, "state")
	locked := t.TempDir()
	m, err := memory.Open(locked, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	dev := "--hub=mqtt://127.0.0.1:1"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"dance"}, `"dance" is not a command`},
		{[]string{"completion", "bsh"}, `"bsh" is not a command; see flotilla-device completion --help`},
		{[]string{"completion", "bash", "x"}, `"x" is not a command; see flotilla-device completion bash --help`},
		{[]string{"help", "prob"}, `"prob" is not a command; see flotilla-device --help`},
		{[]string{"help", "policy", "chek"}, `"chek" is not a command; see flotilla-device policy --help`},
		{[]string{"run", "--colour=red"}, "--colour is not a flag of flotilla-device run; flotilla-device run --help lists them"},
		{[]string{"run", "--stat-dir=x"}, "--stat-dir is not a flag of flotilla-device run; did you mean --state-dir?"},
		{[]string{"join", "--max-pods=7"}, "--max-pods is not a flag of flotilla-device join, but of flotilla-device run"},
		{[]string{"run", "-v=4"}, "-v is a kubelet flag that the agent does not have: use --log-level"},
		{[]string{"run", state, dev, "--register-node=false"}, "flotilla-hub serve --register-node=false"},
		{[]string{"run", state, dev, "--max-pods=2000"}, "--max-pods 2000 must be between 1 and 1024"},
		{[]string{"run", state, dev, "--node-ip=0.0.0.0"}, `--node-ip: "0.0.0.0" cannot be an address of this device`},
		{[]string{"run", state, dev, "--node-ip=192.0.2.1,192.0.2.2"}, "two addresses of one family"},
		{[]string{"run", state, dev, "--node-status-report-frequency=1s"}, "--node-status-report-frequency 1s must be between 10s and 1h"},
		{[]string{"run", state, dev, "--kube-reserved=cpu"}, "--kube-reserved"},
		{[]string{"run", "extra"}, `"extra"`},
		{[]string{"run", state}, "flotilla-device join"},
		{[]string{"run", state, dev, "--engine=rkt"}, `--engine "rkt"`},
		{[]string{"run", state, dev, "--log-level=loud"}, `--log-level "loud"`},
		{[]string{"run", state, dev, "--log-format=xml"}, `--log-format "xml"`},
		{[]string{"run", state, dev, "--system-reserved=cpu"}, "--system-reserved"},
		{[]string{"run", state, dev, "--eviction-hard=memory.available<much"}, "--eviction-hard"},
		{[]string{"run", state, dev, "--lease-interval=1ms"}, "--lease-interval 1ms"},
		{[]string{"run", state, dev, "--swap-behavior=UnlimitedSwap"}, "use LimitedSwap"},
		{[]string{"run", state, dev, "--topology-manager-policy=strict"}, `"strict" is not a topology policy: use none, best-effort`},
		{[]string{"run", state, dev, "--policy=/none"}, "--policy"},
		{[]string{"run", state, dev, "--policy=" + policy}, policy},
		{[]string{"run", state, dev, "--node-name=No_Name"}, "--node-name"},
		{[]string{"run", state, dev, "--label=x"}, `--label "x"`},
		{[]string{"run", state, dev, "--taint=x:Never"}, `--taint "x:Never"`},
		{[]string{"run", state, "--hub=mqtt://192.0.2.1:1883"}, "loopback"},
		{[]string{"run", state, "--hub=http://127.0.0.1:1883"}, "mqtt://127.0.0.1:PORT"},
		{[]string{"run", state, "--node-name=x"}, "--hub"},
		{[]string{"run", "--state-dir=" + locked, dev}, "another flotilla-device"},
		{[]string{"join"}, "address of the hub"},
		{[]string{"join", "https://127.0.0.1:1", state}, "--token is missing"},
		{[]string{"join", "https://127.0.0.1:1", state, "--token=x"}, "token"},
		{[]string{"reset", state}, "--yes"},
		{[]string{"logs", "web", "cache"}, "takes one pod name"},
		{[]string{"logs", "--previous"}, "--previous needs the name of a pod"},
		{[]string{"logs", "-c", "web"}, "--container needs the name of a pod"},
	} {
		code, stderr := output(t, c.args...)
		if code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: got exit code %d and %q, want 2 and %q", c.args, code, stderr, c.want)
		}
	}
}

func TestTheEnvironmentSetsFlags(t *testing.T) {
	t.Setenv("FLOTILLA_LOG_LEVEL", "loud")
	if code, stderr := output(t, "run", "--hub=mqtt://127.0.0.1:1", "--state-dir="+t.TempDir()); code != exitUsage ||
		!strings.Contains(stderr, `"loud"`) {
		t.Errorf("an invalid value in the environment: got %d %q", code, stderr)
	}
	if code, stderr := output(t, "run", "--hub=x", "--log-level=info", "--state-dir="+t.TempDir()); code != exitUsage ||
		strings.Contains(stderr, "loud") {
		t.Errorf("a flag overrides the environment: got %d %q", code, stderr)
	}
	t.Setenv("FLOTILLA_MAX_PODS", "many")
	if code, stderr := output(t, "run", "--log-level=info"); code != exitUsage ||
		!strings.Contains(stderr, "FLOTILLA_MAX_PODS") {
		t.Errorf("an invalid number in the environment: got %d %q", code, stderr)
	}
}
