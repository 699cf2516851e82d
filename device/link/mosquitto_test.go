package link

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/loopback"
	"flotilla.dev/shared/wire"
)

// mosquitto runs a real broker until the test ends.
func mosquitto(t *testing.T) (port int) {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mosquitto")
	}
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("mosquitto is needed here (apt-get install mosquitto): %v", err)
	}
	if err != nil {
		t.Skip("mosquitto is not installed (apt-get install mosquitto)")
	}
	free, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	port = int(netip.MustParseAddrPort(free).Port())
	conf := filepath.Join(t.TempDir(), "mosquitto.conf")
	if err := os.WriteFile(conf,
		fmt.Appendf(nil, "listener %d 127.0.0.1\nallow_anonymous true\npersistence false\n", port), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(conf), 0o755); err != nil { // mosquitto may run as another user
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-c", conf)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	await(t, "mosquitto to listen", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return port
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 2m for %s", what)
		}
	}
}

// The link works with a real broker, with a client in place of the hub.
func TestALinkOverMosquitto(t *testing.T) {
	port := mosquitto(t)
	server := fmt.Sprintf("mqtt://127.0.0.1:%d", port)
	var mu sync.Mutex
	var messages []string
	var last wire.Lease
	watch := paho.NewClient(
		paho.NewClientOptions().AddBroker(fmt.Sprintf("tcp://127.0.0.1:%d", port)).
			SetClientID("watch").SetAutoReconnect(false))
	if err := wait(t.Context(), nil, time.Minute, watch.Connect); err != nil {
		t.Fatal(err)
	}
	defer watch.Disconnect(100)
	record := func(_ paho.Client, m paho.Message) {
		mu.Lock()
		defer mu.Unlock()
		a, _ := wire.ParseTopic(wire.DefaultPrefix, m.Topic())
		text := string(a.Channel)
		switch a.Channel {
		case wire.ChannelPresence:
			p, _ := wire.ParsePresence(m.Payload())
			text += " " + p.State
		case wire.ChannelLease:
			last, _ = wire.ParseLease(m.Payload())
		}
		if m.Retained() {
			text += " RETAINED"
		}
		messages = append(messages, text)
	}
	err := wait(t.Context(), nil, time.Minute,
		func() paho.Token { return watch.Subscribe("fleet/v1/nodes/pi-1/#", 1, record) })
	if err != nil {
		t.Fatal(err)
	}
	received := func(what string) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return slices.Contains(messages, what) }
	}

	var conns []net.Conn
	a := &agent{load: "x", pod: "x"}
	l, err := New(Config{
		Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1", Server: server, Source: a, Sink: a,
		LeaseInterval: 100 * time.Millisecond,
		Log:           slog.New(slog.NewTextHandler(io.Discard, nil)),
		Dial: func(ctx context.Context) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			return c, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	a.link = l
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()

	await(t, "status, pods and lease", func() bool { return received("status")() && received("pods")() && received("lease")() })
	payload, _ := json.Marshal(wire.Desired{Generation: 5, Hub: "h1"})
	desired := wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired)
	if err := wait(ctx, nil, time.Minute, func() paho.Token {
		return watch.Publish(desired, 0, false, payload)
	}); err != nil {
		t.Fatal(err)
	}
	await(t, "the desired state to be stored and acknowledged by a lease",
		func() bool { mu.Lock(); defer mu.Unlock(); return last.Desired == 5 })

	mu.Lock()
	conns[0].Close() // the network is cut
	seq := last.Seq
	mu.Unlock()
	await(t, "the will", received("presence lost"))
	await(t, "leases again", func() bool { mu.Lock(); defer mu.Unlock(); return last.Seq > seq+2 && len(conns) > 1 })

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	await(t, "the goodbye", received("presence shutdown"))
	mu.Lock()
	defer mu.Unlock()
	lost := 0
	for _, h := range messages {
		if h == "presence lost" {
			lost++
		}
		if strings.HasSuffix(h, "RETAINED") {
			t.Errorf("the device has published a retained message: %s", h)
		}
	}
	if lost != 1 {
		t.Errorf("%d wills, want one: an orderly stop sends no will", lost)
	}
}
