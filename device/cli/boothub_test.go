package cli

import (
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

var bootKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// A bootHub simulates the part of a hub that boot configurations need: it publishes a desired state
// and receives the device's status.
type bootHub struct {
	mqtt.HookBase
	t      *testing.T
	server *mqtt.Server
	addr   string
	gen    int64

	sync.Mutex
	text    []byte
	refuses bool // the hub refuses connections
	states  []string
	last    *wire.FirmwareStatus
}

func (h *bootHub) ID() string { return "boot" }
func (h *bootHub) Provides(b byte) bool {
	return b == mqtt.OnConnectAuthenticate || b == mqtt.OnACLCheck
}
func (h *bootHub) OnACLCheck(*mqtt.Client, string, bool) bool { return true }
func (h *bootHub) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool {
	h.Lock()
	defer h.Unlock()
	return !h.refuses
}

func newBootHub(t *testing.T) *bootHub {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &bootHub{t: t, addr: ln.Addr().String(),
		server: mqtt.New(&mqtt.Options{InlineClient: true, Logger: slog.New(slog.DiscardHandler)})}
	if err := h.server.AddHook(h, nil); err != nil {
		t.Fatal(err)
	}
	if err := h.server.AddListener(listeners.NewNet("t", ln)); err != nil {
		t.Fatal(err)
	}
	if err := h.server.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.server.Close() })
	go h.repeat()
	err = h.server.Subscribe("fleet/v1/nodes/pi-1/status", 1,
		func(_ *mqtt.Client, _ packets.Subscription, p packets.Packet) {
			st, err := wire.ParseStatus(p.Payload)
			if err != nil {
				t.Errorf("parse the status: %v", err)
				return
			}
			h.Lock()
			defer h.Unlock()
			if f := st.Firmware; f != nil {
				h.last = f
				if n := len(h.states); n == 0 || h.states[n-1] != f.State {
					h.states = append(h.states, f.State)
				}
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// want publishes the boot configuration that the device must have.
func (h *bootHub) want(f *wire.Firmware) {
	h.gen++
	text, err := json.Marshal(wire.Desired{
		Generation: h.gen, Hub: "01JD8Y3QK8Z6M5N4P3R2S1T0AB", LeaseIntervalSeconds: 1, Time: time.Now(),
		Pods:     []corev1.Pod{},
		Firmware: f, FirmwareKey: bootKey.Public().(ed25519.PublicKey),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.Lock()
	defer h.Unlock()
	h.text = text
}

// repeat publishes the desired state repeatedly, because a device ignores retained messages.
func (h *bootHub) repeat() {
	for {
		select {
		case <-h.t.Context().Done():
			return
		case <-time.After(300 * time.Millisecond):
		}
		h.Lock()
		text := h.text
		h.Unlock()
		if text != nil {
			_ = h.server.Publish("fleet/v1/nodes/pi-1/desired", text, false, 1) // the device may be offline
		}
	}
}

// until waits up to four minutes until the device reports a state.
func (h *bootHub) until(state string) *wire.FirmwareStatus {
	h.t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		h.Lock()
		last := h.last
		h.Unlock()
		if last != nil && last.State == state {
			return last
		}
	}
	h.Lock()
	defer h.Unlock()
	h.t.Fatalf("the device does not reach the state %s: states %v, last %+v", state, h.states, h.last)
	return nil
}
