package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// ErrDeposed: this hub has led, and leads no more.
var ErrDeposed = errors.New("this hub leads no more: it ends, and stands by when it is started again")

// A lead is what a Hub that leads others begins with.
type lead struct {
	member store.Member
	fleet  *follower                // nil: it reads the fleet anew
	beat   func(store *store.Store) // begins to show that it lives
	before leader.Row               // who led until now
}

// lead is a hub until another one leads.
func (m *Member) lead(ctx context.Context, at *lead) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	context.AfterFunc(ctx, func() { // at once, and not when the last of what it waits for has answered
		defer panics.Catch("gate")
		for _, g := range []*gate{m.https, m.mqtt, m.dev, m.peers} {
			g.end()
		}
	})
	at.beat = func(st *store.Store) {
		go func() {
			defer panics.CatchThen("beat", func(err error) { end(err) })
			if err := m.beat(ctx, st, at.member.Token); err != nil {
				end(err)
			}
		}()
	}
	o := m.o
	o.lead = at
	o.Listeners = Listeners{HTTPS: m.https.open(), MQTT: m.mqtt.open(), Dev: m.dev.open(), Peer: m.peers.open()}
	h, err := New(ctx, o)
	if err == nil {
		m.hub.Store(h)
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
	b := leader.Belief{}.Took(token, m.clock())
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

// tellLead makes an event of the change of leaders, about the namespace of the system: the hub is
// no object itself.
func (h *Hub) tellLead(ctx context.Context) error {
	at := h.o.lead
	if at == nil {
		return nil
	}
	_, err := h.Loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		about := s.Get(state.Key{Kind: state.Namespaces, Name: metav1.NamespaceSystem})
		if about == nil {
			return nil, nil
		}
		why := fmt.Sprintf("hub %s (%s) leads from now on", at.member.Name, at.member.Address)
		if before := at.before; before.Address != "" && before.Left {
			why += fmt.Sprintf("; %s (%s), which led before, ended in order", before.Holder, before.Address)
		} else if before.Address != "" {
			why += fmt.Sprintf("; nothing was heard of %s (%s), which led before", before.Holder, before.Address)
		}
		return control.AddEvent(s, control.About(about), control.EventText{Type: corev1.EventTypeNormal, Reason: "LeaderElection", Message: why}, now), nil
	})
	return err
}
