package link

import (
	"io"
	"log/slog"
	"net"
	"testing"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/line/linetest"
)

// Some lines lose large packets, so the device limits the broker's packets by the MSS in its SYN.
func TestABrokerIsAskedForSmallPackets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a := &agent{}
	l, err := New(Config{
		Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1",
		Server: "mqtt://" + listener.Addr().String(), Source: a, Sink: a,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.link = l
	go func() { _ = l.Run(t.Context()) }()
	c, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if size := linetest.Sends(t, c); size > line.Packet {
		t.Errorf("the broker sends packets of %d bytes, want at most %d", size, line.Packet)
	}
}
