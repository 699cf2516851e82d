package broker

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/shared/wire"
)

// Packets of MQTT Explorer, recorded from its library (MQTT.js 5.16.0) with its options: a CONNECT
// of 3.1.1 with a keep-alive of a minute, and each subscription in its own packet. MQTT Explorer
// always sends the first two subscriptions.
var explorer = map[string]string{
	"connect":   "102200044d5154540402003c00166d7174742d6578706c6f7265722d3466326139633064",
	"subscribe": "8206a7d600012300" + "820ba7d70006245359532f2300" + "820fa7d8000a666c6565742f76312f2300",
	"ping":      "c000",
	"end":       "e000",
}

// MQTT Explorer connects with an observer's certificate. The broker refuses its fixed subscriptions
// without closing the connection, and grants the fleet's topics.
func TestMQTTExplorerObserves(t *testing.T) {
	observing(t, func(w *world) {
		dev := w.device("pi-1")
		raw, err := w.n.Dial(w.Context(), "explorer")
		if err != nil {
			w.Fatal(err)
		}
		conn := tls.Client(raw, w.ca.client(w.ca.issue(pkix.Name{CommonName: ObserverPrefix + "kari",
			Organization: []string{ObserverOrganization}}, time.Now().Add(time.Hour))))
		c := &client{t: w, conn: conn, r: bufio.NewReader(conn)}
		say := func(what string) {
			w.Helper()
			text, err := hex.DecodeString(explorer[what])
			if err != nil {
				w.Fatal(err)
			}
			if _, err := conn.Write(text); err != nil {
				w.Fatalf("%s: %v", what, err)
			}
		}
		next := func(kind byte) packets.Packet {
			w.Helper()
			pk, err := c.read()
			if err != nil || pk.FixedHeader.Type != kind {
				w.Fatalf("got packet %d, want %d: %v", pk.FixedHeader.Type, kind, err)
			}
			return pk
		}
		say("connect")
		if pk := next(packets.Connack); pk.ReasonCode != 0 {
			w.Fatalf("CONNACK %d", pk.ReasonCode)
		}
		say("subscribe")
		for i, want := range []byte{0x80, 0x80, 0} {
			if pk := next(packets.Suback); int(pk.PacketID) != 0xa7d6+i || !bytes.Equal(pk.ReasonCodes, []byte{want}) {
				w.Errorf("SUBACK %x of %x, want %x", pk.ReasonCodes, pk.PacketID, want)
			}
		}
		dev.publish0(topicOf("pi-1", wire.ChannelLease), `{"boot":"b1","seq":1}`)
		if got := c.next(); !slices.Contains(got, `fleet/v1/nodes/pi-1/lease {"boot":"b1","seq":1}`) {
			w.Errorf("the observer receives %q", got)
		}
		time.Sleep(time.Minute)
		say("ping")
		next(packets.Pingresp)
		say("end")
		if _, err := c.read(); err == nil {
			w.Error("the connection stays open after DISCONNECT")
		}
	})
}
