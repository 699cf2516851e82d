// Package broker is the hub's MQTT broker: it authenticates devices by certificate, receives their
// messages, and sends them the hub's messages.
//
// It is an MQTT 3.1.1 endpoint with the features of shared/wire: QoS 0 and 1, no retained messages,
// no wildcards, no queue for absent devices, no messages between devices. Observers can watch. A
// session is either idle (package idle) or a goroutine with a small stack. An outbox that never
// blocks the sender holds outgoing messages. The package decides nothing about nodes: it passes
// messages to the Handler of hub/serve. A Client does the same with an external broker.
package broker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/wire"
)

// Config configures a Broker. Handler and one listener are required.
type Config struct {
	Handler Handler
	Log     *slog.Logger // nil: slog.Default()

	// Listen is for devices: TLS that verifies client certificates. The broker closes both
	// listeners when Run ends.
	Listen net.Listener
	TLS    *tls.Config
	// DevListen is for development and simulation, without TLS. The user name is the node. It must
	// be a loopback address or in memory.
	DevListen net.Listener

	// Observers authorizes observers; nil: observers are refused.
	Observers Observers

	Prefix string // prefix of all topics; "": wire.DefaultPrefix

	Limits Limits
}

// Limits limit what clients can make the broker do. A zero value means the default.
type Limits struct {
	Connections int // open connections; default 65536, lowered to what the file limit allows
	Greeting    int // connections before the end of CONNECT; default 2048

	// Limits per client address, except loopback. All devices of a site often have one address, and
	// must reconnect within two lease intervals.
	PerAddress     int     // open connections; default 2048
	PerAddressRate float64 // new connections per second; default 100, with a burst of four seconds

	// NodeRate is packets per second of a node, with a burst of four seconds; default 100. 16 KiB
	// or eight filters count as one more packet. The broker reads faster senders more slowly; they
	// lose nothing.
	NodeRate float64
}

// Errors of Publish and Request.
var (
	ErrOffline = errors.New("node is not connected")
	ErrBacklog = errors.New("node reads too slowly: its outbox is full")
)

// Timeouts.
const (
	connectTimeout   = 10 * time.Second // from accept to the end of CONNECT
	writeTimeout     = 5 * time.Second  // a write without progress
	storeTimeout     = 30 * time.Second // the Handler stores a message
	closeTimeout     = 5 * time.Second  // shutdown, after Run's context ends
	dismissedTimeout = 5 * time.Second  // a dismissed device's connection
	dismissedLinger  = 2 * time.Second  // a dismissed device's connection after the notice was sent
	minKeepAlive     = 10               // seconds
	maxKeepAlive     = 30
)

// A Broker serves devices. Create it with New.
type Broker struct {
	cfg Config
	log *slog.Logger

	stats            counters
	offences         offences
	observers        observers
	addresses        listen.Addresses
	handshakes       chan struct{} // slots for connections before CONNECT
	parsers          chan struct{} // slots for decoding payloads
	closing          atomic.Bool
	handshakeTimeout time.Duration // connectTimeout; tests change it
	handlers         sync.WaitGroup

	mu       sync.Mutex
	open     map[net.Conn]bool
	sessions map[string]*session // by node
}

// New checks the configuration and returns a broker. The broker serves after Run is called.
func New(cfg Config) (*Broker, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = wire.DefaultPrefix
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	if cfg.TLS != nil {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.MinVersion = max(cfg.TLS.MinVersion, tls.VersionTLS12)
	}
	cfg.Limits.fill()
	b := &Broker{
		cfg:              cfg,
		log:              cfg.Log,
		handshakes:       make(chan struct{}, cfg.Limits.Greeting),
		parsers:          make(chan struct{}, runtime.GOMAXPROCS(0)),
		handshakeTimeout: connectTimeout,
		open:             map[net.Conn]bool{},
		sessions:         map[string]*session{},
	}
	b.addresses.Most, b.addresses.Rate, b.addresses.Burst = cfg.Limits.PerAddress, cfg.Limits.PerAddressRate,
		int(4*cfg.Limits.PerAddressRate)
	return b, nil
}

func (c *Config) validate() error {
	if c.Handler == nil {
		return errors.New("no Handler is configured: this is a bug in the program")
	}
	if c.Listen == nil && c.DevListen == nil {
		return errors.New("no listener is configured: set an MQTT address")
	}
	if c.Listen != nil && (c.TLS == nil || c.TLS.ClientAuth != tls.RequireAndVerifyClientCert) {
		return errors.New("the MQTT listener needs TLS that requires and verifies client certificates")
	}
	if c.DevListen != nil && !private(c.DevListen.Addr()) {
		return fmt.Errorf("--mqtt-dev-listen %s has no encryption and no passwords: use a loopback address "+
			"such as 127.0.0.1:1883", c.DevListen.Addr())
	}
	return wire.ValidPrefix(c.Prefix)
}

// private reports whether an address is unreachable from other machines.
func private(a net.Addr) bool {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return a.Network() == "pipe"
}

// Run serves until the context ends, then closes listeners and connections. It returns an error
// only if it could not serve.
func (b *Broker) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, l := range []listener{{b.cfg.Listen, b.cfg.TLS}, {b.cfg.DevListen, nil}} {
		if l.Listener != nil {
			g.Go(func() error { return b.accept(gctx, l) })
			context.AfterFunc(gctx, func() { _ = l.Close() })
		}
	}
	err := g.Wait()
	b.shutDown()
	return err
}

// shutDown ends all connections without publishing their wills, because the devices have not left.
func (b *Broker) shutDown() {
	b.closing.Store(true)
	b.mu.Lock()
	for c := range b.open {
		_ = c.Close()
	}
	b.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer panics.Catch("broker")
		b.handlers.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		b.log.Warn("stop broker: some connections are still busy; exiting without them", "after", closeTimeout)
	}
}

// Publish sends a payload on one of the hub's channels to a node, at most once and not retained. It
// never waits for the network. A newer desired state replaces one that waits. After ErrOffline and
// ErrBacklog nothing was sent; the device's next lease shows that it is missing. A desired state
// may have several parts.
func (b *Broker) Publish(node string, c wire.Channel, parts ...[]byte) error {
	if c != wire.ChannelDesired {
		return fmt.Errorf("publish to %s: the hub does not publish on channel %q", node, c)
	}
	return b.send(node, message{channel: c, topic: wire.Topic(b.cfg.Prefix, node, c), payload: parts[0], more: parts[1:]})
}

// Request sends a request to a node. Handler.Reply receives the response with its ID.
func (b *Broker) Request(node, id string, r wire.Request) error {
	if err := wire.ValidID(id); err != nil {
		return fmt.Errorf("request %s of %s: %w", r.Type, node, err)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("request %s of %s: %w", r.Type, node, err)
	}
	return b.send(node, message{channel: wire.ChannelRequest, topic: wire.RequestTopic(b.cfg.Prefix, node, id),
		payload: payload, kind: string(r.Type)})
}

func (b *Broker) send(node string, m message) error {
	if len(m.payload) > wire.MaxToDevice {
		b.stats.tooLarge.Add(1)
		return fmt.Errorf(
			"publish %s to %s: %d bytes exceed the limit of %d: give the node fewer pods or smaller config maps",
			m.channel, node, len(m.payload), wire.MaxToDevice)
	}
	s := b.session(node)
	if s == nil || !s.listens(m.channel) {
		b.stats.offline.Add(1)
		return fmt.Errorf("publish %s to %s: %w", m.channel, node, ErrOffline)
	}
	if !s.conn.send(m) {
		b.stats.backlog.Add(1)
		return fmt.Errorf("publish %s to %s: %w", m.channel, node, ErrBacklog)
	}
	return nil
}

// Disconnect closes the node's session, if any, even while it is being established. The hub calls
// it after the certificate was revoked, the Node deleted, or the device replaced. From now on
// Handler.Connect must refuse that device.
func (b *Broker) Disconnect(node string) {
	b.mu.Lock()
	s := b.sessions[node]
	b.mu.Unlock()
	if s != nil {
		_ = s.conn.Close()
	}
}

// Online reports whether the node has a session.
func (b *Broker) Online(node string) bool { return b.session(node) != nil }

// session returns the established session of a node, or nil.
func (b *Broker) session(node string) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[node]; s != nil && s.established.Load() {
		return s
	}
	return nil
}
