// Package cluster runs several hubs on one database: one leads, the others are standbys.
//
// A standby follows the leader's changes, answers reads, forwards other requests (package peer),
// and takes over when the leader is silent. Package leader decides when to take over, and package
// store keeps the leader's row. A leading Member runs the Hub of package serve. This package
// decides nothing about the fleet, and a standby writes nothing about it.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/metrics"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/peer"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// Config configures a member.
type Config struct {
	Config   config.Config
	Settings admission.Settings // settings of the standby's API
	Version  string
	Log      *slog.Logger
	Listeners
	Socket string // path of the socket for commands on this machine; "" if there is none

	// Lead creates the leading hub.
	Lead func(ctx context.Context, l *Lead) (Hub, error)
}

// Listeners are a hub's listeners; each may be nil.
type Listeners struct {
	HTTPS, MQTT, Dev net.Listener
	Peer             net.Listener // for the other hubs of the database
}

// Close closes all listeners.
func (l Listeners) Close() {
	for _, l := range []net.Listener{l.HTTPS, l.MQTT, l.Dev, l.Peer} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// A Hub is the leading hub that a member runs.
type Hub interface {
	Run(ctx context.Context) error
	Up() <-chan struct{}
	Fleet() int
	Answers(ctx context.Context) error
}

// A Member is one of several hubs on a database. It is a standby until it leads, and then runs a
// Hub. A deposed leader exits, and is a standby after its restart.
type Member struct {
	c     Config
	log   *slog.Logger
	name  string
	began time.Time

	https, mqtt, dev, peers *acceptor

	passer *peer.Forwarder
	client atomic.Pointer[pki.PeerClient]
	fleet  atomic.Pointer[follower] // set on a standby
	hub    atomic.Pointer[Hub]      // set on a leader
	up     chan struct{}
	once   sync.Once

	answering sync.WaitGroup // open requests of a standby
}

// New creates a member with the listeners in c.
func New(c Config) *Member {
	m := &Member{c: c, log: c.Log, began: time.Now(), up: make(chan struct{})}
	m.https, m.mqtt, m.dev, m.peers = newAcceptor(c.HTTPS), newAcceptor(c.MQTT), newAcceptor(c.Dev), newAcceptor(c.Peer)
	m.name, _ = os.Hostname()
	m.passer = peer.NewForwarder(m.peerTLS, m.standing, c.Log)
	return m
}

func (m *Member) names() []string { return Names(m.c.Config) }

// address returns the address at which other hubs reach this one.
func (m *Member) address() string { return peerAddress(m.c.Config, m.c.Peer, m.names()) }

// Names returns the host names of a hub.
func Names(cfg config.Config) []string {
	all := pki.LocalNames(cfg.AdvertiseAddress)
	if host, _, err := net.SplitHostPort(cfg.PeerAddress); err == nil && host != "" {
		all = append(all, host)
	}
	return all
}

// peerAddress returns the address at which other hubs reach the listener l on a machine with these
// names.
func peerAddress(cfg config.Config, l net.Listener, machine []string) string {
	if cfg.PeerAddress != "" || l == nil {
		return cfg.PeerAddress
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	host, _ := listen.Advertised(cfg.AdvertiseAddress, l.Addr(), machine)
	if cfg.AdvertiseAddress != "" {
		host = cfg.AdvertiseAddress
	}
	return net.JoinHostPort(host, port)
}

// clock returns the member's monotonic time.
func (m *Member) clock() time.Duration { return time.Since(m.began) }

// Run runs a standby, and then the leader. It returns when ctx ends, or with ErrDeposed.
func (m *Member) Run(ctx context.Context) (err error) {
	defer func() {
		for _, g := range []*acceptor{m.https, m.mqtt, m.dev, m.peers} {
			_ = g.Close()
		}
	}()
	s, err := m.open(ctx)
	if err != nil || s == nil {
		return err
	}
	at, err := m.runStandby(ctx, s)
	if err != nil || at == nil {
		m.answering.Wait()
		return errors.Join(err, s.Close())
	}
	at.fleet = m.caughtUp(ctx, at.fleet)
	if err := s.Close(); err != nil {
		m.log.Warn("close the database as a standby", "err", err)
	}
	return m.lead(ctx, at)
}

func (m *Member) storeOptions() store.Options {
	cfg := m.c.Config
	return store.Options{
		Dir: cfg.DataDir, Database: cfg.Database, Version: m.c.Version, Log: m.log, AuditKept: cfg.AuditRetention,
	}
}

// open opens the database, and retries until it succeeds. It returns nil if ctx has ended.
func (m *Member) open(ctx context.Context) (*store.Standby, error) {
	refusing, end := context.WithCancel(ctx)
	defer end()
	for _, g := range []*acceptor{m.https, m.mqtt, m.dev, m.peers} {
		go func() {
			defer panics.Catch("acceptor")
			_ = g.refuse(refusing)
		}()
	}
	var busy, logged time.Time
	for {
		s, err := store.StandBy(ctx, m.storeOptions())
		switch {
		case err == nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, nil
		// another hub is creating the database
		case errors.Is(err, store.ErrLocked) && (busy.IsZero() || time.Since(busy) < 20*time.Second):
			if busy.IsZero() {
				busy = time.Now()
			}
		case !errors.Is(err, store.ErrUnavailable):
			return nil, err
		case logged.IsZero() || time.Since(logged) > time.Minute:
			m.log.Warn("cannot open the database; trying again", "err", err)
			logged = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(time.Second):
		}
	}
}

// runStandby follows the leader and serves as a standby until this hub has taken the lead. It
// returns nil if ctx has ended.
func (m *Member) runStandby(ctx context.Context, s *store.Standby) (*Lead, error) {
	id, err := s.HubID(ctx)
	if err != nil {
		return nil, err
	}
	f := newFollower(id, s)
	m.fleet.Store(f)
	sub, end := context.WithCancel(ctx)
	defer end()
	g, sub := errgroup.WithContext(sub)
	for _, port := range []*acceptor{m.mqtt, m.dev, m.peers} {
		g.Go(func() error { return panics.Keep(sub, "acceptor", port.refuse) })
	}
	g.Go(func() error {
		return panics.Keep(sub, "standby", func(ctx context.Context) error { return m.follow(ctx, f) })
	})
	g.Go(func() error {
		return panics.Keep(sub, "https", func(ctx context.Context) error { return m.serve(ctx, s, f) })
	})
	g.Go(func() error { return panics.Keep(sub, "standby", m.announce) })
	if m.c.Socket != "" {
		g.Go(func() error {
			return panics.Keep(sub, "socket", func(ctx context.Context) error {
				return socket.Serve(ctx, m.c.Socket, m.commandHandler(f))
			})
		})
	}
	var at *Lead
	g.Go(func() error {
		return panics.Keep(sub, "leader", func(ctx context.Context) (err error) {
			defer end()
			at, err = m.awaitLead(ctx, s, f)
			return err
		})
	})
	m.once.Do(func() { close(m.up) })
	if err := g.Wait(); err != nil && at == nil && ctx.Err() == nil {
		return nil, err
	}
	return at, nil
}

// commandHandler handles commands on this machine. A standby answers the commands about itself, and
// names the leader for all others.
func (m *Member) commandHandler(f *follower) socket.Handler {
	text := metrics.Standby(m.c.Version, f)
	return func(ctx context.Context, _, order string) (string, error) {
		switch name, address := m.passer.Leader(); {
		case order == "standing":
			text, err := json.Marshal(m.standing())
			return string(text), err
		case order == "metrics":
			return metrics.Text(ctx, text)
		case name == "":
			return "", errors.New("this hub is a standby, and no hub leads: try again in a few seconds")
		default:
			return "", fmt.Errorf("this hub is a standby: run the command on the machine of the leader %s (%s)", name, address)
		}
	}
}

// standing returns the standby's announcement.
func (m *Member) standing() leader.Status {
	s := leader.Status{Name: m.name, Address: m.address(), Version: m.c.Version, Since: m.began}
	if f := m.fleet.Load(); f != nil {
		s.Revision, s.Behind = f.Snapshot().Revision, f.Age()
	}
	s.Leader, s.At = m.passer.Leader()
	if m.c.HTTPS != nil {
		host, port, _ := net.SplitHostPort(m.c.HTTPS.Addr().String())
		if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
			host = "localhost"
		}
		s.URL = "https://" + net.JoinHostPort(host, port)
	}
	return s
}

// announce sends the standby's announcement to the leader at intervals. It only logs errors,
// because requests report an unreachable leader.
func (m *Member) announce(ctx context.Context) error {
	for {
		short, cancel := context.WithTimeout(ctx, leader.Beat)
		if err := m.passer.Announce(short); err != nil && ctx.Err() == nil {
			m.log.Debug("cannot announce this standby to the leader", "err", err)
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leader.Beat):
		}
	}
}

// follow keeps the copy of the fleet up to date.
func (m *Member) follow(ctx context.Context, f *follower) error {
	var logged time.Time
	for {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil && time.Since(logged) > time.Minute {
			m.log.Warn("cannot follow the leader", "err", err)
			logged = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leader.Look):
		}
	}
}

// awaitLead takes the lead when it is this hub's turn. It returns nil if ctx has ended.
func (m *Member) awaitLead(ctx context.Context, s *store.Standby, f *follower) (*Lead, error) {
	var b leader.View
	var logged leader.Row
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, leader.Beat)
		row, err := s.Row(short)
		cancel()
		if err == nil {
			b = b.Saw(row, m.clock())
		}
		if err == nil && (row.Token != logged.Token || row.Left != logged.Left) {
			m.log.Info("this hub is a "+
				"standby", "leader", row.Holder, "address", row.Address, "token", row.Token, "left", row.Left)
			logged = row
		}
		if b.LeaderActive() && row.Address == m.address() {
			return nil, fmt.Errorf("leader %s has the address %s, which is also this hub's: give "+
				"each hub another --advertise-address or --peer-address", row.Holder, row.Address)
		}
		if b.Decide(m.clock()) == leader.Take {
			at := &Lead{
				Member: store.Member{Name: m.name, Address: m.address()}, cfg: m.c.Config, log: m.log, fleet: f, before: b.Row,
			}
			at.address.Store(&at.Member.Address)
			short, cancel := context.WithTimeout(ctx, leader.Lease)
			token, err := s.Take(short, b.Row, at.Member)
			cancel()
			if err == nil {
				at.Member.Token = token
				m.passer.SetLeader("", "") // cancel the requests to the former leader
				m.log.Info("this hub leads from now on", "token", token, "before", b.Row.Holder, "silent",
					(m.clock() - b.Changed).Round(time.Millisecond), "left", b.Row.Left)
				return at, nil
			}
			m.log.Info("this hub does not take the lead", "err", err)
			if errors.Is(err, store.ErrExists) {
				b = b.SawChange(m.clock())
			} else { // another hub may lead now
				b = leader.View{}
			}
		}
		if b.HasLeader(m.clock()) {
			m.passer.SetLeader(b.Row.Holder, b.Row.Address)
		} else {
			m.passer.SetLeader("", "")
		}
		select {
		case <-ctx.Done():
		case <-time.After(leader.Look):
		}
	}
	return nil, nil
}

// caughtUp returns the copy with everything that the former leader has committed. It returns nil if
// reading takes too long for a lease; the hub then reads the database after its first heartbeat.
func (m *Member) caughtUp(ctx context.Context, f *follower) *follower {
	ctx, cancel := context.WithTimeout(ctx, leader.Beat)
	defer cancel()
	if err := f.follow(ctx); err != nil {
		m.log.Warn("reading the fleet from the database", "err", err)
		return nil
	}
	return f
}

// Up is closed once the hub serves, as leader or standby.
func (m *Member) Up() <-chan struct{} { return m.up }

// Fleet returns the number of nodes on a leader. On a standby it returns 0, because no device
// connects to it.
func (m *Member) Fleet() int {
	if h := m.hub.Load(); h != nil {
		return (*h).Fleet()
	}
	return 0
}

// Answers returns nil while the hub is alive.
func (m *Member) Answers(ctx context.Context) error {
	if h := m.hub.Load(); h != nil {
		select {
		case <-(*h).Up():
			return (*h).Answers(ctx)
		default:
		}
	}
	return nil
}
