// Package serve assembles the hub: one function creates and connects all packages, for the program
// and for every test.
//
// New creates all parts and starts none; Run starts and stops them in order. Listeners, and fakes
// between the hub and its disk or devices, are parameters. The package decides nothing about the
// fleet. It only adapts packages that do not know each other.
package serve

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/cluster"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/enrolment"
	"flotilla.dev/hub/history"
	"flotilla.dev/hub/install"
	"flotilla.dev/hub/inventory"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/notify"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/registry"
	"flotilla.dev/hub/snapshot"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/discovery"
)

// Listeners are the addresses at which a hub is reached.
type Listeners = cluster.Listeners

// Options describe a hub and its listeners.
type Options struct {
	Config  config.Config
	Version string
	Log     *slog.Logger
	Listeners
	Socket string    // for commands on this machine; "": none
	Out    io.Writer // receives the setup link while there is no user; nil: no link is created
	Hurry  func()    // see control.Config; may be nil

	// Disk and Net wrap the loop's store and its broker, so that a test can make them fail. Both
	// may be nil.
	Disk func(control.Store) control.Store
	Net  func(node.Broker) node.Broker

	lead *cluster.Lead // nil: no other hubs
}

// A Gateway connects devices: this hub's own broker, or a connection to an external one.
type Gateway interface {
	node.Broker
	Run(ctx context.Context) error
	Online(node string) bool
	Stats() broker.Stats
}

// A Hub is created by New. Its exported fields are valid until Run ends.
type Hub struct {
	Loop   *node.Devices
	Store  *store.Store
	Ask    *ask.Client
	Guard  *access.Guard
	Broker Gateway

	o         Options
	cfg       config.Config
	log       *slog.Logger
	authority *pki.Authority
	server    *pki.Server
	reached   atomic.Pointer[string] // the page's URL; see url
	storedURL string                 // the URL that commands read
	depot     *install.Depot
	images    *registry.Registry // nil: the quota is 0
	peers     registry.Peers     // devices that share images
	inventory *inventory.Reader  // nil: not configured
	renewals  *enrolment.Renewer
	notifier  *notify.Notifier
	pauses    []store.Pause
	history   *history.History // nil: switched off
	repaired  []state.Change
	recovered *store.Recovery // nil: the database was not restored
	web       func() *web     // created at the first use
	answering sync.WaitGroup
	up        chan struct{}
}

// New opens the data directory and creates a hub, which Run starts.
func New(ctx context.Context, o Options) (h *Hub, err error) {
	h = &Hub{o: o, cfg: o.Config, log: o.Log, Ask: &ask.Client{}, up: make(chan struct{})}
	cfg, log := o.Config, o.Log
	so := store.Options{
		Dir: cfg.DataDir, Database: cfg.Database, Version: o.Version, Log: log, AuditKept: cfg.AuditRetention,
	}
	if o.lead != nil {
		member := o.lead.Member
		so.Member = &member
	}
	var early snapshot.Prefetch
	so.Reads = early.Read
	if h.Store, err = store.Open(ctx, so); err != nil {
		return nil, err
	}
	if o.lead != nil {
		o.lead.Beat(h.Store)
	}
	st := h.Store
	defer func() {
		if err != nil {
			_ = st.Close()
		}
	}()
	if h.recovered, err = h.Store.Recovered(ctx); err != nil {
		return nil, err
	} else if h.recovered != nil {
		log.Warn("the database was replaced: devices with a newer desired state keep it until `flotilla-hub resume`",
			"why", fmt.Sprintf("%+v", *h.recovered))
	}
	began, err := h.begin(ctx)
	if err != nil {
		return nil, err
	}
	start, repaired, err := h.loadFleet(ctx, began, &early)
	if err != nil {
		return nil, err
	}
	if err := h.openAuthority(ctx, start); err != nil {
		return nil, err
	}
	h.authority.Now = func() time.Time { return began } // replaced once the Loop exists
	if h.server, err = h.authority.NewServer(func() []string { return cluster.Names(cfg) }, log); err != nil {
		return nil, err
	}

	h.depot = &install.Depot{Dir: cfg.AgentsDir, Version: o.Version, Now: time.Now, Log: log}
	if err := h.openImages(); err != nil {
		return nil, err
	}
	noted, err := h.Store.LastTime(ctx)
	if err != nil {
		return nil, err
	}
	start, h.repaired = notBefore(start, noted), repaired
	if h.recovered != nil && !h.recovered.Unverified {
		unmet := node.ForgetStored(start, "")
		start, _ = state.Apply(start, unmet)
		h.repaired = append(h.repaired, unmet...)
	}
	if h.pauses, err = h.Store.Begin(ctx, start.Started); err != nil {
		log.Warn("timelines cannot show when the hub was down", "err", err)
	}
	var disk control.Store = memory{h.Store}
	if o.Disk != nil {
		disk = o.Disk(disk)
	}
	signing, err := h.firmwareKey(start)
	if err != nil {
		return nil, err
	}
	h.Loop = newLoop(cfg, start, disk, signing, log)
	h.Loop.OnBurst = o.Hurry
	h.authority.Now, h.Store.Now = h.Loop.Now, h.Loop.Now

	h.Guard = h.newGuard(start.Salt, signing.Public().(ed25519.PublicKey))
	h.renewals = &enrolment.Renewer{Authority: h.authority, Loop: h.Loop, Log: log}
	if h.Broker, err = h.newGateway(start.Salt); err != nil {
		return nil, err
	}
	h.Loop.Broker, h.Ask.Broker, h.renewals.Broker = h.Broker, h.Broker, h.Broker
	if o.Net != nil {
		h.Loop.Broker = o.Net(h.Broker)
	}
	h.history = h.newHistory()
	h.inventory = machines(cfg, h.Loop, log)
	if h.notifier, err = h.newNotifier(); err != nil {
		return nil, err
	}
	h.web = sync.OnceValue(h.newWeb)
	return h, nil
}

// newGuard returns the access rules of the hub with the given identity.
func (h *Hub) newGuard(identity string, signing ed25519.PublicKey) *access.Guard {
	return access.New(access.Options{
		Store: h.Store, Authority: h.authority, Log: h.log, Now: h.Loop.Now, Fleet: enrolment.Enrolments{Loop: h.Loop},
		Hub: identity, RequireApproval: h.cfg.RequireApproval, MQTT: mqttAddresses(h.cfg, h.o.MQTT),
		Hubs: h.cfg.HTTPSAddresses, External: len(h.cfg.Brokers) > 0, Prefix: brokerPrefix(h.cfg),
		LeaseInterval: h.cfg.LeaseInterval, FirmwareKey: signing,
	})
}

// NewMember makes a hub that shares its database with others.
func NewMember(o Options) *cluster.Member {
	return cluster.New(cluster.Config{
		Config: o.Config, Settings: AdmissionSettings(o.Config), Version: o.Version, Log: o.Log,
		Listeners: o.Listeners, Socket: o.Socket,
		Lead: func(ctx context.Context, l *cluster.Lead) (cluster.Hub, error) {
			o := o
			o.lead, o.Listeners = l, l.Listeners
			return New(ctx, o)
		},
	})
}

// deviceTLS accepts certificates of enrolled devices and of observers.
func (h *Hub) deviceTLS() *tls.Config {
	return h.authority.MQTT(h.server, func(holder pki.Holder) error {
		if holder.Role == pki.Observer {
			return nil // the broker checks an observer, at CONNECT and from then on
		}
		err := h.Guard.MayConnect(holder)
		if errors.Is(err, access.ErrForbidden) {
			h.Guard.Note(store.Audit{
				Who: holder.Name, Via: "certificate", Verb: "connect", Resource: "nodes", Name: holder.Name,
				Code: http.StatusForbidden, Message: err.Error(),
			})
		} else if err == nil {
			h.renewals.Connected(holder)
		}
		return err
	})
}

// Run runs the hub until ctx ends or a part fails. The store closes last, after the last request.
func (h *Hub) Run(ctx context.Context) (err error) {
	defer func() {
		h.answering.Wait()
		h.log.Info("hub is down")
		err = errors.Join(err, h.Store.Close())
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := h.Loop.Run(ctx)
		h.leave(ctx) // this hub decides nothing from now on; another may lead while this one closes its connections
		return err
	})
	g.Go(func() error {
		if err := h.prepare(ctx); err != nil { // before the first request
			return err
		}
		for _, run := range h.parts() {
			g.Go(func() error { return run(ctx) })
		}
		s := h.Loop.Snapshot()
		h.log.Info("hub is up", "version", h.o.Version, "https", addr(h.o.HTTPS), "mqtt", addr(h.o.MQTT),
			"data", h.cfg.DataDir, "nodes", s.Len(state.Nodes), "pods", s.Len(state.Pods))
		close(h.up)
		return nil
	})
	return g.Wait()
}

// leave records that this hub has ended, and hands its lead to another hub.
func (h *Hub) leave(ctx context.Context) {
	if errors.Is(context.Cause(ctx), cluster.ErrDeposed) { // a deposed hub has lost the lead already
		return
	}
	ctx = context.WithoutCancel(ctx)
	if err := h.Store.End(ctx, h.Loop.Now()); err != nil {
		h.log.Warn("cannot store when the hub ended: timelines take its last write for the end", "err", err)
	}
	if err := h.Store.Leave(ctx); err != nil {
		h.log.Warn("the other hubs were not notified that this hub ends: they wait for its lease to expire", "err", err)
	}
}

// prepare adds the default objects, and moves data of an earlier version.
func (h *Hub) prepare(ctx context.Context) error {
	if _, err := h.Loop.Do(ctx, fillDefaults(h.log)); err != nil {
		return fmt.Errorf("add namespaces and board profiles: %w", err)
	}
	if err := h.advertise(ctx); err != nil {
		return err
	}
	if _, err := h.Loop.Do(ctx, storeRepairs(h.repaired)); err != nil {
		return fmt.Errorf("store repaired objects: %w", err)
	}
	if h.recovered != nil && !h.recovered.Unverified {
		if err := h.Store.MarkUnverified(ctx, *h.recovered); err != nil {
			return fmt.Errorf("store the request for the devices' revisions: %w", err)
		}
	}
	if h.o.lead != nil {
		if _, err := h.Loop.Do(ctx, h.o.lead.News); err != nil {
			return fmt.Errorf("publish that this hub leads: %w", err)
		}
	}
	if err := enrolment.Move(ctx, h.Loop, h.Store, h.log); err != nil {
		return err
	}
	if h.o.HTTPS != nil {
		if err := h.printURL(ctx); err != nil {
			h.log.Warn("make the setup link", "err", err)
		}
	}
	return nil
}

// parts returns the functions that run beside the loop, once the fleet is prepared.
func (h *Hub) parts() []func(context.Context) error {
	kept := func(what string, run func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error { return panics.Keep(ctx, what, run) }
	}
	all := []func(context.Context) error{
		h.Broker.Run, h.Store.Ended, kept("backups", h.Store.RunBackups), kept("rights", h.Guard.RunRights),
		kept("renewals", h.renewals.Run), kept("advertisement", h.advertiseAll),
	}
	if h.o.HTTPS != nil {
		w := h.web()
		all = append(all, w.api.Run, w.page.Run, func(ctx context.Context) error {
			return listen.ServeHTTPS(ctx, &h.answering, w.server, h.o.HTTPS)
		})
		if at, err := netip.ParseAddrPort(addr(h.o.HTTPS)); err == nil && h.cfg.Discovery {
			all = append(all, kept("discovery", discovery.Hub{Listen: at, URLs: h.urls, Log: h.log}.Run))
		}
	}
	if h.o.lead != nil && h.o.Peer != nil {
		all = append(all, func(ctx context.Context) error {
			return h.o.lead.ServePeers(ctx, &h.answering, h.Handler(), h.authority.Peers(h.server))
		})
	}
	if len(h.notifier.Targets) > 0 {
		all = append(all, h.notifier.Run)
	}
	if h.inventory != nil {
		all = append(all, kept("inventory", h.inventory.Run))
	}
	if h.images != nil {
		all = append(all, kept("images", h.runImages))
	}
	if h.images != nil && h.o.Socket != "" {
		all = append(all, kept("image socket", h.serveImageSocket))
	}
	if h.history != nil {
		all = append(all, kept("history", h.history.Run))
	}
	if h.o.Socket != "" {
		all = append(all, kept("socket", func(ctx context.Context) error {
			return socket.Serve(ctx, h.o.Socket, orders{h.Loop, h.Store, h.Guard, h.renewals, h.metrics(), h.imageOrder,
				h.agentsOrder}.handle)
		}))
	}
	return all
}

// Up is closed once the hub serves requests.
func (h *Hub) Up() <-chan struct{} { return h.up }

// Fleet returns the number of nodes, which is how many devices may reconnect after a start.
func (h *Hub) Fleet() int { return h.Loop.Snapshot().Len(state.Nodes) }

// Answers returns nil if the loop responds before ctx ends.
func (h *Hub) Answers(ctx context.Context) error {
	_, err := h.Loop.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) { return nil, nil })
	if errors.Is(err, control.ErrUnavailable) {
		return nil // the loop waits for its database; a restart would not help
	}
	return err
}

// addr returns a listener's address, "" for none.
func addr(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// loadFleet returns the fleet of the store. A hub that was a standby has it already.
func (h *Hub) loadFleet(
	ctx context.Context, began time.Time, early *snapshot.Prefetch,
) (state.Snapshot, []state.Change, error) {
	if s, repaired, ok := early.Take(ctx, h.Store, began); ok {
		return s, repaired, nil
	}
	if h.o.lead != nil {
		if s, repaired, ok := h.o.lead.Fleet(ctx, h.Store, began); ok {
			return s, repaired, nil
		}
	}
	return snapshot.Load(ctx, h.Store, began)
}
