package broker

import (
	"bytes"
	"io"
	"log/slog"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
)

// FuzzConnect reads the first bytes of a client. They are refused, or they are a CONNECT whose
// session has an identity and only its own will.
func FuzzConnect(f *testing.F) {
	for _, change := range []func(*packets.Packet){
		nil,
		func(pk *packets.Packet) { pk.Connect.ClientIdentifier = "pi-1:3f2a9c0d1e4b5a67" },
		func(pk *packets.Packet) {
			pk.Connect.WillFlag, pk.Connect.WillTopic, pk.Connect.WillPayload = true, topicOf("pi-1", "presence"), []byte(`{"boot":"b","state":"lost"}`)
		},
		func(pk *packets.Packet) {
			pk.Connect.WillFlag, pk.Connect.WillTopic, pk.Connect.WillRetain = true, "fleet/v1/nodes/pi-2/presence", true
		},
	} {
		var b bytes.Buffer
		pk := connectPacket("pi-1", change)
		if err := pk.ConnectEncode(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte{0x10, 0xff, 0xff, 0xff, 0x7f})
	f.Add([]byte{0x10, 2, 0, 4})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	b, err := New(Config{Handler: &recorder{}, Log: slog.New(slog.DiscardHandler), DevListen: loopback(f)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		seen, pk, ref := readConnect(bytes.NewReader(data))
		if ref != nil {
			return
		}
		if len(seen) > maxConnect {
			t.Errorf("%d bytes were read", len(seen))
		}
		s, ref := b.checkConnect(pk, Peer{Dev: true})
		if ref != nil {
			refuse(io.Discard, pk.ProtocolVersion, ref.code)
			return
		}
		if s.peer.Node == "" || s.peer.Node != pk.Username {
			t.Errorf("accepted as %q", s.peer.Node)
		}
		if pk.WillFlag && (pk.WillRetain || s.will == nil || pk.WillTopic != topicOf(s.peer.Node, "presence")) {
			t.Errorf("accepted with the will %q", pk.WillTopic)
		}
	})
}
