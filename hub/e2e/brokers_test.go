package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/oklog/ulid/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/join"
	"flotilla.dev/device/link"
	"flotilla.dev/shared/wire"
)

// A testDevice is the device's side of the protocol, with its own certificate. It has no
// containers, and reports each desired pod as running.
type testDevice struct {
	t    testing.TB
	id   join.Identity
	dir  string
	link *link.Link
	stop func()
	boot string

	mu      sync.Mutex
	desired wire.Desired
	gets    int // number of received desired states
}

const machineIDFormat = "3f2a9c0d1e4b5a%02x"

var machineIDs atomic.Int64

// testDevice joins a device with this name.
func (h *hub) testDevice(name string) *testDevice {
	h.t.Helper()
	d := &testDevice{t: h.t, dir: filepath.Join(h.t.TempDir(), name)}
	d.enrol(h, name)
	return d
}

func (d *testDevice) enrol(h *hub, name string) {
	h.t.Helper()
	line := output(h.t, program(h.t, "hub", here), "token", "create", "--data-dir", h.dir, "--site",
		"oslo", "--node", name)
	words := strings.Fields(line)
	id, err := join.Join(h.t.Context(), join.Options{URL: words[2], Token: words[4], Node: name, StateDir: d.dir,
		MachineID: fmt.Sprintf(machineIDFormat, machineIDs.Add(1))})
	if err != nil {
		h.t.Fatal(err)
	}
	d.id = id
}

// run connects the device, as after a boot.
func (d *testDevice) run() *testDevice {
	d.t.Helper()
	conf, err := d.id.TLS(time.Time{})
	if err != nil {
		d.t.Fatal(err)
	}
	d.boot = ulid.Make().String()
	l, err := link.New(link.Config{
		Node: d.id.Node, Machine: d.id.MachineID, Boot: d.boot, Server: d.id.Server(), External: d.id.External,
		Prefix: d.id.Prefix, Prove: d.id.Prove,
		TLS: conf, Source: d, Sink: d, LeaseInterval: time.Duration(d.id.LeaseIntervalSeconds) * time.Second,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.link = l
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	d.stop = sync.OnceFunc(func() { cancel(); <-done })
	d.t.Cleanup(d.stop)
	return d
}

func (d *testDevice) Status() wire.Status {
	r := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("4Gi"),
		"pods": resource.MustParse("110")}
	return wire.Status{Status: corev1.NodeStatus{Capacity: r, Allocatable: r,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "DeviceReady",
			Message: "ready"}}}}
}

func (d *testDevice) Pods() (p wire.Pods) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.Generation = d.desired.Generation
	for _, pod := range d.desired.Pods {
		if pod.DeletionTimestamp == nil {
			p.Pods = append(p.Pods, wire.PodStatus{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name,
				Status: corev1.PodStatus{Phase: corev1.PodRunning}})
		}
	}
	return p
}

func (d *testDevice) StoredGeneration() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.desired.Generation
}

func (d *testDevice) Desired(v wire.Desired) {
	d.mu.Lock()
	d.desired = v
	d.gets++
	d.mu.Unlock()
	d.link.DesiredStored()
	d.link.PodsChanged()
}
func (d *testDevice) Request(string, wire.Request) {}

// runs creates a pod for the node and waits until it runs.
func (d *testDevice) runs(h *hub, pod string) {
	h.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"nodeName":%q,"containers":[{"name":"c","image":"x:1"}]}}`, pod, d.id.Node)
	if _, err := h.ask(h.t.Context(), http.MethodPost, "/api/v1/namespaces/default/pods", "application/json",
		[]byte(body)); err != nil {
		h.t.Fatal(err)
	}
	await(h.t, pod+" runs on "+d.id.Node, patience, func() error {
		var p corev1.Pod
		if err := h.read("/api/v1/namespaces/default/pods/"+pod, &p); err != nil || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s, %v", p.Status.Phase, err)
		}
		return nil
	})
}

// neverUnknown fails if a node of the hub becomes Unknown before done is called.
func (h *hub) neverUnknown(t testing.TB) (done func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			var l corev1.NodeList
			if h.read("/api/v1/nodes", &l) == nil { // a restarting hub does not answer
				for _, n := range l.Items {
					if c := ready(n); c.Status == corev1.ConditionUnknown {
						t.Errorf("node %s is %s: %s: %s", n.Name, c.Status, c.Reason, c.Message)
						return
					}
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-over }
}

// behindBroker starts a hub whose devices connect to an external broker at these addresses.
func behindBroker(t testing.TB, addresses []string, args ...string) *hub {
	t.Helper()
	return newHub(t, append([]string{"--mqtt-dev-listen", "", "--broker", "mqtts://" + strings.Join(addresses,
		",mqtts://")}, args...)...)
}

// configure writes a broker's configuration with the hub's command.
func (h *hub) configure(kind string, addresses []string, args ...string) (dir string) {
	h.t.Helper()
	dir = filepath.Join(h.t.TempDir(), kind)
	output(h.t, program(h.t, "hub", here), append([]string{"broker-config", kind, "--data-dir", h.dir, "--out", dir,
		"--address", strings.Join(addresses, ",")}, args...)...)
	return dir
}

func append2(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mosquitto starts a real Mosquitto and waits until it listens.
func mosquitto(t testing.TB, dir, address string) *process {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mosquitto")
	}
	if err != nil {
		need(t, "mosquitto is not installed (apt-get install mosquitto): %v", err)
	}
	p := start(t, path, "-c", filepath.Join(dir, "mosquitto.conf"))
	listens(t, p, address)
	return p
}

func listens(t testing.TB, p *process, address string) {
	t.Helper()
	await(t, p.name+" listens on "+address, patience, func() error {
		if p.ended() {
			t.Fatalf("%s has exited: %s", p.name, tail(p.output.String(), 10))
		}
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// A spy records the messages that a broker sends to it.
type spy struct {
	paho.Client
	mu       sync.Mutex
	received []string // topics with payloads
}

func (s *spy) receivedOf(part string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.received {
		if strings.Contains(h, part) {
			all = append(all, h)
		}
	}
	return all
}

// client connects to a broker directly.
func client(t testing.TB, address string, conf *tls.Config, change func(*paho.ClientOptions)) (*spy, error) {
	t.Helper()
	s := &spy{}
	o := paho.NewClientOptions().AddBroker("ssl://" +
		address).SetTLSConfig(conf).SetProtocolVersion(4).SetAutoReconnect(false).SetConnectTimeout(patience).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			text := m.Topic() + " " + string(m.Payload()[:min(len(m.Payload()), 300)])
			if m.Retained() {
				text += " RETAINED"
			}
			s.received = append(s.received, text)
		})
	if change != nil {
		change(o)
	}
	s.Client = paho.NewClient(o)
	token := s.Connect()
	if !token.WaitTimeout(patience) {
		return s, errors.New("no CONNACK")
	}
	if err := token.Error(); err != nil {
		return s, err
	}
	t.Cleanup(func() { s.Disconnect(50) })
	return s, nil
}

// subscribes subscribes to filters. It ignores refusals.
func (s *spy) subscribes(filters ...string) {
	for _, f := range filters {
		s.Subscribe(f, 1, nil).WaitTimeout(2 * time.Second)
	}
}

func (s *spy) says(topic string, payload any, retain bool) {
	body, ok := payload.([]byte)
	if !ok {
		body, _ = json.Marshal(payload)
	}
	s.Publish(topic, 1, retain, body).WaitTimeout(2 * time.Second)
}

// pair returns the TLS configuration from a directory of `flotilla-hub mqtt-observer`.
func pair(t testing.TB, dir string) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}
}

func dialTLS(address string, conf *tls.Config) (net.Conn, error) {
	conf = conf.Clone()
	conf.ServerName, _, _ = net.SplitHostPort(address)
	return tls.Dial("tcp", address, conf)
}

// metric returns the value of a name in /metrics.
func (h *hub) metric(t testing.TB, name string) string {
	t.Helper()
	text, err := h.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return strings.Join(found, "\n")
}
