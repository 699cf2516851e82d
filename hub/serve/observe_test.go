package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/hub/cli"
	"flotilla.dev/hub/config"
	"flotilla.dev/shared/wire"
)

// said is the output of a running program.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// An operator's observer gets a certificate from the command line, connects with two of Mosquitto's
// tools, and is disconnected after the revocation.
func TestAnObserverFromItsCertificateToItsRevocation(t *testing.T) {
	sub, err := exec.LookPath("mosquitto_sub")
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("mosquitto_sub is needed here (apt-get install mosquitto-clients): %v", err)
	}
	if err != nil {
		t.Skip("mosquitto_sub is not installed (apt-get install mosquitto-clients)")
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	o := Options{Config: config.Default(), Version: "test", Log: slog.New(slog.DiscardHandler),
		Listeners: Listeners{HTTPS: listen(), MQTT: listen(), Dev: listen()}}
	o.Config.DataDir = t.TempDir()
	hub, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- hub.Run(running) }()
	t.Cleanup(func() { stop(); <-over })
	<-hub.Up()
	var since int64
	audited(t, hub.Store, &since)

	command := func(args ...string) error {
		c := cli.Program{Version: "test", Stdout: io.Discard, Stderr: io.Discard}.Command()
		c.SetArgs(append(args, "--data-dir", o.Config.DataDir))
		return c.ExecuteContext(t.Context())
	}
	dir := filepath.Join(t.TempDir(), "kari")
	for _, args := range [][]string{
		{"mqtt-observer"}, {"mqtt-observer", "--name", "kari"}, {"mqtt-observer", "--name", "Kari #", "--out", dir},
		{"mqtt-observer", "--name", "kari", "--out", dir, "--ttl", "0s"}, {"mqtt-observer", "--name", "kari", "--out", dir, "--ttl", "9000h"},
	} {
		if err := command(args...); err == nil {
			t.Errorf("the command %q succeeds", args)
		}
	}
	if err := command("mqtt-observer", "--name", "kari", "--out", dir); err != nil {
		t.Fatal(err)
	}
	if err := command("mqtt-observer", "--name", "kari", "--out", dir); err == nil || !strings.Contains(err.Error(),
		"file exists") {
		t.Errorf("a second certificate over the first: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "client.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}

	_, port, _ := net.SplitHostPort(o.MQTT.Addr().String())
	files := []string{filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := []string{"-h", "127.0.0.1", "-p", port, "--cafile", files[0], "--cert", files[1], "--key", files[2], "-v",
		"-t", "fleet/v1/#"}
	tool := exec.CommandContext(ctx, sub, args...)
	var out said
	tool.Stdout, tool.Stderr = &out, &out
	if err := tool.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tool.Wait() }()
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited 30s for %s; the tool prints %q", what, out.String())
			}
		}
	}
	_, dev, _ := net.SplitHostPort(o.Dev.Addr().String())
	await("a status at the observer", func() bool {
		_ = exec.CommandContext(ctx, strings.Replace(sub, "mosquitto_sub", "mosquitto_pub", 1), "-h", "127.0.0.1", "-p", dev,
			"-u", "pi-9", "-i", "pi-9",
			"-q", "1", "-t", wire.Topic(wire.DefaultPrefix, "pi-9", wire.ChannelStatus), "-m", `{"boot":"b1","seq":1}`).Run()
		return strings.Contains(out.String(), `fleet/v1/nodes/pi-9/status {"boot":"b1","seq":1}`)
	})

	// The certificate gives no access to HTTPS.
	pair, err := tls.LoadX509KeyPair(files[1], files[2])
	if err != nil {
		t.Fatal(err)
	}
	ca, _ := os.ReadFile(files[0])
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		Certificates: []tls.Certificate{pair}}}}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/api/v1/nodes", "/api/v1/secrets", "/metrics", "/join/v1/renew"} {
		r, err := client.Get("https://" + o.HTTPS.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode < 400 {
			t.Errorf("the observer's certificate gets %s: %s, want a refusal", path, r.Status)
		}
	}

	if err := command("mqtt-observer", "revoke", "kari"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	await("the end of the observer's connection", func() bool { return hub.Broker.Stats().Observers == 0 })
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("a revoked observer is disconnected only after %s", took)
	}
	<-ended
	if again, err := exec.CommandContext(ctx, sub, args...).CombinedOutput(); err == nil ||
		!strings.Contains(strings.ToLower(string(again)), "not authori") {
		t.Errorf("the tool after the revocation: %v, %q; want not authorized", err, again)
	}
	want := []string{"create mqttobservers kari by ", "connect mqttobservers kari by kari: 200",
		"revoke mqttobservers kari by ", "connect mqttobservers kari by kari: 403 "}
	var lines []string
	await("the audit", func() bool {
		lines = append(lines, audited(t, hub.Store, &since)...)
		return strings.Contains(strings.Join(lines, "\n"), "connect mqttobservers kari by kari: 403 ")
	})
	for _, w := range want {
		if !strings.Contains(strings.Join(lines, "\n"), w) {
			t.Errorf("the audit lacks %q: %q", w, lines)
		}
	}
	// A new certificate is accepted again.
	if err := command("mqtt-observer", "--name", "kari", "--out", filepath.Join(t.TempDir(), "again")); err != nil {
		t.Error(err)
	}
}
