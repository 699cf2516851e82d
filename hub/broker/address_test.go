package broker

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/pipe"
)

// distant connects from a client address that the test sets.
type distant struct {
	*pipe.Net
	last atomic.Uint32 // last byte of the address in 192.0.2.0/24
}

type distantConn struct {
	net.Conn
	last byte
}

func (d *distant) Accept() (net.Conn, error) {
	c, err := d.Net.Accept()
	if err != nil {
		return nil, err
	}
	return distantConn{c, byte(d.last.Load())}, nil
}

func (c distantConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, c.last), Port: 4711}
}

// from dials from an address, and reports whether the connection is still open a second later.
func (d *distant) from(t *testing.T, last byte) (c net.Conn, open bool) {
	t.Helper()
	d.last.Store(uint32(last))
	c, err := d.Dial(t.Context(), "device")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, err = c.Read(make([]byte, 1))
	var timeout net.Error
	return c, errors.As(err, &timeout) && timeout.Timeout()
}

func TestConnectionsOfOneAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &distant{Net: pipe.New()}
		b := start(t, Config{Handler: &recorder{}, DevListen: n, Limits: Limits{PerAddress: 3, PerAddressRate: 100}})
		var mine []net.Conn
		for i := range 6 {
			c, open := n.from(t, 1)
			if open != (i < 3) {
				t.Errorf("connection %d is open: %t", i+1, open)
			}
			mine = append(mine, c)
		}
		if got := b.Stats().Refused[reasonNames[perAddress]]; got != 3 {
			t.Errorf("%d connections are counted as refused", got)
		}
		if _, open := n.from(t, 2); !open {
			t.Error("a connection of another address is refused")
		}
		_ = mine[0].Close()
		synctest.Wait()
		if _, open := n.from(t, 1); !open {
			t.Error("a closed connection still counts")
		}
	})
}

func TestTheConnectionRateOfOneAddressIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &distant{Net: pipe.New()}
		b := start(t, Config{Handler: &recorder{}, DevListen: n, Limits: Limits{PerAddressRate: 5}})
		n.last.Store(1)
		for range 40 {
			c, err := n.Dial(t.Context(), "device")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		synctest.Wait()
		if got := b.Stats().Connections; got != 20 {
			t.Errorf("%d of 40 connections at once are open, want a burst of 20", got)
		}
	})
}

// A refused connection does not count as an open connection of its address.
func TestARefusedConnectionDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &distant{Net: pipe.New()}
		start(t, Config{Handler: &recorder{}, DevListen: n,
			Limits: Limits{Connections: 2, PerAddress: 5, PerAddressRate: 100}})
		first, _ := n.from(t, 1)
		n.from(t, 1)
		for range 20 {
			if _, open := n.from(t, 1); open {
				t.Fatal("a third connection is open")
			}
		}
		_ = first.Close()
		synctest.Wait()
		if _, open := n.from(t, 1); !open {
			t.Error("refused connections still count")
		}
	})
}

// The Handler receives the agent's boot, and a CONNECT that violates the protocol gets no session.
func TestConnectNamesTheBoot(t *testing.T) {
	var seen atomic.Pointer[Peer]
	d := &recorder{refuse: func(p Peer) error { seen.Store(&p); return nil }}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		dialPipe(t, n, "pi-1", willOf(topicOf("pi-1", "presence"), `{"boot":"b1","state":"lost"}`))
		if p := seen.Load(); p == nil || p.Node != "pi-1" || p.Boot != "b1" || !p.Dev || p.Key != "" {
			t.Errorf("the Handler received %+v", p)
		}
		for name, mod := range map[string]func(*packets.Packet){
			"another protocol's name": func(pk *packets.Packet) { pk.Connect.ProtocolName = []byte("MQTX") },
			"a password without a user": func(pk *packets.Packet) {
				pk.Connect.UsernameFlag, pk.Connect.PasswordFlag = false, true
			},
			"a node's name that is a path": func(pk *packets.Packet) { pk.Connect.Username = []byte("../pi-3") },
			"a name with a wildcard": func(pk *packets.Packet) {
				pk.Connect.Username, pk.Connect.ClientIdentifier = []byte("+"), "+"
			},
			"nobody": func(pk *packets.Packet) { pk.Connect.Username, pk.Connect.ClientIdentifier = nil, "" },
		} {
			seen.Store(nil)
			c, err := n.Dial(t.Context(), "pi-2")
			if err != nil {
				t.Fatal(err)
			}
			_, code := connect(t, c, connectPacket("pi-2", mod))
			if code == 0 || seen.Load() != nil {
				t.Errorf("%s: CONNACK %d, and the hub was asked about %+v", name, code, seen.Load())
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
		if b.Online("pi-2") || b.Online("+") {
			t.Error("a refused client has a session")
		}
	})
}
