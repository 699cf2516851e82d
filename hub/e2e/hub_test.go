package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/e2e/kubectltest"
)

// A hub is a `flotilla-hub serve` with its own data directory.
type hub struct {
	*process
	t          testing.TB
	dir        string
	https, dev string // addresses
	args       []string
	config     string // path of a kubeconfig
	client     *http.Client
	older      string // program of another version; "" for this checkout's
}

// path returns the path of the hub's program.
func (h *hub) path() string {
	if h.older != "" {
		return h.older
	}
	return program(h.t, "hub", here)
}

// newHub starts a hub and waits until it serves.
func newHub(t testing.TB, args ...string) *hub {
	t.Helper()
	h := &hub{t: t, dir: filepath.Join(t.TempDir(), "hub"), https: freePort(t), dev: freePort(t)}
	h.args = append([]string{
		"serve", "--data-dir", h.dir, "--https-listen", h.https, "--mqtt-listen", freePort(t), "--mqtt-dev-listen", h.dev,
		"--lease-interval", leaseInterval.String(), "--node-monitor-grace-period", grace.String(),
		"--node-startup-grace-period", (2 * grace).String(),
		"--cluster-cidr", ownAddresses(t),
	}, args...)
	h.start()
	return h
}

var hubs atomic.Int64

// ownAddresses returns a pod address range for one hub's devices. Tests share the machine's engines
// with other hubs, and a node gets no pods if its addresses are in use. Docker may still hold the
// addresses of a removed network that it no longer lists, so ownAddresses creates a network to try
// the range.
func ownAddresses(t testing.TB) string {
	socket := os.Getenv("DOCKER_SOCK")
	if socket == "" {
		socket = "/var/run/docker.sock"
	}
	docker := engineAt("docker", socket)
	for range 128 {
		n := hubs.Add(1)
		addresses := fmt.Sprintf("10.%d.0.0/16", 96+(int64(os.Getpid())*31+n)%128)
		if of := reached(t, addresses); of != "" {
			t.Logf("%s is in use: %s is an address of this machine", addresses, of)
			continue
		}
		name := fmt.Sprintf("e2e-%d-free-%d", os.Getpid(), n)
		_, err := docker.send(http.MethodPost, "/networks/create",
			fmt.Sprintf(`{"Name": %q, "IPAM": {"Config": [{"Subnet": %q}]}}`, name, addresses))
		if err == nil {
			_, err = docker.ask(http.MethodDelete, "/networks/"+name)
		}
		if err == nil || !strings.Contains(err.Error(), "overlaps") {
			return addresses // the range is free, or Docker is not installed
		}
		t.Logf("%s is in use: %v", addresses, err)
	}
	t.Fatal("Docker has no addresses left for a test")
	return ""
}

// reached returns an address of this machine in a range, such as one of Podman's networks or of a
// killed test.
func reached(t testing.TB, addresses string) string {
	have, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatalf("list the addresses of this machine: %v", err)
	}
	within := netip.MustParsePrefix(addresses)
	for _, a := range have {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(within) {
			return a.String()
		}
	}
	return ""
}

// start starts the hub and waits until it serves.
func (h *hub) start() {
	h.t.Helper()
	h.launch()
	await(h.t, "the hub starts", patience, h.answers)
}

func (h *hub) launch() {
	h.t.Helper()
	h.process = start(h.t, h.path(), h.args...)
}

// answers returns nil when the hub serves.
func (h *hub) answers() error {
	if h.ended() {
		h.t.Fatalf("the hub has exited: %s", tail(h.output.String(), 10))
	}
	if h.client == nil {
		r := command{path: h.path(), args: []string{"kubeconfig", "--data-dir", h.dir, "--server",
			"https://" + h.https}}.run(h.t)
		if r.code != 0 {
			return errors.New(r.err)
		}
		if err := h.login([]byte(r.out)); err != nil {
			return err
		}
	}
	_, err := h.get("/livez")
	return err
}

// login stores a kubeconfig for kubectl and for the test's own requests.
func (h *hub) login(kubeconfig []byte) error {
	var k struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(kubeconfig, &k); err != nil {
		return err
	}
	if len(k.Clusters) != 1 || len(k.Users) != 1 {
		return fmt.Errorf("the kubeconfig has %d clusters and %d users", len(k.Clusters), len(k.Users))
	}
	pair, err := tls.X509KeyPair(k.Users[0].User.Cert, k.Users[0].User.Key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(k.Clusters[0].Cluster.CA)
	h.config = filepath.Join(filepath.Dir(h.dir), "kubeconfig")
	h.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, ForceAttemptHTTP2: true,
	}}
	return os.WriteFile(h.config, kubeconfig, 0o600)
}

// A refusal is an API response with a code other than 2xx.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return fmt.Sprintf("%d: %s", r.code, r.text) }

// ask sends one request. A code other than 2xx is an error.
func (h *hub) ask(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+h.https+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", contentType)
	answer, err := h.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 != 2 {
		return nil, refusal{answer.StatusCode, string(text)}
	}
	return text, nil
}

func (h *hub) get(path string) ([]byte, error) {
	return h.ask(context.Background(), http.MethodGet, path, "", nil)
}

// read reads an object or a list.
func (h *hub) read(path string, into any) error {
	text, err := h.get(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func (h *hub) node(name string) (corev1.Node, error) {
	var n corev1.Node
	err := h.read("/api/v1/nodes/"+name, &n)
	return n, err
}

// pods returns the pods with this label app, of one node or of all nodes.
func (h *hub) pods(app, node string) ([]corev1.Pod, error) {
	var l corev1.PodList
	path := "/api/v1/namespaces/default/pods?labelSelector=app%3D" + app
	if node != "" {
		path += "&fieldSelector=spec.nodeName%3D" + node
	}
	err := h.read(path, &l)
	return l.Items, err
}

func (h *hub) deployment(name string) (appsv1.Deployment, error) {
	var d appsv1.Deployment
	err := h.read("/apis/apps/v1/namespaces/default/deployments/"+name, &d)
	return d, err
}

// ready returns nil when a node's Ready has this status.
func (h *hub) ready(node string, want corev1.ConditionStatus) error {
	n, err := h.node(node)
	if err != nil {
		return err
	}
	if c := ready(n); c.Status != want {
		return fmt.Errorf("Ready of %s is %s: %s: %s", node, c.Status, c.Reason, c.Message)
	}
	return nil
}

func ready(n corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// kubectl runs the real kubectl. The command must succeed.
func (h *hub) kubectl(args ...string) string {
	h.t.Helper()
	return h.kubectlWith("", args...)
}

// kubectlWith is kubectl with a text on standard input.
func (h *hub) kubectlWith(stdin string, args ...string) string {
	h.t.Helper()
	out, errs, code := kubectltest.RunInput(h.t, kubectl(h.t), h.config, stdin, args...)
	if code != 0 {
		h.t.Fatalf("kubectl %s exited with code %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return out + errs
}

func kubectl(t testing.TB) string {
	t.Helper()
	return kubectltest.Build(t, kubectltest.Newest)
}

// simulate starts simulated devices and waits until all are ready.
func (h *hub) simulate(count, sites int) *process {
	h.t.Helper()
	p := start(h.t, program(h.t, "simulate", here), "--hub", "mqtt://"+h.dev,
		"--count", fmt.Sprint(count), "--sites", fmt.Sprint(sites), "--log-level", "warn")
	h.allReady(count)
	return p
}

// allReady waits until the hub has this number of nodes, all ready.
func (h *hub) allReady(count int) {
	h.t.Helper()
	await(h.t, fmt.Sprintf("%d nodes are ready", count), time.Minute+time.Duration(count)*50*time.Millisecond, func() error {
		var l corev1.NodeList
		if err := h.read("/api/v1/nodes", &l); err != nil {
			return err
		}
		n := 0
		for _, node := range l.Items {
			if ready(node).Status == corev1.ConditionTrue {
				n++
			}
		}
		if n != count || len(l.Items) != count {
			return fmt.Errorf("%d nodes, %d of them ready", len(l.Items), n)
		}
		return nil
	})
}
