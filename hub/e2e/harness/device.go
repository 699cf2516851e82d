package harness

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"flotilla.dev/device/join"
	"flotilla.dev/shared/wire"
)

// A Device is a device that has joined the hub. An attacker may use it.
type Device struct {
	Hub     *Hub
	ID      join.Identity
	Machine string
	Boot    string
	Seq     uint64
	Lease   uint64
}

// Token creates a join token and returns it.
func (a *Hub) Token(ctx context.Context, args ...string) (string, error) {
	line, err := a.Command(ctx, "", append([]string{"token", "create"}, args...)...)
	if err != nil {
		return "", err
	}
	words := strings.Fields(line)
	return words[len(words)-1], nil
}

// Join joins a device: it uses a token, creates a key and receives a certificate.
func (a *Hub) Join(ctx context.Context, token, node, machine string) (*Device, error) {
	id, err := join.Join(ctx, join.Options{URL: "https://" + a.HTTPS, Token: token, Node: node, MachineID: machine,
		AgentVersion: "0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &Device{Hub: a, ID: id, Machine: machine, Boot: "boot-" + machine}, nil
}

// NewDevice is Join with a new token.
func (a *Hub) NewDevice(ctx context.Context, node, machine string) (*Device, error) {
	token, err := a.Token(ctx, "--site", "oslo")
	if err != nil {
		return nil, err
	}
	return a.Join(ctx, token, node, machine)
}

// A Link is an MQTT connection that encodes packets itself, because a client library refuses to
// send attacks.
type Link struct {
	net.Conn
	mu      sync.Mutex // guards writes to the connection
	Prefix  string
	Packets chan mqttPacket // received packets, except acknowledgements
	acked   chan struct{}
	pong    chan struct{}
	over    chan struct{}
}

type mqttPacket struct {
	Topic   string
	Payload []byte
}

var errRefused = errors.New("refused")

// Connect opens a link with a client ID. The error of a refusal has the return code.
func (d *Device) Connect(ctx context.Context, clientID string) (*Link, error) {
	cfg, err := d.ID.TLS(time.Now())
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}, Config: cfg}
	conn, err := dialer.DialContext(ctx, "tcp", d.Hub.MQTT)
	if err != nil {
		return nil, err
	}
	return greet(conn, clientID, "", d.ID.Node)
}

func (d *Device) ClientID() string { return d.ID.Node + ":" + d.Machine }

// Plain opens a link through the development listener, which needs only the node's name.
func (a *Hub) Plain(node, clientID string) (*Link, error) {
	conn, err := net.DialTimeout("tcp", a.Dev, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return greet(conn, clientID, node, node)
}

func greet(conn net.Conn, clientID, user, node string) (*Link, error) {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	body, flags := Text(nil, "MQTT"), byte(2)
	if user != "" {
		flags |= 0x80
	}
	body = Text(append(body, 4, flags, 0, 60), clientID)
	if user != "" {
		body = Text(body, user)
	}
	if _, err := conn.Write(Packet(0x10, body)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	answer := make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || answer[3] != 0 {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: CONNACK %x %v", errRefused, answer, err)
	}
	_ = conn.SetDeadline(time.Time{})
	l := &Link{Conn: conn, Prefix: wire.NodePrefix(wire.DefaultPrefix, node), Packets: make(chan mqttPacket, 256),
		acked: make(chan struct{}, 1024), pong: make(chan struct{}, 64), over: make(chan struct{})}
	go l.read()
	return l, nil
}

func (l *Link) read() {
	defer close(l.over)
	defer l.Close()
	for {
		head := make([]byte, 1)
		if _, err := io.ReadFull(l, head); err != nil {
			return
		}
		n, err := binary.ReadUvarint(byteReader{l})
		if err != nil || n > wire.MaxToDevice+1024 {
			return
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(l, body); err != nil {
			return
		}
		switch head[0] >> 4 {
		case 3:
			size := int(binary.BigEndian.Uint16(body))
			p := mqttPacket{string(body[2 : 2+size]), body[2+size:]}
			select {
			case l.Packets <- p:
			default: // dropped if the test does not read them
			}
		case 4:
			offer(l.acked)
		case 13:
			offer(l.pong)
		}
	}
}

func offer(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

type byteReader struct{ io.Reader }

func (r byteReader) ReadByte() (byte, error) {
	b := make([]byte, 1)
	_, err := io.ReadFull(r.Reader, b)
	return b[0], err
}

func (l *Link) Send(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.SetWriteDeadline(time.Now().Add(20 * time.Second))
	_, err := l.Write(b)
	return err
}

// Publish sends on one of the node's channels at QoS 1. It does not wait for the acknowledgement.
func (l *Link) Publish(channel string, payload []byte) error {
	return l.Send(Packet(0x32, append(append(Text(nil, l.Prefix+channel), 0, 1), payload...)))
}

// PublishAcked is Publish that waits for the acknowledgement.
func (l *Link) PublishAcked(ctx context.Context, channel string, payload []byte) error {
	if err := l.Publish(channel, payload); err != nil {
		return err
	}
	select {
	case <-l.acked:
		return nil
	case <-l.over:
		return errors.New("the hub closed the connection")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Link) Subscribe(topic string) error {
	return l.Send(Packet(0x82, append(Text([]byte{0, 1}, topic), 0)))
}

// Ping sends a ping and waits for the response. The hub has then handled all packets before the
// ping.
func (l *Link) Ping(within time.Duration) error {
	if err := l.Send([]byte{0xc0, 0}); err != nil {
		return err
	}
	select {
	case <-l.pong:
		return nil
	case <-l.over:
		return errors.New("the hub closed the connection")
	case <-time.After(within):
		return fmt.Errorf("no response to a ping within %s", within)
	}
}

// Chatter answers every request with the same text, repeated.
func (l *Link) Chatter(text string, chunks int) {
	for {
		var p mqttPacket
		select {
		case p = <-l.Packets:
		case <-l.over:
			return
		}
		id, question := strings.CutPrefix(p.Topic, l.Prefix+"request/")
		var r wire.Request
		if !question || json.Unmarshal(p.Payload, &r) != nil || r.Type == wire.RequestAck || r.Type == wire.RequestCancel ||
			r.Type == wire.RequestRefresh {
			continue
		}
		go func() {
			for i := range chunks {
				reply, _ := json.Marshal(map[string]any{"seq": i, "data": []byte(text)})
				if l.Publish("reply/"+id, reply) != nil {
					return
				}
				time.Sleep(10 * time.Millisecond) // the rate of a real link
			}
		}()
	}
}

func (l *Link) Open() bool {
	select {
	case <-l.over:
		return false
	default:
		return true
	}
}

// address returns an address that other machines at the site are unlikely to use. Otherwise the hub
// would report it in events, which cost more than the status itself.
func (d *Device) address() string {
	h := sha256.Sum256([]byte(d.ID.Node))
	return netip.AddrFrom4([4]byte{10, h[0], h[1], h[2]}).String()
}

// Good returns a valid status. fields replaces or adds fields; inner does so below "status".
func (d *Device) Good(inner map[string]any, fields map[string]any) []byte {
	d.Seq++
	status := map[string]any{
		"capacity":    map[string]any{"cpu": "4", "memory": "4Gi", "pods": "110"},
		"allocatable": map[string]any{"cpu": "4", "memory": "4Gi", "pods": "110"},
		"conditions":  []map[string]any{{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it plays"}},
		"addresses": []map[string]any{{"type": "Hostname", "address": d.ID.Node},
			{"type": "InternalIP", "address": d.address()}},
		"nodeInfo": map[string]any{"operatingSystem": "linux", "architecture": "arm64"},
	}
	for k, v := range inner {
		status[k] = v
	}
	body := map[string]any{"boot": d.Boot, "seq": d.Seq, "time": time.Now(), "machineID": d.Machine, "agentVersion": "0",
		"status": status}
	for k, v := range fields {
		body[k] = v
	}
	payload, err := json.Marshal(body)
	if err != nil {
		panic(err) // a mistake in the attack's code
	}
	return payload
}

func (d *Device) Renewal() []byte {
	d.Lease++
	return wire.AppendLease(nil, wire.Lease{Boot: d.Boot, Seq: d.Lease, Status: d.Seq, Desired: 1 << 40, Time: time.Now()})
}

// Online connects, reports a status, and renews the lease once.
func (d *Device) Online(ctx context.Context) (*Link, error) {
	l, err := d.Connect(ctx, d.ClientID())
	if err != nil {
		return nil, err
	}
	for _, f := range wire.Filters(wire.DefaultPrefix, d.ID.Node) {
		if err := l.Subscribe(f); err != nil {
			return nil, err
		}
	}
	if err := l.PublishAcked(ctx, "status", d.Good(nil, nil)); err != nil {
		return nil, err
	}
	return l, l.Send(Packet(0x30, append(Text(nil, l.Prefix+"lease"), d.Renewal()...)))
}

func Text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func Packet(head byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{head}, uint64(len(body))), body...)
}
