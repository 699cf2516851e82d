package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

// recorder is a Handler that records its calls.
type recorder struct {
	mu       sync.Mutex
	heard    []string
	refuse   func(Peer) error
	ahead    atomic.Int64 // leases that announce a newer status or list of pods
	stranger atomic.Bool  // set: every peer has lost its node after its CONNECT
	status   func(ctx context.Context) error
	lease    func(wire.Lease)
}

func (d *recorder) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = append(d.heard, fmt.Sprintf(format, args...))
}

func (d *recorder) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.heard)
}

// count returns the number of records with a prefix.
func (d *recorder) count(prefix string) (n int) {
	for _, s := range d.all() {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func (d *recorder) Connect(p Peer) error {
	if d.refuse != nil {
		return d.refuse(p)
	}
	return nil
}
func (d *recorder) Connected(p Peer)    { d.note("connected %s %s", p.Node, p.Machine) }
func (d *recorder) Disconnected(p Peer) { d.note("disconnected %s %s", p.Node, p.Machine) }
func (d *recorder) Lease(p Peer, l wire.Lease) {
	if l.Status+l.Pods > 0 {
		d.ahead.Add(1)
	}
	d.note("lease %s %d", p.Node, l.Seq)
	if d.lease != nil {
		d.lease(l)
	}
}
func (d *recorder) Speaks(p Peer) bool { return !d.stranger.Load() }
func (d *recorder) Left(_ context.Context, p Peer, pods wire.Pods) error {
	d.note("left %s %d", p.Node, len(pods.Pods))
	return nil
}
func (d *recorder) Status(ctx context.Context, p Peer, s wire.Status) error {
	if d.status != nil {
		if err := d.status(ctx); err != nil {
			return err
		}
	}
	d.note("status %s %d", p.Node, s.Seq)
	return nil
}
func (d *recorder) Pods(_ context.Context, p Peer, pods wire.Pods) error {
	d.note("pods %s %d", p.Node, pods.Seq)
	return nil
}
func (d *recorder) Event(_ context.Context, p Peer, e wire.Event) error {
	d.note("event %s %s", p.Node, e.Reason)
	return nil
}
func (d *recorder) Presence(p Peer, s wire.Presence) {
	d.note("presence %s %s %s", p.Node, s.Boot, s.State)
}
func (d *recorder) Reply(p Peer, id string, r wire.Reply) {
	d.note("reply %s %s %d", p.Node, id, r.Seq)
}
func (d *recorder) Offence(n, what string) { d.note("offence %s %s", n, what) }

// start runs a broker until the test ends.
func start(t testing.TB, cfg Config) *Broker {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = quiet
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	started(t, b)
	return b
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// started runs an existing broker until the test ends.
func started(t testing.TB, b *Broker) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// loopback listens on a free port.
func loopback(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// client is a device that can send raw packets, so that it can misbehave.
type client struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
	id   uint16
}

// connectPacket returns a device's correct CONNECT, changed by mod.
func connectPacket(node string, mod func(*packets.Packet)) packets.Packet {
	pk := packets.Packet{
		FixedHeader:     packets.FixedHeader{Type: packets.Connect},
		ProtocolVersion: 4,
		Connect: packets.ConnectParams{
			ProtocolName: []byte("MQTT"), Clean: true, Keepalive: 10, ClientIdentifier: node,
			UsernameFlag: true, Username: []byte(node),
		},
	}
	if mod != nil {
		mod(&pk)
	}
	return pk
}

func willOf(topic, payload string) func(*packets.Packet) {
	return func(pk *packets.Packet) {
		pk.Connect.WillFlag, pk.Connect.WillTopic, pk.Connect.WillPayload = true, topic, []byte(payload)
	}
}

// connect sends a CONNECT and returns the code of the CONNACK, or -1 without a CONNACK.
func connect(t testing.TB, c net.Conn, pk packets.Packet) (*client, int) {
	t.Helper()
	cl := &client{t: t, conn: c, r: bufio.NewReader(c)}
	cl.send(pk)
	ack, err := cl.read()
	if err != nil {
		return cl, -1
	}
	return cl, int(ack.ReasonCode)
}

// dialDev connects a node to a development listener.
func dialDev(t testing.TB, addr net.Addr, node string, mod func(*packets.Packet)) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	cl, code := connect(t, c, connectPacket(node, mod))
	if code != 0 {
		t.Fatalf("%s was refused with %d", node, code)
	}
	return cl
}

// dialPipe is dialDev in memory.
func dialPipe(t testing.TB, n *pipe.Net, node string, mod func(*packets.Packet)) *client {
	t.Helper()
	c, err := n.Dial(context.Background(), node)
	if err != nil {
		t.Fatal(err)
	}
	cl, code := connect(t, c, connectPacket(node, mod))
	if code != 0 {
		t.Fatalf("%s was refused with %d", node, code)
	}
	return cl
}

func encode(pk packets.Packet) []byte {
	buf := new(bytes.Buffer)
	var err error
	switch pk.FixedHeader.Type {
	case packets.Connect:
		err = pk.ConnectEncode(buf)
	case packets.Publish:
		err = pk.PublishEncode(buf)
	case packets.Subscribe:
		err = pk.SubscribeEncode(buf)
	case packets.Pingreq:
		err = pk.PingreqEncode(buf)
	case packets.Disconnect:
		err = pk.DisconnectEncode(buf)
	default:
		err = errors.ErrUnsupported
	}
	if err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// deadline is far away in real time, because the machine may be busy.
func (c *client) deadline() time.Time {
	if c.conn.RemoteAddr().Network() == "tcp" {
		return time.Now().Add(patience)
	}
	return time.Now().Add(5 * time.Second)
}

func (c *client) send(pk packets.Packet) {
	_ = c.conn.SetWriteDeadline(c.deadline())
	_, _ = c.conn.Write(encode(pk))
}

// read returns the next packet, or an error after five seconds of fake time.
func (c *client) read() (packets.Packet, error) {
	_ = c.conn.SetReadDeadline(c.deadline())
	var pk packets.Packet
	pk.ProtocolVersion = 4
	first, err := c.r.ReadByte()
	if err != nil {
		return pk, err
	}
	if err := pk.FixedHeader.Decode(first); err != nil {
		return pk, err
	}
	n, _, err := packets.DecodeLength(c.r)
	if err != nil {
		return pk, err
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return pk, err
	}
	switch pk.FixedHeader.Type {
	case packets.Connack:
		err = pk.ConnackDecode(body)
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Puback:
		err = pk.PubackDecode(body)
	case packets.Suback:
		err = pk.SubackDecode(body)
	}
	return pk, err
}

// subscribe returns the codes of the SUBACK.
func (c *client) subscribe(filters ...string) []byte {
	c.t.Helper()
	c.id++
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, ProtocolVersion: 4,
		PacketID: c.id}
	for _, f := range filters {
		pk.Filters = append(pk.Filters, packets.Subscription{Filter: f, Qos: 1})
	}
	c.send(pk)
	ack, err := c.read()
	if err != nil || ack.FixedHeader.Type != packets.Suback {
		c.t.Fatalf("subscribe %q: got %v, %v, want a SUBACK", filters, ack.FixedHeader.Type, err)
	}
	return ack.ReasonCodes
}

// subscribeOwn subscribes to a device's own filters.
func (c *client) subscribeOwn(node string) {
	c.t.Helper()
	f := wire.Filters(wire.DefaultPrefix, node)
	if codes := c.subscribe(f[:]...); !slices.Equal(codes, []byte{1, 1}) {
		c.t.Fatalf("own subscriptions: SUBACK %v", codes)
	}
}

// publish0 publishes at QoS 0, and waits until the broker has read it.
func (c *client) publish0(topic, payload string) {
	c.t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish}, ProtocolVersion: 4, TopicName: topic,
		Payload: []byte(payload)})
	c.ping()
}

// publish1 publishes at QoS 1 and reports whether it received a PUBACK.
func (c *client) publish1(topic, payload string, retain bool) bool {
	c.t.Helper()
	c.id++
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1, Retain: retain},
		ProtocolVersion: 4, PacketID: c.id, TopicName: topic, Payload: []byte(payload)})
	ack, err := c.read()
	return err == nil && ack.FixedHeader.Type == packets.Puback && ack.PacketID == c.id
}

// ping fails the test unless the connection is alive.
func (c *client) ping() {
	c.t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}, ProtocolVersion: 4})
	ack, err := c.read()
	if err != nil || ack.FixedHeader.Type != packets.Pingresp {
		c.t.Fatalf("the connection is dead: got packet %v, %v, want PINGRESP", ack.FixedHeader.Type, err)
	}
}

// topicOf returns a topic of a node.
func topicOf(node string, c wire.Channel) string { return wire.Topic(wire.DefaultPrefix, node, c) }

// patience is how long a test waits for an expected event.
const patience = 2 * time.Minute

// await waits for a change by another goroutine.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// authority issues certificates for tests.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	a := &authority{t: t, cert: cert, key: key, pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

// issue issues a certificate that expires at until.
func (a *authority) issue(subject pkix.Name, until time.Time) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(0xbeef), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until, DNSNames: []string{"hub.test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) device(node string) tls.Certificate {
	return a.issue(pkix.Name{CommonName: node, Organization: []string{Organization}}, time.Now().Add(time.Hour))
}

func (a *authority) server() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.issue(pkix.Name{CommonName: "hub.test"},
		time.Now().Add(time.Hour))}, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

func (a *authority) client(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: a.pool, ServerName: "hub.test", Certificates: certs}
}
