package broker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

// Disconnect closes the node's session at once, and no other session.
func TestDisconnectEndsOneSession(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		dialPipe(t, n, "pi-1", nil)
		dialPipe(t, n, "pi-2", nil)
		synctest.Wait()
		b.Disconnect("pi-1")
		b.Disconnect("nobody")
		synctest.Wait()
		if b.Online("pi-1") || !b.Online("pi-2") || d.count("disconnected pi-1") != 1 || d.count("disconnected") != 1 {
			t.Errorf("online: %t %t, received %q", b.Online("pi-1"), b.Online("pi-2"), d.all())
		}
	})
}

// After a day of silence a node may send four seconds' worth of packets at once.
func TestABucketHoldsFourSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(10)
		time.Sleep(24 * time.Hour)
		began, n := time.Now(), 0
		for b.take(1); time.Since(began) == 0 && n < 1000; b.take(1) {
			n++
		}
		if n != 40 {
			t.Errorf("%d packets at once", n)
		}
		began = time.Now()
		for range 100 {
			b.take(1)
		}
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("a hundred more packets took %s", took)
		}
	})
}

// Each of the hub's messages goes to one topic of one node.
func TestAMessageGoesToOneTopicOfOneNode(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		dialPipe(t, n, "pi-1", nil)
		synctest.Wait()
		for _, id := range []string{"", "a/b", "+", "#", "a b"} {
			if err := b.Request("pi-1", id, wire.Request{Type: wire.RequestRefresh}); err == nil || errors.Is(err, ErrOffline) {
				t.Errorf("id %q: %v", id, err)
			}
		}
		if err := b.Publish("pi-1", wire.ChannelLease, []byte("{}")); err == nil || errors.Is(err, ErrOffline) {
			t.Errorf("publish on a device's channel: %v", err)
		}
	})
}
