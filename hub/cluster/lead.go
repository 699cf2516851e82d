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

// ErrDeposed: this hub has led, and another one leads now.
var ErrDeposed = errors.New("this hub leads no more: it ends, and stands by when it is started again")

// A Lead is what a hub that leads others begins with, and what it tells them.
type Lead struct {
	Member    store.Member // as which it leads
	Listeners              // until it ends

	cfg      config.Config
	log      *slog.Logger
	fleet    *follower                // nil: the hub reads the fleet anew
	beat     func(store *store.Store) // see Beat
	before   leader.Row               // who led until now
	standbys standbys
	address  atomic.Pointer[string] // where standbys are told that they reach this hub
}

// Beat begins to show the other hubs that this one lives.
func (l *Lead) Beat(st *store.Store) { l.beat(st) }

// Fleet returns the fleet as the standby has followed it, and what of it had to be mended; false: it is
// not what the database holds.
func (l *Lead) Fleet(
	ctx context.Context, st *store.Store, began time.Time,
) (s state.Snapshot, mended []state.Change, ok bool) {
	if l.fleet == nil {
		return s, nil, false
	}
	s, mended = l.fleet.take(began)
	rev, err := st.Revision(ctx)
	return s, mended, err == nil && rev == s.Revision
}

// Address is where standbys are told that they reach this hub.
func (l *Lead) Address() string { return *l.address.Load() }

// Standbys are the hubs that stand by now.
func (l *Lead) Standbys() []leader.Status { return l.standbys.list() }

// KeepAddress tells the hubs that stand by where they reach this one, if that has changed.
func (l *Lead) KeepAddress(ctx context.Context, st *store.Store) {
	at, former := peerAddress(l.cfg, l.Peer, Names(l.cfg)), l.Address()
	if former == at {
		return
	}
	if err := st.ReachedAt(ctx, at); err != nil {
		if ctx.Err() == nil {
			l.log.Warn("standbys may look for this hub at an old address", "err", err)
		}
		return
	}
	l.log.Info("standbys reach this hub at another address", "address", at, "former", former)
	l.address.Store(&at)
}

// ServePeers answers the requests that standbys pass on.
func (l *Lead) ServePeers(ctx context.Context, open *sync.WaitGroup, next http.Handler, config *tls.Config) error {
	s := peerServer(peer.Accept(next, l.standbys.hear))
	s.ErrorLog, s.BaseContext = slog.NewLogLogger(l.log.Handler(), slog.LevelDebug),
		func(net.Listener) context.Context { return ctx }
	return listen.ServeUntil(ctx, open, s, func() error { return s.Serve(peer.Listen(l.Peer, config)) })
}

// peerServer serves other hubs, which bound their clients themselves.
func peerServer(next http.Handler) *http.Server {
	return &http.Server{
		Handler: next, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 128 << 10,
		ConnContext: listen.ConnContext,
	}
}

// News makes an event of the change of leaders, about the system's namespace: the hub is not an object
// itself.
func (l *Lead) News(s state.Snapshot, now time.Time) ([]state.Change, error) {
	about := s.Get(state.Key{Kind: state.Namespaces, Name: metav1.NamespaceSystem})
	if about == nil {
		return nil, nil
	}
	why := fmt.Sprintf("hub %s (%s) leads from now on", l.Member.Name, l.Member.Address)
	if before := l.before; before.Address != "" && before.Left {
		why += fmt.Sprintf("; %s (%s), which led before, ended in order", before.Holder, before.Address)
	} else if before.Address != "" {
		why += fmt.Sprintf("; nothing was heard of %s (%s), which led before", before.Holder, before.Address)
	}
	said := control.EventText{Type: corev1.EventTypeNormal, Reason: "LeaderElection", Message: why}
	return control.AddEvent(s, control.About(about), said, now), nil
}

// lead runs the hub until another one leads.
func (m *Member) lead(ctx context.Context, at *Lead) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	context.AfterFunc(ctx, func() { // at once, and not when the last of what it waits for has answered
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

// beat shows the others that this hub lives, and ends it when it leads no more: it has been
// overtaken, or cannot reach the database for so long that it may have been. A transaction that
// takes long, before which it cannot change the row, is no such thing: meanwhile it looks
// whether its token is there.
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
