package broker

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

func TestADismissedDeviceCanOnlyListItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recorder{}
		n := pipe.New()
		b := start(t, Config{Handler: d, DevListen: n})
		rightful := dialPipe(t, n, "pi-1", nil)
		rightful.subscribeOwn("pi-1")
		d.refuse = func(Peer) error { return &Dismissal{[]byte(`{"dismissed":{}}`)} }
		old := dialPipe(t, n, "pi-1", willOf("fleet/v1/nodes/pi-1/presence", `{"boot":"b","state":"lost"}`))
		old.subscribeOwn("pi-1")
		pk, err := old.read()
		if err != nil || pk.TopicName != "fleet/v1/nodes/pi-1/desired" || string(pk.Payload) != `{"dismissed":{}}` {
			t.Fatalf("the dismissed device receives %q on %q: %v", pk.Payload, pk.TopicName, err)
		}
		old.publish0("fleet/v1/nodes/pi-1/lease", `{"boot":"b","seq":1}`)
		old.publish1("fleet/v1/nodes/pi-1/status", `{"boot":"b","seq":1}`, false)
		old.publish1("fleet/v1/nodes/pi-1/event", `{"boot":"b","type":"Normal","reason":"X"}`, false)
		old.publish1("fleet/v1/nodes/pi-1/pods", `{"boot":"b","seq":1,"pods":[]}`, false)
		if err := b.Publish("pi-1", wire.ChannelDesired, []byte(`{"secrets":[]}`)); err != nil {
			t.Fatal(err)
		}
		if pk, err := rightful.read(); err != nil || string(pk.Payload) != `{"secrets":[]}` {
			t.Errorf("the node's device got %q: %v", pk.Payload, err)
		}
		began := time.Now()
		for err = nil; err == nil; pk, err = old.read() {
			if strings.Contains(string(pk.Payload), "secrets") {
				t.Error("the dismissed device got the desired state")
			}
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the connection was closed after %s", took)
		}
		synctest.Wait()
		for _, said := range d.all() {
			if said != "connected pi-1 " && said != "left pi-1 0" {
				t.Errorf("the Handler received %q", said)
			}
		}
		if d.count("left pi-1") != 1 || !b.Online("pi-1") {
			t.Errorf("received %q", d.all())
		}
		_ = rightful.conn.Close()
	})
}

func TestADismissedDeviceWithoutASubscriptionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recorder{refuse: func(Peer) error { return &Dismissal{[]byte("{}")} }}
		n := pipe.New()
		start(t, Config{Handler: d, DevListen: n})
		old := dialPipe(t, n, "pi-1", nil)
		began := time.Now()
		for err := error(nil); err == nil && time.Since(began) < time.Minute; time.Sleep(time.Second) {
			old.ping()
			_, err = old.read()
		}
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("the connection was closed after %s", took)
		}
	})
}

func TestADeviceReplacedDuringConnectGetsNoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recorder{}
		d.stranger.Store(true)
		n := pipe.New()
		b := start(t, Config{Handler: d, DevListen: n})
		c, err := n.Dial(context.Background(), "pi-1")
		if err != nil {
			t.Fatal(err)
		}
		if _, code := connect(t, c, connectPacket("pi-1", nil)); code != 5 {
			t.Errorf("the CONNACK is %d", code)
		}
		synctest.Wait()
		if b.Online("pi-1") || d.count("connected") > 0 {
			t.Errorf("the replaced device has a session: %q", d.all())
		}
	})
}
