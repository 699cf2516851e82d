package sim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/link"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/pki"
	"flotilla.dev/shared/line/linetest"
	"flotilla.dev/shared/wire"
)

// A heard is a hub and a device that count their messages.
type heard struct {
	mu     sync.Mutex
	times  map[string]int
	status wire.Status
	kept   int64  // generation that the device stores
	stored func() // reports the generation to the link
}

func (h *heard) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times[what]++
}

func (h *heard) of(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.times[what]
}

func (*heard) Connect(broker.Peer) error                            { return nil }
func (*heard) Speaks(broker.Peer) bool                              { return true }
func (h *heard) Connected(broker.Peer)                              { h.count("connected") }
func (h *heard) Disconnected(broker.Peer)                           { h.count("disconnected") }
func (h *heard) Lease(broker.Peer, wire.Lease)                      { h.count("lease") }
func (*heard) Left(context.Context, broker.Peer, wire.Pods) error   { return nil }
func (*heard) Presence(broker.Peer, wire.Presence)                  {}
func (*heard) Reply(broker.Peer, string, wire.Reply)                {}
func (h *heard) Offence(_, what string)                             { h.count("offence: " + what) }
func (*heard) Event(context.Context, broker.Peer, wire.Event) error { return nil }
func (h *heard) Pods(context.Context, broker.Peer, wire.Pods) error {
	h.count("pods")
	return nil
}
func (h *heard) Status(_ context.Context, _ broker.Peer, s wire.Status) error {
	h.count(fmt.Sprintf("status with %d images", len(s.Status.Images)))
	return nil
}

type slowDevice struct{ *heard }

func (d slowDevice) Status() wire.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.heard.status
}
func (slowDevice) Pods() wire.Pods { return wire.Pods{} }
func (d slowDevice) StoredGeneration() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kept
}
func (d slowDevice) Request(string, wire.Request) {}
func (d slowDevice) Desired(w wire.Desired) {
	d.mu.Lock()
	d.times["desired"]++
	d.kept = w.Generation
	d.mu.Unlock()
	d.stored()
}

// noise returns text of this size that gzip cannot reduce.
func noise(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw)
	return base64.StdEncoding.EncodeToString(raw)
}

// A site has a line of 20 kbit/s. A status of 40 kB goes up and a desired state of 200 kB down at
// the same time. Each arrives once over one connection, and leases continue.
func TestALineOf20KilobitsCarriesBothDirections(t *testing.T) {
	if testing.Short() {
		t.Skip("200 kB take a minute and a half on such a line")
	}
	t.Parallel() // it runs in real time, unlike tests in a bubble
	for _, secure := range []bool{false, true} {
		rate := int64(20_000 / 8)
		if !secure { // for development: the same on a line that is four times as fast
			rate *= 4
		}
		t.Run(fmt.Sprintf("TLS=%v", secure), func(t *testing.T) {
			t.Parallel()
			log := slog.New(slog.NewTextHandler(io.Discard, nil))
			h := &heard{times: map[string]int{}}
			l := linetest.Listen(t)
			cfg := broker.Config{Handler: h, Log: log, DevListen: l}
			device := link.Config{Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1", Source: slowDevice{h},
				Sink: slowDevice{h}, Log: log}
			over := linetest.New(t, l.Addr().String(), rate, rate)
			device.Server = "mqtt://" + over.Addr
			if secure {
				cfg.Listen, cfg.DevListen = l, nil
				cfg.TLS, device.TLS = certified(t, log)
				device.Server = "mqtts://" + over.Addr
			}
			b, err := broker.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			lk, err := link.New(device)
			if err != nil {
				t.Fatal(err)
			}
			h.stored = lk.DesiredStored
			ctx, cancel := context.WithCancel(t.Context())
			var both sync.WaitGroup
			defer both.Wait()
			defer cancel()
			both.Go(func() { _ = b.Run(ctx) })
			both.Go(func() { _ = lk.Run(ctx) })

			await := func(what string, within time.Duration, ok func() bool) {
				t.Helper()
				for end := time.Now().Add(within); !ok(); time.Sleep(20 * time.Millisecond) {
					if time.Now().After(end) {
						h.mu.Lock()
						defer h.mu.Unlock()
						_, err := lk.Online()
						t.Fatalf("waited %s for %s; received %v; %v", within, what, h.times, err)
					}
				}
			}
			await("the first lease", time.Minute, func() bool { return h.of("lease") > 0 })
			began, leases := time.Now(), h.of("lease")
			large := wire.Status{Status: corev1.NodeStatus{Images: []corev1.ContainerImage{}}}
			for range 100 {
				large.Status.Images = append(large.Status.Images, corev1.ContainerImage{Names: []string{noise(400)}})
			}
			h.mu.Lock()
			h.status = large
			h.mu.Unlock()
			lk.StatusChanged()
			desired, err := json.Marshal(wire.Desired{Generation: 7, Hub: "h1", Time: time.Now(),
				ConfigMaps: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n"},
					Data: map[string]string{"c": noise(150 << 10)}}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Publish("pi-1", wire.ChannelDesired, desired); err != nil {
				t.Fatal(err)
			}
			await("the status", 3*time.Minute, func() bool { return h.of("status with 100 images") > 0 })
			up := time.Since(began)
			await("the desired state", 3*time.Minute, func() bool { return h.of("desired") > 0 })
			down := time.Since(began)
			time.Sleep(12 * time.Second) // until a message that seems lost would be repeated
			t.Logf("status after %s, desired state of %d bytes after %s, %d leases", up, len(desired), down,
				h.of("lease")-leases)
			if n := h.of("status with 100 images"); n != 1 {
				t.Errorf("the status arrived %d times", n)
			}
			if n := h.of("desired"); n != 1 {
				t.Errorf("the desired state arrived %d times", n)
			}
			if c, d := h.of("connected"), h.of("disconnected"); c != 1 || d != 0 || over.Dials.Load() != 1 {
				t.Errorf("%d connections, %d accepted and %d ended; want one that stays", over.Dials.Load(), c, d)
			}
			if n := h.of("lease") - leases; n < int(time.Since(began)/(18*time.Second)) {
				t.Errorf("%d leases arrived in %s", n, time.Since(began))
			}
		})
	}
}

// certified returns the TLS settings of a hub and a device.
func certified(t *testing.T, log *slog.Logger) (hub, device *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	a, err := pki.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.NewServer(func() []string { return []string{"127.0.0.1"} }, log)
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.ParseRequest(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.SignDevice(request, "pi-1")
	if err != nil {
		t.Fatal(err)
	}
	hub = a.MQTT(s, func(pki.Holder) error { return nil })
	device = &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{{PrivateKey: key}}}
	device.RootCAs.AppendCertsFromPEM(a.RootPEM())
	for rest := chain.ChainPEM; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return hub, device
		}
		device.Certificates[0].Certificate = append(device.Certificates[0].Certificate, block.Bytes)
	}
}
