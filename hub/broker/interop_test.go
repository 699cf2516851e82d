package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/shared/wire"
)

// tool finds a program of Mosquitto. In CI it must exist.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%s is needed here (apt-get install mosquitto-clients): %v", name, err)
	}
	if err != nil {
		t.Skipf("%s is not installed (apt-get install mosquitto-clients)", name)
	}
	return path
}

// run runs a program with a time limit and returns its output.
func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

func TestMosquittosClientsCanBeDevices(t *testing.T) {
	pub, sub := tool(t, "mosquitto_pub"), tool(t, "mosquitto_sub")
	ca := newAuthority(t)
	dir := t.TempDir()
	files := pemFiles(t, dir, ca, "pi-1")
	secure, plain := loopback(t), loopback(t)
	d := &recorder{}
	b := start(t, Config{Handler: d, Listen: secure, TLS: ca.server(), DevListen: plain})
	for _, c := range []struct {
		name string
		args []string
	}{
		{"on the development listener", []string{"-h", "127.0.0.1", "-p", port(plain), "-V", "mqttv311", "-u", "pi-1", "-i", "pi-1", "-k", "10"}},
		{"over TLS", append([]string{"-h", "127.0.0.1", "-p", port(secure), "-V", "mqttv311", "-i", "pi-1:3f2a9c0d1e4b5a67", "-k", "10"}, files...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := func(ch wire.Channel) string { return topicOf("pi-1", ch) }
			before := len(d.all())
			received := func(what string) bool { return strings.Contains(strings.Join(d.all()[before:], "\n"), what) }
			for _, m := range [][]string{
				{"-q", "1", "-t", topic(wire.ChannelStatus), "-m", `{"boot":"b1","seq":1}`},
				{"-q", "0", "-t", topic(wire.ChannelLease), "-m", `{"boot":"b1","seq":9}`},
				{"-q", "1", "-t", topicOf("pi-2", wire.ChannelStatus), "-m", `{"boot":"b1","seq":1}`},
			} {
				if out, err := run(t, pub, append(c.args, m...)...); err != nil {
					t.Fatalf("mosquitto_pub %s: %v\n%s", m, err, out)
				}
			}
			await(t, "status and lease", func() bool { return received("status pi-1 1") && received("lease pi-1 9") })

			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			args := append(c.args, "-C", "1", "-t", topic(wire.ChannelDesired), "-t", topic(wire.ChannelRequest)+"/+",
				"--will-topic", topic(wire.ChannelPresence), "--will-payload", lostWill, "--will-qos", "1")
			cmd := exec.CommandContext(ctx, sub, args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, "the desired state to be sent", func() bool {
				return b.Publish("pi-1", wire.ChannelDesired, []byte(`{"generation":1}`)) == nil
			})
			if err := cmd.Wait(); err != nil || strings.TrimSpace(out.String()) != `{"generation":1}` {
				t.Errorf("mosquitto_sub: %v\n%s", err, out.String())
			}
			out2, err := run(t, sub, append(c.args, "-W", "2", "-t", "#")...)
			if !strings.Contains(out2, "denied") {
				t.Errorf("mosquitto_sub '#' was not denied: %v\n%s", err, out2)
			}
			await(t, "the end of the session", func() bool { return !b.Online("pi-1") })
		})
	}
	out, err := run(t, pub, "-h", "127.0.0.1", "-p", port(plain), "-V", "mqttv5", "-u", "pi-1", "-i", "pi-1", "-t", "x",
		"-m", "x")
	if err == nil || !strings.Contains(strings.ToLower(out), "unsupported protocol version") {
		t.Errorf("MQTT 5: %v\n%s", err, out)
	}
}

func port(l net.Listener) string {
	_, p, _ := net.SplitHostPort(l.Addr().String())
	return p
}

// pemFiles writes a device's certificate and returns Mosquitto's flags for it.
func pemFiles(t *testing.T, dir string, ca *authority, node string) []string {
	return pemOf(t, dir, ca, ca.device(node))
}

func pemOf(t *testing.T, dir string, ca *authority, cert tls.Certificate) []string {
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return []string{
		"--cafile", write("ca.pem", "CERTIFICATE", ca.cert.Raw),
		"--cert", write("cert.pem", "CERTIFICATE", cert.Certificate[0]),
		"--key", write("key.pem", "PRIVATE KEY", key),
	}
}
