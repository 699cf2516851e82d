// Package cluster is several hubs on one database: one leads, the others stand by, follow what it
// writes, answer reads, pass everything else on to it (package peer), and take over when it is silent.
//
// A Member stands by, takes the leader's row (package leader decides when, package store holds it)
// and then runs the Hub that package serve makes. It never decides about the fleet, and never
// writes while it stands by.
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

// Config says what a member is, where it is reached, and what it becomes when it leads.
type Config struct {
	Config   config.Config
	Settings admission.Settings // of the API that it serves while it stands by
	Version  string
	Log      *slog.Logger
	Listeners
	Socket string // the commands' on this machine; "": none

	// Lead makes the hub that leads.
	Lead func(ctx context.Context, l *Lead) (Hub, error)
}

// Listeners are where a hub is reached. Those that are nil are not served.
type Listeners struct {
	HTTPS, MQTT, Dev net.Listener
	Peer             net.Listener // for the other hubs of its database
}

// Close closes all of them.
func (l Listeners) Close() {
	for _, l := range []net.Listener{l.HTTPS, l.MQTT, l.Dev, l.Peer} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// A Hub is what a member runs while it leads.
type Hub interface {
	Run(ctx context.Context) error
	Up() <-chan struct{}
	Fleet() int
	Answers(ctx context.Context) error
}

// A Member is a hub that shares its database with others. It stands by until it leads, and then
// runs a Hub. One that is deposed ends: it is started again, and stands by.
type Member struct {
	c     Config
	log   *slog.Logger
	name  string
	began time.Time

	https, mqtt, dev, peers *acceptor

	passer *peer.Forwarder
	client atomic.Pointer[pki.PeerClient]
	fleet  atomic.Pointer[follower] // while it stands by
	hub    atomic.Pointer[Hub]      // once it leads
	up     chan struct{}
	once   sync.Once

	answering sync.WaitGroup // as a standby
}

// New makes a member of the listeners in c.
func New(c Config) *Member {
	m := &Member{c: c, log: c.Log, began: time.Now(), up: make(chan struct{})}
	m.https, m.mqtt, m.dev, m.peers = newAcceptor(c.HTTPS), newAcceptor(c.MQTT), newAcceptor(c.Dev), newAcceptor(c.Peer)
	m.name, _ = os.Hostname()
	m.passer = peer.NewForwarder(m.peerTLS, m.standing, c.Log)
	return m
}

func (m *Member) names() []string { return Names(m.c.Config) }

// address is where other hubs reach this one now.
func (m *Member) address() string { return peerAddress(m.c.Config, m.c.Peer, m.names()) }

// Names are those under which a hub is reached.
func Names(cfg config.Config) []string {
	all := pki.LocalNames(cfg.AdvertiseAddress)
	if host, _, err := net.SplitHostPort(cfg.PeerAddress); err == nil && host != "" {
		all = append(all, host)
	}
	return all
}

// peerAddress is where other hubs reach the one that listens at l, on a machine of so many names.
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

// clock is the member's monotonic one.
func (m *Member) clock() time.Duration { return time.Since(m.began) }

// Run stands by, leads, and returns when ctx ends, or with ErrDeposed.
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
	at, err := m.stand(ctx, s)
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

// open opens the database, however long that takes; nil: ctx has ended.
func (m *Member) open(ctx context.Context) (*store.Standby, error) {
	refusing, end := context.WithCancel(ctx)
	defer end()
	for _, g := range []*acceptor{m.https, m.mqtt, m.dev, m.peers} {
		go func() {
			defer panics.Catch("acceptor")
			_ = g.refuse(refusing)
		}()
	}
	var busy, told time.Time
	for {
		s, err := store.StandBy(ctx, m.storeOptions())
		switch {
		case err == nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, nil
		// another hub is making the database
		case errors.Is(err, store.ErrLocked) && (busy.IsZero() || time.Since(busy) < 20*time.Second):
			if busy.IsZero() {
				busy = time.Now()
			}
		case !errors.Is(err, store.ErrUnavailable):
			return nil, err
		case told.IsZero() || time.Since(told) > time.Minute:
			m.log.Warn("the database cannot be opened, will try again", "err", err)
			told = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(time.Second):
		}
	}
}

// stand follows the hub that leads and serves what a standby can, until this one has taken the
// lead; nil: ctx has ended.
func (m *Member) stand(ctx context.Context, s *store.Standby) (*Lead, error) {
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
				return socket.Serve(ctx, m.c.Socket, m.orders(f))
			})
		})
	}
	var at *Lead
	g.Go(func() error {
		return panics.Keep(sub, "leader", func(ctx context.Context) (err error) {
			defer end()
			at, err = m.await(ctx, s, f)
			return err
		})
	})
	m.once.Do(func() { close(m.up) })
	if err := g.Wait(); err != nil && at == nil && ctx.Err() == nil {
		return nil, err
	}
	return at, nil
}

// orders answers the commands of this machine: what a standby knows of itself, and for all else who leads.
func (m *Member) orders(f *follower) socket.Handler {
	text := metrics.Standby(m.c.Version, f)
	return func(ctx context.Context, _, order string) (string, error) {
		switch name, address := m.passer.Leader(); {
		case order == "standing":
			text, err := json.Marshal(m.standing())
			return string(text), err
		case order == "metrics":
			return metrics.Text(ctx, text)
		case name == "":
			return "", errors.New("this hub stands by, and nobody leads: try again in a few seconds")
		default:
			return "", fmt.Errorf("this hub stands by: run the command where %s is, which leads (%s)", name, address)
		}
	}
}

// standing is what this hub says of itself while it stands by.
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

// announce tells the hub that leads of this one, again and again. That it cannot be reached is said to
// whoever wants something of it.
func (m *Member) announce(ctx context.Context) error {
	for {
		short, cancel := context.WithTimeout(ctx, leader.Beat)
		if err := m.passer.Announce(short); err != nil && ctx.Err() == nil {
			m.log.Debug("the hub that leads was not told of this one", "err", err)
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leader.Beat):
		}
	}
}

// follow keeps the fleet as the leader has written it.
func (m *Member) follow(ctx context.Context, f *follower) error {
	var told time.Time
	for {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil && time.Since(told) > time.Minute {
			m.log.Warn("what the hub that leads writes cannot be followed", "err", err)
			told = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(leader.Look):
		}
	}
}

// await takes the lead when it is its turn; nil: ctx has ended before.
func (m *Member) await(ctx context.Context, s *store.Standby, f *follower) (*Lead, error) {
	var b leader.View
	var told leader.Row
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, leader.Beat)
		row, err := s.Row(short)
		cancel()
		if err == nil {
			b = b.Saw(row, m.clock())
		}
		if err == nil && (row.Token != told.Token || row.Left != told.Left) {
			m.log.Info("this hub stands by", "leader", row.Holder, "address", row.Address, "token", row.Token, "left", row.Left)
			told = row
		}
		if b.LeaderActive() && row.Address == m.address() {
			return nil, fmt.Errorf("hub %s leads, and others reach it at %s, which is where they would reach this one: give "+
				"each hub an --advertise-address or a --peer-address of its own", row.Holder, row.Address)
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
				m.passer.Lead("", "") // what was passed on to another hub ends
				m.log.Info("this hub leads from now on", "token", token, "before", b.Row.Holder, "silent",
					(m.clock() - b.Changed).Round(time.Millisecond), "left", b.Row.Left)
				return at, nil
			}
			m.log.Info("this hub does not take the lead", "err", err)
			if errors.Is(err, store.ErrExists) {
				b = b.SawChange(m.clock())
			} else { // it may not have stood still
				b = leader.View{}
			}
		}
		if b.HasLeader(m.clock()) {
			m.passer.Lead(b.Row.Holder, b.Row.Address)
		} else {
			m.passer.Lead("", "")
		}
		select {
		case <-ctx.Done():
		case <-time.After(leader.Look):
		}
	}
	return nil, nil
}

// caughtUp is what is followed with all that the former leader has committed; nil: it has to be
// read anew, by a hub that the others see at work: until then they wait for a lease and no longer.
func (m *Member) caughtUp(ctx context.Context, f *follower) *follower {
	ctx, cancel := context.WithTimeout(ctx, leader.Beat)
	defer cancel()
	if err := f.follow(ctx); err != nil {
		m.log.Warn("the fleet is read anew", "err", err)
		return nil
	}
	return f
}

// Up is closed once the hub serves, leading or not.
func (m *Member) Up() <-chan struct{} { return m.up }

// Fleet is how many nodes there are at a hub that leads: to one that stands by no device comes.
func (m *Member) Fleet() int {
	if h := m.hub.Load(); h != nil {
		return (*h).Fleet()
	}
	return 0
}

// Answers is nil when the hub lives.
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
