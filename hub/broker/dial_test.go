package broker

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/line/linetest"
	"flotilla.dev/shared/wire"
)

const radio = 20_000 / 8 // bytes a second of a line of 20 kbit/s

// across returns a hub that reaches its broker over a slow line.
func across(t *testing.T) (h *hubBehind, over *linetest.Line) {
	h = behindBroker(t, func(c *ClientConfig) {
		over = linetest.New(t, c.Servers[0], 1<<20, 1<<20)
		c.Servers = []string{over.Addr}
		c.dial = linetest.Dial
	})
	h.say("lease", lease("b1", 1))
	await(t, "the first lease", func() bool { return h.Online("pi-1") })
	return h, over
}

// A desired state that takes 10 s to send does not end the connection. If it took more than 15 s,
// the broker would close the connection, because only complete packets count for its keep-alive.
func TestTheConnectionToABrokerMayBeSlow(t *testing.T) {
	t.Parallel()
	h, over := across(t)
	var got atomic.Int64
	look := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + h.address).SetClientID("look").SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { got.Store(int64(len(m.Payload()))) }))
	look.Connect().WaitTimeout(patience)
	defer look.Disconnect(0)
	look.Subscribe("fleet/v1/nodes/pi-1/desired", 0, nil).WaitTimeout(patience)
	over.Up.Set(radio)
	over.Down.Set(radio)
	const size = 24 << 10
	if err := h.Publish("pi-1", wire.ChannelDesired, bytes.Repeat([]byte(" "), size)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); got.Load() != size; time.Sleep(time.Second) {
		if h.say("lease", lease("b1", 2)); time.Now().After(end) {
			t.Fatal("the desired state has not arrived in 30 s")
		}
	}
	if n := h.b.stats.accepted.Load(); n != 1 {
		t.Errorf("the hub has connected %d times", n)
	}
}

// The hub closes the connection to a silent broker long before any grace period ends.
func TestTheHubDisconnectsFromASilentBroker(t *testing.T) {
	t.Parallel()
	h, over := across(t)
	over.Up.Set(0)
	over.Down.Set(0)
	h.say("lease", lease("b1", 2)) // both directions still deliver the bytes on their way
	_ = h.Request("pi-1", "x", wire.Request{Type: wire.RequestRefresh})
	began := time.Now()
	await(t, "the hub to notice", func() bool { return !h.Connected() })
	if took := time.Since(began); took < 10*time.Second {
		t.Errorf("the hub disconnected after %s, too early", took)
	}
	over.Up.Set(1 << 20)
	over.Down.Set(1 << 20)
	await(t, "the next connection", h.Connected)
}
