package broker

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// A ClientConfig configures a Client. Handler, Servers, Owner and Proof are required.
type ClientConfig struct {
	Handler Handler
	Log     *slog.Logger // nil: slog.Default()

	// Servers are the addresses (host:port) of a broker or of the members of a cluster. The client
	// uses one of them.
	Servers []string
	TLS     *tls.Config // the hub's certificate and the broker's CA; nil: plain TCP, for tests on loopback
	Prefix  string      // prefix of all topics; "": wire.DefaultPrefix

	// Owner returns the device of a node, as the hub stores it; false: unknown node. It is called
	// for every message.
	Owner func(node string) (Owner, bool)
	// Proof returns the hash of the key that signed the proof. The proof says that a boot belongs
	// to a node.
	Proof func(node, boot string, p *wire.Proof) (key string, err error)

	// Silence is the time without a message after which a node counts as disconnected; default 40
	// s.
	Silence  time.Duration
	NodeRate float64 // messages per second and node, as in Limits; further messages are dropped

	dial func(ctx context.Context, to string) (net.Conn, error) // below TLS; nil: TCP
}

// An Owner is the device of a node.
type Owner struct {
	Key     string // sha256 of its certificate's public key, in hex
	Machine string
	Boot    string // current boot; "": none yet

	// Silence replaces ClientConfig.Silence for a node with a longer lease interval; 0: default.
	Silence time.Duration
}

// Limits of waiting messages.
const (
	maxQueued      = 64       // messages of a node that wait for the Handler
	maxQueuedBytes = 2 << 20  // bytes of a node's messages that wait for the Handler
	maxAllQueued   = 64 << 20 // bytes of all nodes' messages that wait for the Handler
	maxStoring     = 64       // nodes whose messages are stored at the same time
	maxOut         = 1 << 16  // requests that wait to be sent
	maxOutBytes    = 64 << 20 // bytes of requests and desired states that wait to be sent
)

// A Client connects the hub to an external broker. It has the methods of Broker.
//
// The broker decides by certificate names who may publish on a node's topics. The client trusts it
// no further: a message counts if it has the boot that the hub knows as the node's, and a status of
// another boot needs a signature of the enrolled key. The hub acknowledges a status, a list of pods
// (each part) and an event after it has stored them. The subscriptions have QoS 0, because devices
// repeat lost messages. The connection's goroutine handles leases. Other messages are handled per
// node in order, so that a slow store delays no lease.
type Client struct {
	cfg ClientConfig
	b   *Broker // for counters, offences and parsers; it has no listener
	out outbox
	id  string // ID of the MQTT client

	up     atomic.Bool
	began  time.Time
	queued atomic.Int64 // queued bytes of all nodes
	slots  chan struct{}

	mu    sync.RWMutex
	nodes map[string]*remote
	run   context.Context // Run's context
}

// NewClient checks the configuration and returns a client. The client connects after Run is called.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = wire.DefaultPrefix
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.dial == nil {
		cfg.dial = func(ctx context.Context, to string) (net.Conn, error) {
			return line.Dialer().DialContext(ctx, "tcp", to)
		}
	}
	if cfg.Silence <= 0 {
		cfg.Silence = 40 * time.Second
	}
	err := wire.ValidPrefix(cfg.Prefix)
	if cfg.Handler == nil || cfg.Owner == nil || cfg.Proof == nil || len(cfg.Servers) == 0 {
		err = errors.Join(err, errors.New("Handler, Owner, Proof or Servers is not configured: this is a bug in the program"))
	}
	for _, s := range cfg.Servers {
		if host, port, e := net.SplitHostPort(s); e != nil || host == "" || port == "" {
			err = errors.Join(err, fmt.Errorf("the address %q has another form than broker.example:8883", s))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to a broker: %w", err)
	}
	limits := Limits{NodeRate: cfg.NodeRate}
	limits.fill()
	cfg.NodeRate = limits.NodeRate
	b := &Broker{cfg: Config{Handler: cfg.Handler, Prefix: cfg.Prefix, Limits: limits}, log: cfg.Log,
		parsers: make(chan struct{}, 2), sessions: map[string]*session{}}
	c := &Client{cfg: cfg, b: b, id: "flotilla-hub-" + strings.ToLower(rand.Text()), began: time.Now(),
		slots: make(chan struct{}, maxStoring), nodes: map[string]*remote{}}
	c.out.wake = make(chan struct{}, 1)
	return c, nil
}

// filters returns the hub's subscriptions.
func (c *Client) filters() []string {
	var all []string
	for _, ch := range []wire.Channel{wire.ChannelLease, wire.ChannelStatus, wire.ChannelPods, wire.ChannelEvent,
		wire.ChannelPresence} {
		all = append(all, c.cfg.Prefix+"/nodes/+/"+string(ch))
	}
	return append(all, c.cfg.Prefix+"/nodes/+/"+string(wire.ChannelReply)+"/+")
}

// Run keeps the hub connected until ctx ends. An unreachable broker is not an error: the hub then
// hears of no device, as if all sites were dark.
func (c *Client) Run(ctx context.Context) error {
	c.mu.Lock()
	c.run = ctx
	c.mu.Unlock()
	at, try := mathrand.N(len(c.cfg.Servers)), 0
	go func() { _ = panics.Keep(ctx, "mqtt", c.sweep) }()
	for ctx.Err() == nil {
		began := time.Now()
		err := c.connectOnce(ctx, c.cfg.Servers[at])
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) >= time.Minute {
			try = 0
		}
		c.b.warn("broker "+c.cfg.Servers[at],
			"the broker is out of reach: no device is heard; no pod is evicted while all sites are silent", "broker",
			c.cfg.Servers[at], "err", err)
		at = (at + 1) % len(c.cfg.Servers)
		pause := line.Pause(try/len(c.cfg.Servers), line.MaxPause)
		try++
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// connectOnce serves one connection, from CONNECT to its end.
func (c *Client) connectOnce(ctx context.Context, server string) error {
	lost := make(chan error, 1)
	o := paho.NewClientOptions().
		AddBroker("tcp://broker"). // a placeholder; the next option opens the connection
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return c.open(ctx, server) }).
		SetClientID(c.id).SetProtocolVersion(4).SetCleanSession(true).SetAutoReconnect(false).SetConnectRetry(false).
		SetConnectTimeout(connectTimeout).SetKeepAlive(minKeepAlive * time.Second).
		SetPingTimeout(time.Hour). // never, because brokerConn detects silence earlier and tolerates slow packets
		SetOrderMatters(true).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			defer panics.Catch("mqtt") // a panic must not end the connection
			c.receive(m)
		}).
		SetConnectionLostHandler(func(_ paho.Client, err error) {
			select {
			case lost <- err:
			default:
			}
		})
	client := paho.NewClient(o)
	if err := settled(ctx, client.Connect()); err != nil {
		client.Disconnect(0)
		return fmt.Errorf("connect: %w", err)
	}
	defer client.Disconnect(250)
	all := map[string]byte{}
	for _, f := range c.filters() {
		all[f] = 0
	}
	t := client.SubscribeMultiple(all, nil).(*paho.SubscribeToken)
	if err := settled(ctx, t); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	for f, code := range t.Result() {
		if code == 0x80 {
			return fmt.Errorf(
				"the broker refuses the subscription to %s: allow the hub's certificate as `flotilla-hub broker-config` writes "+
					"it", f)
		}
	}
	c.b.stats.accepted.Add(1)
	c.out.clear() // drops messages for the previous connection
	c.up.Store(true)
	defer c.up.Store(false)
	c.cfg.Log.Info("connected to the broker", "broker", server)
	writing, stop := context.WithCancel(ctx)
	defer stop()
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer panics.CatchThen("mqtt", func(err error) {
			select {
			case lost <- err:
			default: // a sweep is already pending
			}
		})
		c.out.drain(writing, c, client)
	}()
	defer func() { stop(); <-written }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-lost:
		return fmt.Errorf("connection lost: %w", err)
	}
}

func (c *Client) open(ctx context.Context, server string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	dialled, err := c.cfg.dial(ctx, server)
	if err != nil {
		return nil, err
	}
	raw := line.New(dialled, writeTimeout)
	if c.cfg.TLS == nil {
		return newBrokerConn(raw, raw), nil
	}
	conf := c.cfg.TLS.Clone()
	if conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(server)
	}
	if verify := conf.VerifyConnection; verify != nil {
		conf.VerifyConnection = func(s tls.ConnectionState) error {
			s.ServerName = conf.ServerName // the library omits an IP address
			return verify(s)
		}
	}
	secure := tls.Client(raw, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return newBrokerConn(secure, raw), nil
}

func settled(ctx context.Context, t paho.Token) error {
	select {
	case <-t.Done():
		return t.Error()
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * connectTimeout):
		return errors.New("no answer")
	}
}

// Publish is Broker.Publish.
func (c *Client) Publish(node string, ch wire.Channel, parts ...[]byte) error {
	if ch != wire.ChannelDesired {
		return fmt.Errorf("publish to %s: the hub does not publish on channel %q", node, ch)
	}
	return c.send(node, message{channel: ch, topic: wire.Topic(c.cfg.Prefix, node, ch), payload: parts[0],
		more: parts[1:]})
}

// Request is Broker.Request.
func (c *Client) Request(node, id string, r wire.Request) error {
	if err := wire.ValidID(id); err != nil {
		return fmt.Errorf("request %s of %s: %w", r.Type, node, err)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("request %s of %s: %w", r.Type, node, err)
	}
	return c.send(node, message{channel: wire.ChannelRequest, topic: wire.RequestTopic(c.cfg.Prefix, node, id),
		payload: payload, kind: r.Type})
}

func (c *Client) send(node string, m message) error {
	s := &c.b.stats
	for _, p := range append([][]byte{m.payload}, m.more...) {
		if len(p) > wire.MaxToDevice {
			s.tooLarge.Add(1)
			return fmt.Errorf(
				"publish %s to %s: %d bytes exceed the limit of %d: give the node fewer pods or smaller config maps",
				m.channel, node, len(p), wire.MaxToDevice)
		}
	}
	r := c.remote(node)
	if r == nil || !c.up.Load() || c.isSilent(r) {
		s.offline.Add(1)
		return fmt.Errorf("publish %s to %s: %w", m.channel, node, ErrOffline)
	}
	switch replaced, ok := c.out.put(node, m); {
	case !ok:
		s.backlog.Add(1)
		return fmt.Errorf("publish %s to %s: the broker takes messages too slowly: %w", m.channel, node, ErrBacklog)
	case replaced:
		s.superseded.Add(1)
	}
	return nil
}

// Disconnect marks a node as disconnected, because its device may have changed. The broker still
// accepts devices by its own rules, but the hub ignores their messages.
func (c *Client) Disconnect(node string) {
	if r := c.remote(node); r != nil {
		go func() { // on a goroutine, because the caller may be the Handler, which these calls use
			defer panics.Catch("mqtt")
			r.leave(c)
		}()
	}
}

// Online reports whether the node has sent a message lately and has not left.
func (c *Client) Online(node string) bool {
	r := c.remote(node)
	return r != nil && c.up.Load() && r.online.Load()
}

// Connected reports whether the hub has a connection to a broker.
func (c *Client) Connected() bool { return c.up.Load() }

// Stats returns the counters, in the form of Broker.Stats. Connections is the hub's own connection.
func (c *Client) Stats() Stats {
	s := c.b.Stats()
	if c.up.Load() {
		s.Connections = 1
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, r := range c.nodes {
		if r.online.Load() {
			s.Sessions++
		}
	}
	return s
}

func (c *Client) remote(node string) *remote {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.nodes[node]
}

// age returns the time since the client began. since returns the time since a given age.
func (c *Client) age() int64                   { return int64(time.Since(c.began)) }
func (c *Client) since(at int64) time.Duration { return time.Duration(c.age() - at) }
