package sim

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/notify"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A postbox receives notifications of incidents.
type postbox struct {
	mu   sync.Mutex
	have []string
}

func (*postbox) Name() string { return "webhook" }
func (*postbox) To() string   { return "a postbox" }

func (b *postbox) Send(_ context.Context, m notify.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.have = append(b.have, string(m.Event)+" "+string(m.Incident.Cause))
	return nil
}

func (b *postbox) read() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.have)
}

// cards returns the page's incident cards.
func (w *world) cards() []incident.Card {
	return incident.Cards(state.Each[*fleet.Incident](w.snapshot(), state.Incidents, ""))
}

// silent counts the nodes whose heartbeats have stopped.
func (w *world) silent() (n int) {
	for node := range w.snapshot().Nodes() {
		if state.ReadyOf(node) == corev1.ConditionUnknown {
			n++
		}
	}
	return n
}

// All sites go dark, node by node as their leases expire. When most nodes are silent there is one
// card for the fleet, before any notification. Then one message is sent, and another one when all
// nodes are back. An acknowledgement and its note survive the hub's restart.
func TestFleetADarkFleetIsOneCardAndOneMessage(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		for _, site := range []string{"bergen", "oslo", "stavanger", "tromso", "vadso"} {
			// the leases expire one after the other
			w.fleet(3, site)
			time.Sleep(1500 * time.Millisecond)
		}
		w.deploy("kiosk", 15)
		w.settleWithin(time.Minute, "the deployment")
		box := &postbox{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		tell := func() {
			n := &notify.Notifier{Fleet: w.hub.Loop, Targets: []notify.Target{box}, Hub: func() string { return "" },
				Now: time.Now, Log: slog.New(slog.DiscardHandler)}
			_ = n.Run(ctx)
			close(ended)
		}
		go tell()
		time.Sleep(time.Minute)
		w.cut(w.devices...)
		mostly := time.Duration(0) // how long most nodes have been silent
		folded := false
		for end := w.clock() + 2*time.Minute; w.clock() < end; time.Sleep(100 * time.Millisecond) {
			cards := w.cards()
			if len(cards) > incident.MostCards {
				t.Fatalf("at %s there are %d cards: %v", w.clock(), len(cards), cards)
			}
			if w.silent() < 9 { // most of the 15 nodes
				continue
			}
			if mostly == 0 {
				mostly = w.clock()
			}
			if w.clock() < mostly+time.Second {
				continue // incidents are updated once a second
			}
			if len(cards) != 1 || cards[0].Incidents[0].About.Kind != diagnose.KindFleet {
				t.Fatalf("at %s %d of 15 nodes are silent, and the cards are %v", w.clock(), w.silent(), cards)
			}
			folded = true
			if len(box.read()) > 0 && cards[0].Provisional(time.Now()) {
				t.Errorf("notified too early: %q", box.read())
			}
		}
		if got := box.read(); !folded || len(got) != 1 || got[0] != "opened FleetDark" {
			t.Errorf("the messages are %q, want one about the fleet", got)
		}

		name := w.cards()[0].Key
		key := state.Key{Kind: state.Incidents, Name: name}
		w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			i := s.Get(key).(*fleet.Incident).DeepCopy()
			i.Acknowledged, i.Note = &fleet.IncidentAcknowledged{By: "kari", Time: metav1.NewTime(now)}, "the hub's switch"
			return []state.Change{state.Put(i, "")}, nil
		})
		cancel()
		<-ended
		w.restartHub(5 * time.Second)
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		ended = make(chan struct{})
		go tell()
		w.heal(w.devices...)
		w.until(5*time.Minute, "all nodes are back", func() bool { return w.silent() == 0 })
		time.Sleep(3 * time.Minute)
		if got := box.read(); len(got) != 2 || got[1] != "closed FleetDark" && got[1] != "closed FleetMostlyDark" {
			t.Errorf("the messages are %q, want one about the end", got)
		}
		i := w.snapshot().Get(key).(*fleet.Incident)
		if i.Closed == nil || i.Acknowledged == nil || i.Acknowledged.By != "kari" || i.Note == "" || i.NodeSeconds == 0 {
			t.Errorf("the incident is stored as %+v", i)
		}
		if all := incident.Timeline(w.snapshot(), i); len(all) < 8 ||
			!slices.IsSortedFunc(all, func(a, b incident.Moment) int { return a.At.Compare(b.At) }) {
			t.Errorf("the incident's timeline is %v", all)
		}
		cancel()
		<-ended
	})
}
