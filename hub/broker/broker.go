// Package broker is the hub's MQTT broker: it lets devices in by their
// certificates, reads what they publish, and sends them what they are to do.
//
// It is an MQTT 3.1.1 endpoint for what shared/wire needs, on paho's codec: connections are
// accepted, limited, identified and their CONNECT judged before there is a session; a session is
// parked, or a goroutine with a small stack and 384 bytes; what goes out to a device goes through
// an outbox that never blocks the sender. Nothing is retained, nothing is queued for one who is
// away, nothing is passed on from device to device, and there are no wildcards and no QoS 2. Only
// observers, of whom there are few, may look on. The package decides nothing about nodes: what it
// hears it tells the Handler, which hub/serve provides, in the words of shared/wire.
//
// A Client is the same for a hub whose devices connect to somebody else's broker, or cluster
// of brokers: one session of paho's, with the same Handler behind it and the same methods.
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

// Config is what the broker is made of. Handler and one listener are required.
type Config struct {
	Handler Handler
	Log     *slog.Logger // nil: slog.Default()

	// Listen is for devices: TLS with client certificates by TLS. The broker
	// closes both listeners when Run ends.
	Listen net.Listener
	TLS    *tls.Config
	// DevListen is for development and simulation: no TLS, the user name is the
	// node, loopback or in memory only.
	DevListen net.Listener

	// Observers says which operators' tools may look on; nil: none.
	Observers Observers

	Prefix string // of all topics; empty: wire.DefaultPrefix

	Limits Limits
}

// Limits bound what the other side can make the broker do. A zero is the default.
type Limits struct {
	Connections int // at once; default 65536, and never more than the file limit allows
	Greeting    int // at once that have not finished CONNECT; default 2048

	// Per address, loopback excepted. A site is often one address: as many devices as
	// may be behind it come in again within two lease intervals.
	PerAddress     int     // connections at once; default 2048
	PerAddressRate float64 // new ones per second; default 100, with a burst of four seconds

	// Per node. Faster senders are read more slowly, nothing of theirs is lost. packets per second, of
	// whatever type; 16 KiB, or eight filters, count as one more, a second at most; default 100, with
	// a burst of four seconds
	NodeRate float64
}

// Errors of Publish and Request.
var (
	ErrOffline = errors.New("node is not connected")
	ErrBacklog = errors.New("node reads too slowly: its outbox is full")
)

// How long things may take.
const (
	connectTimeout  = 10 * time.Second // from accept to the end of CONNECT
	writeTimeout    = 5 * time.Second  // in which a device takes nothing of what is written to it
	rememberTimeout = 30 * time.Second // for the Handler to remember something
	closeTimeout    = 5 * time.Second  // for everything to end after Run's context has
	farewellTimeout = 5 * time.Second  // for one who is only told something
	farewellLinger  = 2 * time.Second  // after he was told
	minKeepAlive    = 10               // seconds
	maxKeepAlive    = 30
)

// A Broker serves devices. Make it with New.
type Broker struct {
	cfg Config
	log *slog.Logger

	stats     counters
	offences  offences
	observers observers
	addresses listen.Addresses
	greeting  chan struct{} // a slot for each connection before CONNECT
	parsers   chan struct{} // a slot for each payload that is being decoded
	closing   atomic.Bool
	greetFor  time.Duration // connectTimeout
	handlers  sync.WaitGroup

	mu       sync.Mutex
	open     map[net.Conn]bool
	sessions map[string]*session // by node
}

// New checks the configuration and returns a broker that listens once it runs.
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
		cfg:      cfg,
		log:      cfg.Log,
		greeting: make(chan struct{}, cfg.Limits.Greeting),
		parsers:  make(chan struct{}, runtime.GOMAXPROCS(0)),
		greetFor: connectTimeout,
		open:     map[net.Conn]bool{},
		sessions: map[string]*session{},
	}
	b.addresses.Most, b.addresses.Rate, b.addresses.Burst = cfg.Limits.PerAddress, cfg.Limits.PerAddressRate,
		int(4*cfg.Limits.PerAddressRate)
	return b, nil
}

func (c *Config) validate() error {
	if c.Handler == nil {
		return errors.New("no Handler to tell: this is a mistake in the program")
	}
	if c.Listen == nil && c.DevListen == nil {
		return errors.New("no listener is configured: set an MQTT address")
	}
	if c.Listen != nil && (c.TLS == nil || c.TLS.ClientAuth != tls.RequireAndVerifyClientCert) {
		return errors.New("the MQTT listener needs TLS that requires and verifies client certificates")
	}
	if c.DevListen != nil && !private(c.DevListen.Addr()) {
		return fmt.Errorf("--mqtt-dev-listen %s has no encryption and no passwords, so it must be on a loopback address "+
			"such as 127.0.0.1:1883", c.DevListen.Addr())
	}
	return wire.ValidPrefix(c.Prefix)
}

// private says whether an address cannot be reached from another machine.
func private(a net.Addr) bool {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return a.Network() == "pipe"
}

// Run serves until the context ends, then closes listeners and connections. It
// returns an error only if it could not serve.
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

// shutDown ends all connections. Wills that this fires are not told: it is the
// hub that goes away, not the devices.
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
		b.log.Warn("stop broker: some connections are still busy, leaving them behind", "after", closeTimeout)
	}
}

// Publish sends a payload on one of the hub's channels to a node: at most once,
// nothing retained. It never waits for the network. A desired state that was not
// yet on its way is replaced by the newer one. ErrOffline and ErrBacklog say that
// nothing was sent; the device's lease tells later what is missing. A desired state
// may come in parts.
func (b *Broker) Publish(node string, c wire.Channel, parts ...[]byte) error {
	if c != wire.ChannelDesired {
		return fmt.Errorf("publish to %s: channel %q is not one that the hub publishes to alone", node, c)
	}
	return b.send(node, message{channel: c, topic: wire.Topic(b.cfg.Prefix, node, c), payload: parts[0], more: parts[1:]})
}

// Request asks a node for something; the answer comes to Handler.Reply under the id.
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
			"publish %s to %s: %d bytes, but at most %d can be sent: give the node fewer pods or smaller config maps",
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

// Disconnect closes the node's session, if there is one, also one that is just
// beginning: its certificate was revoked, its Node deleted, or another device has
// taken its place. Handler.Connect must refuse it from now on.
func (b *Broker) Disconnect(node string) {
	b.mu.Lock()
	s := b.sessions[node]
	b.mu.Unlock()
	if s != nil {
		_ = s.conn.Close()
	}
}

// Online says whether the node has a session now.
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
