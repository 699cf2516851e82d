package link

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"flotilla.dev/shared/wire"
)

// count returns how many messages of a kind the hub has received.
func (h *hub) count(what string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.received {
		if m.what == what {
			n++
		}
	}
	return n
}

func TestBehindABrokerUnacknowledgedMessagesAreRepeated(t *testing.T) {
	losses := 0
	h := &hub{external: true}
	h.lose = func(m string) bool {
		if m == "ack event" && losses < 2 {
			losses++
			return true
		}
		return false
	}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		agree(t, h, a, "after connecting")
		h.mu.Lock()
		proof, boot := h.status.Proof, h.status.Boot
		h.mu.Unlock()
		if proof == nil || string(proof.Key) != boot {
			t.Errorf("the status has the proof %+v, want that of boot id %s", proof, boot)
		}
		l.Event(wire.Event{Type: "Normal", Reason: "First"})
		l.Event(wire.Event{Type: "Normal", Reason: "Second"})
		time.Sleep(5 * time.Second)
		if n := h.count("event"); n != 1 {
			t.Errorf("%d events were sent in 5 s without the hub's acknowledgement, want 1", n)
		}
		time.Sleep(time.Minute)
		var got []string
		h.mu.Lock()
		for _, e := range h.events {
			got = append(got, e.Reason)
		}
		h.mu.Unlock()
		if strings.Join(got, " ") != "First First First Second" {
			t.Errorf("the hub received %v", got)
		}
		if n := h.count("connect"); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// A broker accepts connections even if its hub is elsewhere. The device tries another connection,
// ever less often, since the hub may be down.
func TestADeviceLeavesABrokerWithoutAHub(t *testing.T) {
	h := &hub{external: true}
	h.silent.Store(true)
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(2 * time.Minute)
		if n := h.count("connect"); n < 2 {
			t.Errorf("%d connections in two minutes to a broker without a hub, want at least 2", n)
		}
		if !l.Unheard() {
			t.Error("Unheard is false without a hub")
		}
		time.Sleep(24 * time.Hour)
		first := h.count("connect")
		statuses := h.count("status")
		time.Sleep(24 * time.Hour)
		if n := h.count("connect") - first; n > 24*60/5 {
			t.Errorf("%d connections a day to a broker without a hub, want at most one in 5 minutes", n)
		}
		if n := h.count("status") - statuses; n > 24*60 {
			t.Errorf("%d statuses a day without a hub, want at most one a minute", n)
		}
		h.silent.Store(false)
		time.Sleep(6 * time.Minute) // a status is due by then
		agree(t, h, a, "when the hub is back")
		if l.Unheard() {
			t.Error("Unheard is true with a hub")
		}
	})
}

// A broker takes over the hub's own address and gives it back. A device that stayed connected could
// not reach its hub.
func TestABrokerTakesOverTheHubsAddress(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		agree(t, h, a, "after connecting")
		for _, external := range []bool{true, false} {
			with(h, func(h *hub) bool { h.external = external; return external })
			if err := l.SetServer("mqtt://hub:1883", external); err != nil {
				t.Fatal(err)
			}
			a.change(fmt.Sprintf("behind a broker %v", external))
			time.Sleep(10 * time.Second)
			agree(t, h, a, "after the change")
			if proof := with(h, func(h *hub) *wire.Proof { return h.status.Proof }); (proof != nil) != external {
				t.Errorf("behind a broker %v: the status has the proof %+v, want one only behind a broker", external, proof)
			}
			if n := h.count("connect"); external && n != 2 || !external && n != 3 {
				t.Errorf("behind a broker %v: %d connections", external, n)
			}
			if err := l.SetServer("mqtt://hub:1883", external); err != nil { // repeating the same kind of server changes nothing
				t.Fatal(err)
			}
		}
	})
}

// Behind a broker a reply has the device's boot id; a direct connection does not need it.
func TestBehindABrokerAReplyHasTheBootID(t *testing.T) {
	for external, want := range map[bool]string{true: "b1", false: ""} {
		h := &hub{external: external}
		bubble(t, h, func(t *testing.T, l *Link, a *agent) {
			time.Sleep(time.Second)
			s := l.Stream("q1")
			if err := s.Send(t.Context(), wire.Reply{Data: make([]byte, 3*MaxChunk), EOF: true}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			got := with(h, func(h *hub) []wire.Reply { return h.replies })
			if len(got) != 3 {
				t.Fatalf("%d chunks arrived, want 3", len(got))
			}
			for _, r := range got {
				if r.Boot != want {
					t.Errorf("behind a broker %v: chunk %d has boot id %q, want %q", external, r.Seq, r.Boot, want)
				}
			}
		})
	}
}

// A broker admits every copy of a device's certificate and delivers the node's messages to each. A
// device acts on them only once the hub has acknowledged its status.
func TestBehindABrokerOnlyAnAcknowledgedDeviceActs(t *testing.T) {
	h := &hub{external: true}
	h.silent.Store(true)
	order := func(id string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.send(wire.Topic(wire.DefaultPrefix, "pi-1", wire.ChannelDesired), "desired", h.desired)
		h.send(wire.RequestTopic(wire.DefaultPrefix, "pi-1", id), "request", wire.Request{Type: wire.RequestReboot})
	}
	handled := func(a *agent) (stored int64, requests string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.stored, strings.Join(a.requests, ", ")
	}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		with(h, func(h *hub) bool { h.desired = wire.Desired{Generation: 7, Hub: "h"}; return true })
		time.Sleep(time.Second)
		order("q1")
		time.Sleep(time.Hour)
		if stored, requests := handled(a); stored != 0 || requests != "" {
			t.Errorf("before the hub's acknowledgement the device stored generation %d and handled %q", stored, requests)
		}
		h.silent.Store(false)
		time.Sleep(10 * time.Minute) // the next status is due by then
		order("q2")
		time.Sleep(time.Second)
		if stored, requests := handled(a); stored != 7 || requests != "q2 reboot" {
			t.Errorf("after the hub's acknowledgement the device stored generation %d and handled %q, want 7 and q2", stored,
				requests)
		}
		h.silent.Store(true)
		with(h, func(h *hub) bool { _ = h.conn.Close(); return true })
		time.Sleep(5 * time.Second) // the device reconnects meanwhile
		order("q3")
		time.Sleep(5 * time.Second)
		if _, requests := handled(a); requests != "q2 reboot" {
			t.Errorf("in a new connection, before the hub's acknowledgement, the device handled %q, want only q2, from the "+
				"connection before", requests)
		}
		h.silent.Store(false)
		time.Sleep(10 * time.Minute)
	})
	direct := &hub{}
	bubble(t, direct, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		direct.mu.Lock()
		direct.send(wire.RequestTopic(wire.DefaultPrefix, "pi-1", "q1"), "request", wire.Request{Type: wire.RequestReboot})
		direct.mu.Unlock()
		time.Sleep(time.Second)
		if _, requests := handled(a); requests != "q1 reboot" {
			t.Errorf("without a broker the device handled %q, want q1", requests)
		}
	})
}
