// Command quickstart is `make run`: a hub, this machine as its first node, eight simulated devices
// on three sites, and sample workloads, all in ./data. With --script night the simulated devices
// fail as in a bad night.
//
// It runs the commands of the README with the programs that were just built. Ctrl-C ends the
// programs; the next start continues with ./data.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Sample workloads, and the workloads that the script night changes.
//
//go:embed sample.yaml
var sample []byte

//go:embed night.yaml
var night []byte

// A layout has the directories, the addresses and the script of the simulated devices.
type layout struct {
	bin, data, https, mqtt, dev string
	script                      string // script of the simulated devices; if empty, they run without failures
	speed                       float64
}

func (p layout) hub() string        { return filepath.Join(p.bin, "flotilla-hub") }
func (p layout) device() string     { return filepath.Join(p.bin, "flotilla-device") }
func (p layout) simulator() string  { return filepath.Join(p.bin, "flotilla-simulate") }
func (p layout) hubDir() string     { return filepath.Join(p.data, "hub") }
func (p layout) deviceDir() string  { return filepath.Join(p.data, "device") }
func (p layout) kubeconfig() string { return filepath.Join(p.data, "kubeconfig") }

func main() {
	var p layout
	flag.StringVar(&p.bin, "bin", "bin", "directory of the programs flotilla-hub, flotilla-device and flotilla-simulate")
	flag.StringVar(&p.data, "data", "data", "directory for the hub's and the devices' data")
	flag.StringVar(&p.https, "https-listen", ":8443", "HTTPS address of the hub")
	flag.StringVar(&p.mqtt, "mqtt-listen", ":8883", "MQTT address of the hub")
	flag.StringVar(&p.dev, "mqtt-dev-listen", "127.0.0.1:1883", "the hub's MQTT address for simulated devices")
	flag.StringVar(&p.script, "script", "",
		"script of the simulated devices: a file, or night (see flotilla-simulate --help)")
	flag.Float64Var(&p.speed, "speed", 1, "factor by which the script runs faster")
	flag.Parse()
	back := foreground()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal kills
	err := run(ctx, p)
	back()
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, p layout) error {
	own, err := lockDir(p.data)
	if err != nil {
		return err
	}
	defer own.Close()
	ctx, cancel := context.WithCancel(ctx)
	var children []*child
	defer func() {
		cancel()
		for i := len(children) - 1; i >= 0; i-- {
			children[i].wait()
		}
	}()
	start := func(name string, args ...string) (*child, error) {
		c, err := begin(ctx, own, name, args...)
		if err == nil {
			children = append(children, c)
		}
		return c, err
	}

	h, err := start(p.hub(), "serve", "--data-dir", p.hubDir(), "--https-listen", p.https, "--mqtt-listen", p.mqtt,
		"--mqtt-dev-listen", p.dev, "--agents-dir", filepath.Join(p.bin, "agents"), "--log-level", "warn")
	if err != nil {
		return err
	}
	api, err := connect(ctx, h, p)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(p.deviceDir(), "identity.json")); errors.Is(err, os.ErrNotExist) {
		line, err := output(ctx, p.hub(), "token", "create", "--data-dir", p.hubDir(), "--site", "home")
		if err != nil {
			return err
		}
		words := strings.Fields(line) // the line is: flotilla-device join URL --token TOKEN
		if _, err := output(ctx, p.device(), append(words[1:], "--state-dir", p.deviceDir())...); err != nil {
			return err
		}
	}
	// The machine has its own work, so a full disk must not make the agent remove images.
	anyDisk := "nodefs.available<0,nodefs.inodesFree<0,imagefs.available<0,imagefs.inodesFree<0"
	if _, err := start(p.device(), "run", "--state-dir", p.deviceDir(), "--log-level", "warn", "--eviction-hard",
		anyDisk); err != nil {
		return err
	}
	simulate := []string{"--hub", "mqtt://" + p.dev, "--count", "8", "--sites", "3"}
	if p.script == "" {
		simulate = append(simulate, "--log-level", "warn")
	} else { // print the steps of the script
		simulate = append(simulate, "--script", p.script, "--speed", fmt.Sprint(p.speed))
	}
	s, err := start(p.simulator(), simulate...)
	if err != nil {
		return err
	}
	// Wait for the nodes first: without them the hub reports that the workloads cannot be placed.
	api.awaitNodes(ctx, 9, 20*time.Second)
	if err := p.create(ctx, api); err != nil {
		return err
	}
	fmt.Printf("\nFlotilla is up. This machine and eight simulated devices are its nodes.\n"+
		"    page      %s\n"+
		"    kubectl   kubectl --kubeconfig %s get nodes\n"+
		"    end       Ctrl-C; its data stays in %s\n\n", api.url, p.kubeconfig(), p.data)
	select {
	case <-ctx.Done():
		return nil
	case <-h.over:
		return fmt.Errorf("the hub has ended: %w", h.err)
	case <-s.over:
		return fmt.Errorf("the simulated devices have ended: %w", s.err)
	}
}

// lockDir locks the directory until this quickstart and its programs have ended. So a hub that
// answers at this quickstart's address was started by this quickstart.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	own, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(own.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		own.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf(
				"another quickstart uses %s; end it with Ctrl-C, or wait until it has ended", dir)
		}
		return nil, fmt.Errorf("lock %s: %w; use a directory on a local file system", dir, err)
	}
	return own, nil
}

// create creates the workloads.
func (p layout) create(ctx context.Context, a *api) error {
	all := [][]byte{sample}
	if p.script == "night" {
		all = append(all, bytes.Split(night, []byte("\n---\n"))...)
	}
	for _, manifest := range all {
		if err := a.create(ctx, manifest); err != nil {
			return err
		}
	}
	return nil
}

// A child is a program that quickstart runs and ends before it exits.
type child struct {
	over chan struct{}
	err  error
}

func begin(ctx context.Context, own *os.File, name string, args ...string) (*child, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{own}
	// Each child has its own process group, so that quickstart can end them in order after Ctrl-C.
	// The kernel ends them if quickstart is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{over: make(chan struct{})}
	go func() {
		defer close(c.over)
		c.err = cmd.Wait()
	}()
	return c, nil
}

func (c *child) wait() { <-c.over }

func output(ctx context.Context, name string, args ...string) (string, error) {
	var printed, wrong bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &printed, &wrong
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, wrong.String())
	}
	return printed.String(), nil
}

// An api is a client of the hub's Kubernetes-compatible API with an administrator's certificate.
type api struct {
	url    string
	client *http.Client
}

// connect waits until the hub answers, and writes the kubeconfig.
func connect(ctx context.Context, h *child, p layout) (*api, error) {
	for {
		text, err := output(ctx, p.hub(), "kubeconfig", "--data-dir", p.hubDir())
		if err == nil {
			var a *api
			if a, err = login([]byte(text)); err == nil {
				if err = a.ready(ctx); err == nil {
					return a, os.WriteFile(p.kubeconfig(), []byte(text), 0o600)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-h.over:
			return nil, fmt.Errorf("the hub did not start: %w", h.err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func login(text []byte) (*api, error) {
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(k.Users[0].User.Cert, k.Users[0].User.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(k.Clusters[0].Cluster.CA)
	return &api{url: k.Clusters[0].Cluster.Server,
		client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		}}}, nil
}

func (a *api) ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := a.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// awaitNodes waits until at least count nodes are Ready, but at most for limit: this machine's node
// never becomes Ready without Docker or Podman.
func (a *api) awaitNodes(ctx context.Context, count int, limit time.Duration) {
	for end := time.Now().Add(limit); a.readyNodes(ctx) < count && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (a *api) readyNodes(ctx context.Context) (count int) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/api/v1/nodes", nil)
	if err != nil {
		return 0
	}
	answer, err := a.client.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	var nodes corev1.NodeList
	if json.NewDecoder(answer.Body).Decode(&nodes) != nil {
		return 0
	}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				count++
			}
		}
	}
	return count
}

// create creates a workload unless it exists.
func (a *api) create(ctx context.Context, manifest []byte) error {
	var is struct{ Kind string }
	if err := yaml.Unmarshal(manifest, &is); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost,
		a.url+"/apis/apps/v1/namespaces/default/"+strings.ToLower(is.Kind)+"s", bytes.NewReader(manifest))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/yaml")
	answer, err := a.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated && answer.StatusCode != http.StatusConflict {
		var text bytes.Buffer
		_, _ = text.ReadFrom(answer.Body)
		return fmt.Errorf("create a %s: %s: %s", is.Kind, answer.Status, text.String())
	}
	return nil
}
