// Package notify tells somebody outside of incidents: a webhook, and people by e-mail.
//
// Each is told of the opening of an incident and of its end, once each. What was told, and when
// a failed attempt is made again, stands in the Incident itself: a restart of the hub forgets
// neither. Who is told, and with which secret, the administrator says in the hub's own
// configuration, and nobody else can: the hub sends to no address that comes over the network.
// It decides nothing about incidents: package incident does.
package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

const (
	// settles is how long an incident must have been open before anybody is told: a site goes
	// dark node by node, and much is over in a moment.
	settles = 30 * time.Second
	// looks is how often incidents are looked at.
	looks = 2 * time.Second
	// timeout is how long one message may take.
	timeout = 15 * time.Second
	// atOnce is how many messages one look sends to one target.
	atOnce = 20

	leastRetry, mostRetry = 10 * time.Second, 10 * time.Minute
)

// A Fleet is the control loop.
type Fleet interface {
	Snapshot() state.Snapshot
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
}

// An Event is what is told of.
type Event string

// The events.
const (
	Opened Event = "opened"
	Closed Event = "closed"
	Test   Event = "test"
)

// A Message is what one is told.
type Message struct {
	Event    Event           `json:"event"`
	Hub      string          `json:"hub,omitempty"` // address of the page
	At       metav1.Time     `json:"at"`
	Incident *fleet.Incident `json:"incident,omitempty"`

	// Only is those of the target whom it is for: those whom it did not reach at first. nil: all.
	Only []string `json:"-"`
}

// ID tells a message from others: one that comes twice, as the hub ended before it could remember
// that it had been sent, has the same. An incident that is forgotten may give its name to the next.
func (m Message) ID() string {
	if m.Incident == nil {
		return fmt.Sprintf("%s-%d", m.Event, m.At.Unix())
	}
	return fmt.Sprintf("%s-%s-%d", m.Incident.Name, m.Event, m.Incident.Opened.Unix())
}

// A Target is somebody who is told.
type Target interface {
	// Name is what Incidents call it: webhook or mail.
	Name() string
	// To is where it is, without secrets, for people.
	To() string
	Send(ctx context.Context, m Message) error
}

// A Notifier tells targets.
type Notifier struct {
	Fleet   Fleet
	Targets []Target
	Hub     func() string // address of the page
	Now     func() time.Time
	Log     *slog.Logger
}

// A teller tells one target, beside the others: one that hangs is waited for by nobody else.
type teller struct {
	*Notifier
	Target

	pending map[string]attempt // by incident: of which nothing could be remembered
}

// An attempt is one that its incident does not say yet.
type attempt struct {
	event Event
	only  []string
	err   error
}

// Run tells targets until ctx is done.
func (n *Notifier) Run(ctx context.Context) error {
	var all errgroup.Group
	for _, target := range n.Targets {
		t := &teller{Notifier: n, Target: target, pending: map[string]attempt{}}
		all.Go(func() error { return panics.Keep(ctx, "notifications", t.run) })
	}
	return all.Wait()
}

// run tells the target until ctx is done.
func (t *teller) run(ctx context.Context) error {
	tick := time.NewTicker(looks)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.tell(ctx)
		}
	}
}

// TestTarget sends a target a message that is about nothing.
func (n *Notifier) TestTarget(ctx context.Context, name string) error {
	i := slices.IndexFunc(n.Targets, func(t Target) bool { return t.Name() == name })
	if i < 0 {
		return errNobody
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return n.Targets[i].Send(ctx, Message{Event: Test, Hub: n.Hub(), At: metav1.NewTime(n.Now())})
}

// tell sends the target what it is to know now.
func (t *teller) tell(ctx context.Context) {
	sent := 0
	maps.DeleteFunc(t.pending, func(incident string, _ attempt) bool {
		return t.Fleet.Snapshot().Get(state.Key{Kind: state.Incidents, Name: incident}) == nil
	})
	for i := range state.Each[*fleet.Incident](t.Fleet.Snapshot(), state.Incidents, "") {
		if i, _ = t.Fleet.Snapshot().Get(state.KeyOf(i)).(*fleet.Incident); i == nil { // those before it may have taken minutes
			continue
		}
		if a, ok := t.pending[i.Name]; ok { // it was sent: once is enough
			t.remember(ctx, i.Name, a)
			continue
		}
		event, only := due(i, t.Name(), t.Now())
		if event == "" {
			continue
		}
		if sent++; sent > atOnce || ctx.Err() != nil {
			return
		}
		about := i.DeepCopy()
		about.Told, about.ManagedFields = nil, nil
		within, cancel := context.WithTimeout(ctx, timeout)
		err := t.Send(within, Message{Event: event, Hub: t.Hub(), At: metav1.NewTime(t.Now()), Incident: about, Only: only})
		cancel()
		switch {
		case errors.As(err, new(partly)):
			t.Log.Warn("not everybody was told of an incident", "incident", i.Name, "event", event, "target", t.Name(), "err", err)
		case err != nil:
			t.Log.Warn("nobody was told of an incident: it is tried again", "incident", i.Name, "event", event, "target", t.Name(), "err", err)
		}
		t.remember(ctx, i.Name, attempt{event, only, err})
	}
}

// due returns what a target is to be told of an incident now, "" for nothing, and who of it; nil for
// all. One that only follows from another, or is for information, is told to nobody; nor is one that
// was over before it was told. Who missed the opening is told of the end with the others.
func due(i *fleet.Incident, whom string, now time.Time) (event Event, only []string) {
	var told fleet.IncidentTold
	if at := slices.IndexFunc(i.Told, func(t fleet.IncidentTold) bool { return t.Whom == whom }); at >= 0 {
		told = i.Told[at]
	}
	waits := told.Next != nil && told.Next.After(now)
	switch {
	case waits && len(told.Missed) == 0:
		return "", nil
	case i.State == fleet.IncidentOpen && told.Opened == nil && i.PartOf == "" && i.Severity != fleet.SeverityInfo && !now.Before(i.Opened.Add(settles)):
		return Opened, nil
	case i.State == fleet.IncidentClosed && told.Whom != "" && told.Closed == nil:
		return Closed, nil
	case waits || len(told.Missed) == 0:
		return "", nil
	case i.State == fleet.IncidentClosed:
		return Closed, told.Missed
	}
	return Opened, told.Missed
}

// remember writes down what came of an attempt. Where that cannot be it is tried again, and the
// attempt is not made again until then.
func (t *teller) remember(ctx context.Context, incident string, a attempt) {
	_, err := t.Fleet.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		i, _ := s.Get(state.Key{Kind: state.Incidents, Name: incident}).(*fleet.Incident)
		if i == nil {
			return nil, nil
		}
		i = i.DeepCopy()
		at := slices.IndexFunc(i.Told, func(told fleet.IncidentTold) bool { return told.Whom == t.Name() })
		if at < 0 {
			i.Told, at = append(i.Told, fleet.IncidentTold{Whom: t.Name()}), len(i.Told)
		}
		outcome(&i.Told[at], a, now)
		return []state.Change{state.Put(i, "")}, nil
	})
	if err == nil {
		delete(t.pending, incident)
		return
	}
	if _, known := t.pending[incident]; !known && ctx.Err() == nil {
		t.Log.Warn("cannot remember who was told of an incident: if the hub ends before it can, they are told again", "incident", incident, "err", err)
	}
	t.pending[incident] = a
}

// outcome notes what came of an attempt.
func outcome(t *fleet.IncidentTold, a attempt, now time.Time) {
	at := metav1.NewTime(now)
	t.Error = ""
	if a.err != nil {
		t.Error = short(a.err.Error())
	}
	var some partly
	nobody := a.err != nil && !errors.As(a.err, &some)
	if !nobody || a.only == nil {
		t.Missed = some.later
	}
	if nobody || len(t.Missed) > 0 {
		wait := min(leastRetry<<min(t.Failed, 10), mostRetry)
		t.Failed++
		t.Next = new(metav1.NewTime(now.Add(wait)))
	} else {
		t.Failed, t.Next = 0, nil
	}
	if nobody {
		return
	}
	if a.event == Closed {
		t.Closed = &at
	}
	if t.Opened == nil {
		t.Opened = &at
	}
}

func short(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "…"
	}
	return text
}

// Line is a message in one line, for people.
func (m Message) Line() string {
	i := m.Incident
	switch {
	case i == nil:
		return "This is a test: the hub can reach you"
	case m.Event == Closed:
		return "Over: " + i.Message
	}
	return string(i.Severity) + ": " + i.Message
}
