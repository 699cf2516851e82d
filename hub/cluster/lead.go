package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/peer"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// ErrDeposed: another hub has taken the lead.
var ErrDeposed = errors.New("this hub no longer leads: it exits, and is a standby after its restart")

// A Lead is what a new leader begins with: its state, and its connection to the standbys.
type Lead struct {
	Member    store.Member // identity of the leader
	Listeners              // open until the hub stops leading

	cfg      config.Config
	log      *slog.Logger
	fleet    *follower                // nil if the fleet must be read from the database
	beat     func(store *store.Store) // starts the heartbeat: see Beat
	before   leader.Row               // the previous leader's row
	standbys standbys
	address  atomic.Pointer[string] // address at which standbys reach this hub
}

// Beat starts the heartbeat for the other hubs.
func (l *Lead) Beat(st *store.Store) { l.beat(st) }

// Fleet returns the fleet that the standby followed, and the repairs of stored objects. It returns
// false if the database has other content.
func (l *Lead) Fleet(
	ctx context.Context, st *store.Store, began time.Time,
) (s state.Snapshot, repairs []state.Change, ok bool) {
	if l.fleet == nil {
		return s, nil, false
	}
	s, repairs = l.fleet.fleet(began)
	rev, err := st.Revision(ctx)
	return s, repairs, err == nil && rev == s.Revision
}

// Address returns the address at which standbys reach this hub.
func (l *Lead) Address() string { return *l.address.Load() }

// Standbys returns the current standbys.
func (l *Lead) Standbys() []leader.Status { return l.standbys.list() }

// UpdateAddress publishes the address of this hub if it has changed.
func (l *Lead) UpdateAddress(ctx context.Context, st *store.Store) {
	at, former := peerAddress(l.cfg, l.Peer, Names(l.cfg)), l.Address()
	if former == at {
		return
	}
	if err := st.SetAddress(ctx, at); err != nil {
		if ctx.Err() == nil {
			l.log.Warn("standbys may use an old address of this hub", "err", err)
		}
		return
	}
	l.log.Info("standbys reach this hub at a new address", "address", at, "former", former)
	l.address.Store(&at)
}

// ServePeers serves the requests that standbys forward.
func (l *Lead) ServePeers(ctx context.Context, open *sync.WaitGroup, next http.Handler, config *tls.Config) error {
	s := peerServer(peer.Accept(next, l.standbys.announced))
	s.ErrorLog, s.BaseContext = slog.NewLogLogger(l.log.Handler(), slog.LevelDebug),
		func(net.Listener) context.Context { return ctx }
	return listen.ServeUntil(ctx, open, s, func() error { return s.Serve(peer.Listen(l.Peer, config)) })
}

// peerServer serves other hubs. They limit their clients themselves.
func peerServer(next http.Handler) *http.Server {
	return &http.Server{
		Handler: next, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 128 << 10,
		ConnContext: listen.ConnContext,
	}
}

// News returns an event about the change of leaders. It belongs to the system namespace, since the
// hub is not an object.
func (l *Lead) News(s state.Snapshot, now time.Time) ([]state.Change, error) {
	about := s.Get(state.Key{Kind: state.Namespaces, Name: metav1.NamespaceSystem})
	if about == nil {
		return nil, nil
	}
	why := fmt.Sprintf("hub %s (%s) leads from now on", l.Member.Name, l.Member.Address)
	if before := l.before; before.Address != "" && before.Left {
		why += fmt.Sprintf("; %s (%s), which led before, stopped normally", before.Holder, before.Address)
	} else if before.Address != "" {
		why += fmt.Sprintf("; %s (%s), which led before, was silent", before.Holder, before.Address)
	}
	said := control.EventText{Type: corev1.EventTypeNormal, Reason: "LeaderElection", Message: why}
	return control.AddEvent(s, control.About(about), said, now), nil
}

// lead runs the hub until another hub leads.
func (m *Member) lead(ctx context.Context, at *Lead) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	context.AfterFunc(ctx, func() { // end at once, without waiting for open requests
		defer panics.Catch("acceptor")
		for _, a := range []*acceptor{m.https, m.mqtt, m.dev, m.peers} {
			a.end()
		}
	})
	at.beat = func(st *store.Store) {
		go func() {
			defer panics.CatchThen("beat", func(err error) { end(err) })
			if err := m.beat(ctx, st, at.Member.Token); err != nil {
				end(err)
			}
		}()
	}
	at.Listeners = Listeners{HTTPS: m.https.open(), MQTT: m.mqtt.open(), Dev: m.dev.open(), Peer: m.peers.open()}
	h, err := m.c.Lead(ctx, at)
	if err == nil {
		m.hub.Store(&h)
		err = h.Run(ctx)
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrDeposed) {
		err = cause
	} else if errors.Is(err, store.ErrLocked) {
		err = fmt.Errorf("%w: %w", ErrDeposed, err)
	}
	end(nil)
	return err
}

// beat writes the heartbeat. It ends the hub when another hub leads, or when the database is
// unreachable for so long that another hub may lead. A long transaction may delay a heartbeat; beat
// then checks whether the row still has this hub's token.
func (m *Member) beat(ctx context.Context, st *store.Store, token uint64) error {
	b := leader.View{}.Took(token, m.clock())
	tick := time.NewTicker(leader.Look)
	defer tick.Stop()
	type answer struct {
		began time.Duration
		under *bool
		err   error
	}
	answers := make(chan answer, 2)
	var beats, looks bool
	ask := func(under *bool, do func(context.Context) error) {
		*under = true
		began := m.clock()
		go func() {
			defer panics.Catch("beat")
			answers <- answer{began, under, do(ctx)}
		}()
	}
	for {
		switch b.Decide(m.clock()) {
		case leader.StepDown:
			return fmt.Errorf("%w: its database has not answered for %s", ErrDeposed, leader.Lease)
		case leader.Renew:
			if !beats {
				ask(&beats, st.Beat)
			} else if !looks {
				ask(&looks, st.Holds)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case a := <-answers:
			*a.under = false
			switch {
			case a.err == nil:
				b = b.Took(token, max(a.began, b.Renewed))
			case errors.Is(a.err, store.ErrLocked):
				return fmt.Errorf("%w: %w", ErrDeposed, a.err)
			}
		case <-tick.C:
		}
	}
}
