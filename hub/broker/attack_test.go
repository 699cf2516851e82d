package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

func TestPublishingForOtherNodesIsDroppedAndReported(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		victim := dialPipe(t, n, "pi-2", nil)
		victim.subscribeOwn("pi-2")
		bad := dialPipe(t, n, "pi-1", nil)
		topics := []string{
			topicOf("pi-2", wire.ChannelLease), topicOf("pi-2", wire.ChannelStatus), topicOf("pi-2", wire.ChannelPods),
			topicOf("pi-2", wire.ChannelEvent), topicOf("pi-2", wire.ChannelPresence),
			wire.ReplyTopic(wire.DefaultPrefix, "pi-2", "7"),
			topicOf("pi-2", wire.ChannelDesired), wire.RequestTopic(wire.DefaultPrefix, "pi-2", "7"),
			topicOf("pi-1", wire.ChannelDesired), wire.RequestTopic(wire.DefaultPrefix, "pi-1", "7"),
			topicOf("pi-1", "lease/1"), topicOf("pi-1", "reply"), topicOf("pi-1", "reply/a/b"), topicOf("pi-1", ""),
			"fleet/v1/nodes/pi-1", "fleet/v1/nodes/pi-10/lease", "fleet/v2/nodes/pi-1/lease", "lease", "/", "\x01",
			strings.Repeat("/", 30_000), "$SYS/broker/uptime", "$share/g/x", "$", "fleet/v1/nodes/+/lease",
			"fleet/v1/nodes/pi-1/#", "#",
		}
		payload := `{"boot":"b1","seq":1,"type":"Normal","reason":"R","state":"lost"}`
		for _, topic := range topics {
			if !bad.publish1(topic, payload, false) {
				t.Errorf("%.40q at QoS 1 was not acknowledged: the device would repeat it for ever", topic)
			}
			bad.publish0(topic, payload)
		}
		for _, s := range d.all() {
			if !strings.HasPrefix(s, "connected") && !strings.HasPrefix(s, "offence pi-1") {
				t.Errorf("the Handler received %q", s)
			}
		}
		if got, want := b.Stats().Offences["topic"], uint64(2*len(topics)); got != want {
			t.Errorf("%d offences are counted, want %d", got, want)
		}
		if d.count("offence pi-1") != 1 {
			t.Errorf("%d offences reported at once, want 1", d.count("offence pi-1"))
		}
		victim.ping() // pi-2 received nothing before the response
	})
}

func TestOffencesAreReportedOnceInTenSecondsWithTheirNumber(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		bad := dialPipe(t, n, "pi-1", nil)
		for range 101 { // an offence every 100 ms from 0 s to 10 s
			bad.publish0("x", "y")
			time.Sleep(100 * time.Millisecond)
		}
		want := []string{"connected pi-1 ",
			`offence pi-1 published on "x", which is not its topic`,
			`offence pi-1 published on "x", which is not its topic (and 99 more since the last message)`}
		if !slices.Equal(d.all(), want) {
			t.Errorf("received %q, want %q", d.all(), want)
		}
	})
}

func TestForeignSubscriptionsAreRefused(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", nil)
		own := wire.Filters(wire.DefaultPrefix, "pi-1")
		filters := []string{
			"#", "+", "+/#", "+/+/#", "$SYS/#", "$share/g/" + own[0], "$share/g/#", "fleet/v1/nodes/+/desired",
			"fleet/v1/nodes/pi-2/desired",
			"fleet/v1/nodes/pi-2/request/+", "fleet/v1/nodes/pi-1/#", "fleet/v1/nodes/pi-1/+", "fleet/v1/nodes/pi-1/request/7",
			"fleet/v1/nodes/pi-1/request/#", "fleet/v1/nodes/pi-1/lease", own[0] + "/",
		}
		for _, f := range filters {
			if codes := c.subscribe(f); !slices.Equal(codes, []byte{0x80}) {
				t.Errorf("%q: SUBACK %x, want 80", f, codes)
			}
		}
		if codes := c.subscribe("#", own[0], "$SYS/#", own[1]); !slices.Equal(codes, []byte{0x80, 1, 0x80, 1}) {
			t.Errorf("own and foreign filters: SUBACK %x, want only the own one granted", codes)
		}
		other := dialPipe(t, n, "pi-2", nil)
		other.subscribeOwn("pi-2")
		if err := b.Publish("pi-2", wire.ChannelDesired, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if pk, err := other.read(); err != nil || string(pk.Payload) != "x" {
			t.Fatalf("pi-2 got %v %v", pk, err)
		}
		c.ping() // pi-1 received nothing before the response
	})
}

func TestAConnectedDeviceKeepsItsNode(t *testing.T) {
	d := &recorder{refuse: func(p Peer) error {
		if p.Machine != "3f2a9c0d1e4b5a67" {
			return fmt.Errorf("machine %q uses the name of a connected node", p.Machine)
		}
		return nil
	}}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		incumbent := dialPipe(t, n, "pi-1", func(pk *packets.Packet) {
			pk.Connect.ClientIdentifier = "pi-1:3f2a9c0d1e4b5a67"
		})
		conn, _ := n.Dial(t.Context(), "pi-1")
		_, code := connect(t, conn, connectPacket("pi-1", func(pk *packets.Packet) {
			pk.Connect.ClientIdentifier = "pi-1:0000000000000000"
		}))
		if code != 5 {
			t.Errorf("the clone got CONNACK %d, want 5", code)
		}
		incumbent.ping()
		synctest.Wait() // the broker counts after it has sent the response
		if b.Stats().Refused["hub"] != 1 {
			t.Errorf("refused %v", b.Stats().Refused)
		}
		conn.Close()
	})
}

func TestOtherVersionsOfMQTTAreRefusedInTheirOwnFormat(t *testing.T) {
	for _, c := range []struct {
		name, want string
		bytes      []byte
	}{
		{"MQTT 5", "2003008400", []byte{0x10, 17, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 10, 0, 0, 4, 'p', 'i', '-', '1'}},
		{"MQTT 3.1", "20020001", []byte{0x10, 18, 0, 6, 'M', 'Q', 'I', 's', 'd', 'p', 3, 2, 0, 10, 0, 4, 'p', 'i', '-', '1'}},
		{"HTTP", "", []byte("GET / HTTP/1.1\r\n\r\n")},
		{"a PUBLISH first", "", []byte{0x30, 3, 0, 1, 'x'}},
		{"a malformed length", "", []byte{0x10, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"an incomplete CONNECT", "", []byte{0x10, 2, 0, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, &recorder{}, func(t *testing.T, _ *Broker, n *pipe.Net) {
				conn, _ := n.Dial(t.Context(), "pi-1")
				if _, err := conn.Write(c.bytes); err != nil && c.want != "" {
					t.Fatal(err)
				}
				buf := make([]byte, 16)
				k, _ := conn.Read(buf)
				if got := fmt.Sprintf("%x", buf[:k]); got != c.want {
					t.Errorf("answer %q, want %q", got, c.want)
				}
				conn.Close()
			})
		})
	}
}

func TestOnlyOurCertificatesAreAccepted(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	device := pkix.Name{CommonName: "pi-1", Organization: []string{Organization}}
	revoked := errors.New("certificate beef of pi-9 is revoked")
	l := loopback(t)
	d := &recorder{refuse: func(p Peer) error {
		if p.Node == "pi-9" && p.Key != "" {
			return revoked
		}
		return nil
	}}
	b := start(t, Config{Handler: d, Listen: l, TLS: ca.server()})
	for _, c := range []struct {
		name string
		cfg  *tls.Config
		node string
		code int
	}{
		{"a device's certificate", ca.client(ca.device("pi-1")), "pi-1", 0},
		{"none", ca.client(), "pi-1", -1},
		{"an expired certificate", ca.client(ca.issue(device, time.Now().Add(-time.Minute))), "pi-1", -1},
		{"a certificate of another authority", ca.client(other.issue(device, hour)), "pi-1", -1},
		{"a person's", ca.client(ca.issue(pkix.Name{CommonName: "pi-1", Organization: []string{"flotilla:users"}}, hour)), "pi-1", -1},
		{"a certificate with a second organization", ca.client(ca.issue(pkix.Name{CommonName: "pi-1", Organization: []string{Organization, "system:masters"}}, hour)), "pi-1", -1},
		{"a certificate with an invalid node name", ca.client(ca.issue(pkix.Name{CommonName: "PI_1", Organization: []string{Organization}}, hour)), "pi-1", -1},
		{"another node's", ca.client(ca.device("pi-2")), "pi-1", 2},
		{"a revoked certificate", ca.client(ca.device("pi-9")), "pi-9", 5},
		{"TLS 1.1", func() *tls.Config {
			c := ca.client(ca.device("pi-1"))
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			return c
		}(), "pi-1", -1},
		{"TLS 1.2", func() *tls.Config {
			c := ca.client(ca.device("pi-1"))
			c.MaxVersion = tls.VersionTLS12
			return c
		}(), "pi-1", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			cl, code := connect(t, tls.Client(raw, c.cfg), connectPacket(c.node, func(pk *packets.Packet) {
				pk.Connect.Username, pk.Connect.UsernameFlag = []byte("pi-2"), true // the user name is ignored with a certificate
			}))
			if code != c.code {
				t.Fatalf("CONNACK %d, want %d", code, c.code)
			}
			if code == 0 {
				cl.ping()
			}
		})
	}
	t.Run("a certificate that is revoked while it is connected", func(t *testing.T) {
		raw, _ := net.Dial("tcp", l.Addr().String())
		defer raw.Close()
		cl, code := connect(t, tls.Client(raw, ca.client(ca.device("pi-3"))), connectPacket("pi-3", nil))
		if code != 0 {
			t.Fatal(code)
		}
		await(t, "the session", func() bool { return b.Online("pi-3") })
		b.Disconnect("pi-3")
		if _, err := cl.read(); err == nil {
			t.Error("the session of the certificate")
		}
		await(t, "the end of the session", func() bool { return !b.Online("pi-3") && d.count("disconnected pi-3") == 1 })
	})
}

func TestListenersThatWouldBeOpenAreRefusedAtStart(t *testing.T) {
	ca := newAuthority(t)
	everywhere, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	lax := ca.server()
	lax.ClientAuth = tls.VerifyClientCertIfGiven
	local := loopback(t)
	defer local.Close()
	for _, c := range []struct {
		name, want string
		cfg        Config
	}{
		{"the development listener on all addresses", "loopback", Config{Handler: &recorder{}, DevListen: everywhere}},
		{"TLS without client certificates", "client certificates", Config{Handler: &recorder{}, Listen: local, TLS: lax}},
		{"no TLS at all", "client certificates", Config{Handler: &recorder{}, Listen: local}},
		{"nothing to listen on", "no listener", Config{Handler: &recorder{}}},
		{"a prefix with a wildcard", "prefix", Config{Handler: &recorder{}, DevListen: local, Prefix: "a/+"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error about %s", err, c.want)
			}
		})
	}
}

const idleConns = 5000 // number of connections

// The dialling of so many connections takes long on a busy machine, so the broker gives them enough
// time here. The next test checks that they end.
func TestFiveThousandIdleConnectionsCostLittle(t *testing.T) {
	ca := newAuthority(t)
	l, dev := loopback(t), loopback(t)
	d := &recorder{}
	b, err := New(Config{Handler: d, Log: quiet, Listen: l, TLS: ca.server(), DevListen: dev,
		Limits: Limits{Greeting: idleConns}})
	if err != nil {
		t.Fatal(err)
	}
	b.handshakeTimeout = 10 * patience
	started(t, b)
	good := dialDev(t, dev.Addr(), "pi-1", nil)
	before := memory()
	for range idleConns { // raw sockets, which use no memory of this process
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err == nil {
			defer syscall.Close(fd)
			err = syscall.Connect(fd, &syscall.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, "5,000 connections", func() bool { return b.Stats().Connections == idleConns+1 })
	good.publish0(topicOf("pi-1", wire.ChannelLease), `{"boot":"b1","seq":1}`)
	if d.count("lease pi-1") != 1 {
		t.Errorf("a good node's lease is not received: %q", d.all())
	}
	grown := memory() - before
	t.Logf("%d idle connections: %.1f MiB", idleConns, float64(grown)/(1<<20))
	if grown > 32<<20 {
		t.Errorf("5,000 idle connections use %d MiB of memory", grown>>20)
	}
}

func TestFiveThousandIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := pipe.New(), &recorder{}
		b := start(t, Config{Handler: d, DevListen: n, Limits: Limits{Greeting: idleConns}})
		good := dialPipe(t, n, "pi-1", nil)
		for range idleConns {
			c, err := n.Dial(t.Context(), "idle")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		time.Sleep(connectTimeout - time.Millisecond)
		synctest.Wait()
		if got := b.Stats().Connections; got != idleConns+1 {
			t.Fatalf("%d connections before the timeout %s, want %d", got, connectTimeout, idleConns+1)
		}
		began := time.Now()
		good.publish0(topicOf("pi-1", wire.ChannelLease), `{"boot":"b1","seq":1}`)
		if took := time.Since(began); took != 0 || d.count("lease pi-1") != 1 {
			t.Errorf("a good node's lease took %s", took)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if got := b.Stats(); got.Connections != 1 || got.Refused["silent"] != idleConns {
			t.Errorf("%d connections after %s, and %d ended for their silence; want the good one and %d", got.Connections,
				connectTimeout, got.Refused["silent"], idleConns)
		}
	})
}

func TestBadPayloadsAreAcknowledgedDroppedAndReported(t *testing.T) {
	for _, payload := range []string{"", "x", "null", `{"boot":"b1","seq":1e308}`, "{\"boot\":\"\xff\"}", `{"boot":"b1"`, `{"x":"` + strings.Repeat("x", 250<<10) + `"}`} {
		t.Run(fmt.Sprintf("%.20q", payload), func(t *testing.T) {
			d := &recorder{}
			bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
				c := dialPipe(t, n, "pi-1", nil)
				for _, ch := range []wire.Channel{wire.ChannelLease, wire.ChannelStatus, wire.ChannelPods, wire.ChannelEvent,
					wire.ChannelPresence} {
					if !c.publish1(topicOf("pi-1", ch), payload, false) {
						t.Errorf("%s: not acknowledged", ch)
					}
				}
				if got := b.Stats().Offences["payload"]; got != 5 || d.count("offence pi-1 lease: ") != 1 {
					t.Errorf("%d counted; reported %.300q", got, d.all())
				}
			})
		})
	}
}

func TestAFloodIsReadSlowlyAndOthersAreNotDelayed(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		flood, good := dialPipe(t, n, "pi-1", nil), dialPipe(t, n, "pi-2", nil)
		one := encode(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish}, ProtocolVersion: 4, TopicName: topicOf("pi-1", wire.ChannelLease), Payload: []byte(`{"boot":"b1","seq":1}`)})
		stop := time.Now().Add(time.Minute)
		go func() {
			many := bytes.Repeat(one, 100)
			for time.Now().Before(stop) {
				_ = flood.conn.SetWriteDeadline(stop)
				if _, err := flood.conn.Write(many); err != nil {
					return
				}
			}
		}()
		for range 6 {
			began := time.Now()
			good.publish0(topicOf("pi-2", wire.ChannelLease), `{"boot":"b2","seq":1}`)
			if took := time.Since(began); took > 0 {
				t.Errorf("the good node waited %s", took)
			}
			time.Sleep(9 * time.Second)
		}
		if got := d.count("lease pi-1"); got > 100*64 || got < 100*50 {
			t.Errorf("%d messages of the flood were read in about a minute, want about 100 per second", got)
		}
		time.Sleep(time.Minute)
	})
}

func TestASiteBehindOneAddressIsBackWithinTwoLeaseIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Config{Handler: &recorder{}, Log: slog.New(slog.DiscardHandler), DevListen: pipe.New()})
		if err != nil {
			t.Fatal(err)
		}
		ip, began := netip.MustParseAddr("192.0.2.7"), time.Now()
		for in := 0; in < b.cfg.Limits.PerAddress; {
			if b.addresses.Enter(ip) == nil {
				in++
			} else {
				time.Sleep(time.Millisecond)
			}
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%d devices need %s to connect, so some would become Unknown", b.cfg.Limits.PerAddress, took)
		}
	})
}

func TestRunEndsAlthoughAHandlerBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := pipe.New()
		free := make(chan struct{})
		d := &recorder{status: func(context.Context) error { <-free; return nil }}
		b, err := New(Config{Handler: d, DevListen: n})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		c := dialPipe(t, n, "pi-1", nil)
		c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, ProtocolVersion: 4, PacketID: 1, TopicName: topicOf("pi-1", wire.ChannelStatus), Payload: []byte(`{"boot":"b1","seq":1}`)})
		began := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(began) != closeTimeout {
			t.Errorf("Run returned %v after %s, want nil after %s", err, time.Since(began), closeTimeout)
		}
		close(free)
	})
}

func TestNoWillsArePublishedWhenTheHubStops(t *testing.T) {
	d := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		n := pipe.New()
		b, _ := New(Config{Handler: d, DevListen: n})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		dialPipe(t, n, "pi-1", willOf(topicOf("pi-1", wire.ChannelPresence), lostWill))
		synctest.Wait()
		cancel()
		<-done
		if !slices.Equal(d.all(), []string{"connected pi-1 ", "disconnected pi-1 "}) {
			t.Errorf("received %q", d.all())
		}
	})
}

func TestAPanicEndsOneConnectionOnly(t *testing.T) {
	d := &recorder{}
	d.status = func(context.Context) error { panic("a bug") }
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		good, bad := dialPipe(t, n, "pi-2", nil), dialPipe(t, n, "pi-1", nil)
		if bad.publish1(topicOf("pi-1", wire.ChannelStatus), `{"boot":"b1","seq":1}`, false) {
			t.Error("acknowledged")
		}
		good.ping()
		dialPipe(t, n, "pi-1", nil).ping()
		if d.count("disconnected pi-1") != 1 {
			t.Errorf("received %q", d.all())
		}
	})
}

func TestRequestsAndRepliesPass(t *testing.T) {
	d := &recorder{}
	bubble(t, d, func(t *testing.T, b *Broker, n *pipe.Net) {
		c := dialPipe(t, n, "pi-1", nil)
		if err := b.Request("pi-1", "r1", wire.Request{Type: wire.RequestRefresh}); !errors.Is(err, ErrOffline) {
			t.Errorf("before its subscription: %v, want ErrOffline", err)
		}
		c.subscribeOwn("pi-1")
		if err := b.Request("pi-1", "r1", wire.Request{Type: wire.RequestRefresh}); err != nil {
			t.Fatal(err)
		}
		pk, err := c.read()
		if err != nil || pk.TopicName != "fleet/v1/nodes/pi-1/request/r1" || string(pk.Payload) != `{"type":"refresh"}` || pk.FixedHeader.Qos != 0 || pk.FixedHeader.Retain {
			t.Errorf("got %s %s, %v", pk.TopicName, pk.Payload, err)
		}
		c.publish1(wire.ReplyTopic(wire.DefaultPrefix, "pi-1", "r1"), `{"seq":0,"eof":true}`, false)
		c.publish0(topicOf("pi-1", wire.ChannelPods), `{"boot":"b1","seq":3}`)
		c.publish0(topicOf("pi-1", wire.ChannelEvent), `{"boot":"b1","type":"Normal","reason":"Pulled"}`)
		c.publish0(topicOf("pi-1", wire.ChannelPresence), `{"boot":"b1","state":"shutdown"}`)
		if want := []string{"connected pi-1 ", "reply pi-1 r1 0", "pods pi-1 3", "event pi-1 Pulled",
			"presence pi-1 b1 shutdown"}; !slices.Equal(d.all(), want) {
			t.Errorf("received %q, want %q", d.all(), want)
		}
		if err := b.Publish("pi-1", wire.ChannelDesired, make([]byte, wire.MaxToDevice+1)); err == nil ||
			!strings.Contains(err.Error(), "exceed the limit") {
			t.Errorf("a payload over 4 MiB: %v", err)
		}
	})
}

func TestAPanicOfAParserReleasesItsSlot(t *testing.T) {
	b := &Broker{parsers: make(chan struct{}, 1)}
	defer func() {
		if p := recover(); p != "an accident" {
			t.Errorf("parseAndHandle panics with %v, want the parser's panic", p)
		}
		if len(b.parsers) > 0 {
			t.Error("the parser's slot is not released")
		}
	}()
	onGoroutine(func() {
		_ = parseAndHandle(b, statuses, nil, func([]byte) (wire.Status, error) { panic("an accident") },
			func(wire.Status) error { return nil })
	})
}

func TestPacketsWithoutMessagesAreReadAsSlowlyAsMessages(t *testing.T) {
	many := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, ProtocolVersion: 4,
		PacketID: 1}
	for i := range 64 {
		many.Filters = append(many.Filters, packets.Subscription{Filter: fmt.Sprintf("a/%d", i)})
	}
	for _, c := range []struct {
		name   string
		packet []byte
		least  float64 // least number of tokens per packet
	}{
		{"a ping counts as a packet", []byte{0xc0, 0}, 1},
		{"an acknowledgement without a message counts as a packet", []byte{0x40, 2, 0, 9}, 1},
		{"a PUBREL without a message counts as a packet", []byte{0x62, 2, 0, 9}, 1},
		{"eight filters count as one more packet", encode(many), 1 + 64.0/8},
		{"an unsubscription counts as a packet", append([]byte{0xa2, 5, 0, 1, 0, 1}, 'x'), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, &recorder{}, func(t *testing.T, b *Broker, n *pipe.Net) {
				dev := dialPipe(t, n, "pi-1", nil)
				go func() { _, _ = io.Copy(io.Discard, dev.conn) }()
				const count = 1000
				_ = dev.conn.SetDeadline(time.Time{})
				began := time.Now()
				if _, err := dev.conn.Write(bytes.Repeat(c.packet, count)); err != nil {
					t.Fatal(err)
				}
				_, _ = dev.conn.Write([]byte{0xe0, 0}) // the DISCONNECT packet
				for b.Online("pi-1") {
					time.Sleep(10 * time.Millisecond)
				}
				// The first four seconds' worth is a burst.
				if least, took := time.Duration((count*c.least/100-4)*float64(time.Second)),
					time.Since(began); took < least-100*time.Millisecond {
					t.Errorf("%d packets were read in %s, want no less than %s", count, took, least)
				}
			})
		})
	}
}
