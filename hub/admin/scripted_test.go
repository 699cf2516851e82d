package admin

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"flotilla.dev/shared/loopback"
)

// A real night runs the script night on the real hub. It does not end, so that a slow test has
// time.
type realNight struct {
	url   string // address of the hub
	login string // address of the setup page, once
}

// startNight builds and starts both programs, and makes the night's workloads.
func startNight(t *testing.T) *realNight {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"hub", "device/simulate"} {
		build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, filepath.Base(name)), "flotilla.dev/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the %s: %v\n%s", name, err, out)
		}
	}
	https, dev := freeAddress(t), freeAddress(t)
	said := process(t, filepath.Join(dir, "hub"), "serve", "--data-dir", filepath.Join(dir, "data"), "--https-listen", https, "--mqtt-listen", freeAddress(t), "--mqtt-dev-listen", dev,
		"--lease-interval", "1s", "--node-monitor-grace-period", "6s", "--node-startup-grace-period", "12s", "--cluster-cidr", "10.218.0.0/16", "--log-level", "error")
	n := &realNight{url: "https://" + https}
	for n.login == "" {
		line, err := said.ReadString('\n')
		if err != nil {
			t.Fatalf("the hub ends without a setup link: %v", err)
		}
		n.login = regexp.MustCompile(`/setup\?token=\w+`).FindString(line)
	}
	go func(said io.Reader) { _, _ = io.Copy(io.Discard, said) }(said)
	text, err := os.ReadFile("../../device/simulate/night.txt")
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := bytes.Cut(text, []byte("6m30s  restart"))
	if !found {
		t.Fatal("the night has another script")
	}
	script := filepath.Join(dir, "night.txt")
	if err := os.WriteFile(script, regexp.MustCompile(`(?m) for=\S+$`).ReplaceAll(before, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	said = process(t, filepath.Join(dir, "simulate"), "--hub", "mqtt://"+dev, "--count", "36", "--sites", "3", "--script", script, "--speed", "5", "--log-level", "error")
	go func(said io.Reader) { _, _ = io.Copy(io.Discard, said) }(said)
	n.apply(t, dir)
	return n
}

// freeAddress returns an unused address.
func freeAddress(t *testing.T) string {
	t.Helper()
	addr, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// process starts a program that ends with the test, and returns its output.
func process(t *testing.T, name string, args ...string) *bufio.Reader {
	t.Helper()
	cmd := exec.Command(name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return bufio.NewReader(out)
}

// apply makes the workloads of make run SCRIPT=night.
func (n *realNight) apply(t *testing.T, dir string) {
	t.Helper()
	text, err := exec.Command(filepath.Join(dir, "hub"), "kubeconfig", "--data-dir", filepath.Join(dir, "data")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(k.Users[0].User.Cert, k.Users[0].User.Key)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}} //nolint:gosec // the test's own hub
	for _, file := range []string{"sample.yaml", "night.yaml"} {
		text, err := os.ReadFile(filepath.Join("../cli/quickstart", file))
		if err != nil {
			t.Fatal(err)
		}
		for manifest := range bytes.SplitSeq(text, []byte("\n---\n")) {
			kind := "deployments"
			if bytes.Contains(manifest, []byte("kind: DaemonSet")) {
				kind = "daemonsets"
			}
			answer, err := client.Post(n.url+"/apis/apps/v1/namespaces/default/"+kind, "application/yaml", bytes.NewReader(manifest))
			if err != nil {
				t.Fatal(err)
			}
			said, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != http.StatusCreated {
				t.Fatalf("make a %s: %s %s", kind, answer.Status, said)
			}
		}
	}
}

// enter logs a new browser in.
func (n *realNight) enter(t *testing.T) *browser {
	t.Helper()
	b := browse(t, n.url)
	b.width(1280, false)
	if n.login != "" {
		b.open(n.login)
		b.fill("input[name=password]", "four words are good")
		b.fill("input[name=again]", "four words are good")
		n.login = ""
	} else {
		b.open("/")
		b.fill("input[name=name]", "admin")
		b.fill("input[name=password]", "four words are good")
	}
	b.press("button.primary")
	return b
}

// A bad night in a browser: the real hub, real agents, and a script. With SCREENSHOTS it also saves
// the README's picture.
func TestANightOnTheRealHub(t *testing.T) {
	t.Parallel()
	n := startNight(t)
	b := n.enter(t)
	b.awaits("site-02 is dark")
	b.awaits("till crashes again and again")
	b.awaits("The link comes and goes")
	for _, want := range []string{"Image example.org/menu:2 is not in the registry", "Too little power or cooling", "Too little disk space", "Too little memory"} {
		b.awaits(want)
	}
	b.says("~12 nodes")
	const dark = `[...document.querySelectorAll(".incidents > li")].filter((e) => e.textContent.includes("site-02")).length === 1`
	if !b.eval(dark) {
		t.Errorf("the dark site does not have exactly one card: %s", b.text())
	}
	pod := b.string(`document.querySelector('a[href^="/pods/default/till-"]')?.getAttribute("href") ?? ""`)
	if pod == "" {
		t.Fatalf("no link to a pod that crashes: %s", b.text())
	}
	for _, w := range []int64{1280, 768, 360} {
		if w != 1280 {
			b = n.enter(t) // each with its own time limit
		}
		for _, v := range []struct{ name, path, says string }{
			{"overview", "/", "site-02 is dark"},
			{"site", "/sites", "site-02"},
			{"nodes", "/nodes?site=site-02", "12 nodes found"},
			{"dark-node", "/nodes/sim-0002", "It does not answer"},
			{"hot-node", "/nodes/sim-0006", "throttles the processor"},
			{"pod", pod, "exit code 1"},
			{"pods", "/pods?status=attention", "menu-"},
			{"workloads", "/workloads", "menu"},
		} {
			b.width(w, false)
			b.open(v.path)
			b.awaits(v.says)
			for _, scheme := range []bool{false, true} {
				b.width(w, scheme)
				name := fmt.Sprintf("real-%s-%d-%s", v.name, w, map[bool]string{true: "dark", false: "light"}[scheme])
				b.fits(name)
				if scheme == (w == 360) {
					b.axe(name)
				}
				b.shot(name)
			}
		}
		if os.Getenv("SCREENSHOTS") != "" && w == 1280 {
			b.width(w, false)
			b.open("/")
			b.awaits("site-02 is dark")
			b.picture("overview")
		}
	}
	if text := b.text(); strings.Contains(text, "%!") {
		t.Errorf("a value is printed wrongly: %s", text)
	}
}
