// Package notify tells somebody outside of incidents: a webhook, and people by e-mail.
//
// Each is told of the opening of an incident and of its end, once each; of many incidents of one
// cause in one message. What was told, and when a failed attempt is made again, stands in the
// Incident itself: a restart of the hub forgets neither. Who is told, and with which secret, the
// administrator says in the hub's own configuration, and nobody else can: the hub sends to no
// address that comes over the network. It decides nothing about incidents: package incident does.
package notify

import (
	"context"
	"crypto/sha256"
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
	"flotilla.dev/hub/incident"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

const (
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
	Incident *fleet.Incident `json:"incident,omitempty"` // of several, the worst
	// Incidents are all that the message is about, where they are several: of one cause, worst first.
	Incidents []*fleet.Incident `json:"incidents,omitempty"`

	// Only is those of the target whom it is for: those whom it did not reach at first. nil: all.
	Only []string `json:"-"`
}

// ID tells a message from others: one that comes twice, as the hub ended before it could remember
// that it had been sent, has the same. An incident that is forgotten may give its name to the next.
func (m Message) ID() string {
	if m.Incident == nil {
		return fmt.Sprintf("%s-%d", m.Event, m.At.Unix())
	}
	id := func(i *fleet.Incident) string { return fmt.Sprintf("%s-%s-%d", i.Name, m.Event, i.Opened.Unix()) }
	if len(m.Incidents) == 0 {
		return id(m.Incident)
	}
	h := sha256.New()
	for _, i := range m.Incidents {
		h.Write([]byte(id(i) + "\n"))
	}
	return fmt.Sprintf("%s-and-%d-%x", id(m.Incident), len(m.Incidents)-1, h.Sum(nil)[:6])
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
	for name, a := range t.pending { // it was sent: once is enough
		t.remember(ctx, a, name)
	}
	now := t.Fleet.Snapshot()
	for _, d := range deliveries(state.Each[*fleet.Incident](now, state.Incidents, ""), t.Name(), t.Now()) {
		m := Message{Event: d.event, Hub: t.Hub(), At: metav1.NewTime(t.Now()), Only: d.only}
		var names []string
		for _, i := range d.incidents {
			i, _ = t.Fleet.Snapshot().Get(state.KeyOf(i)).(*fleet.Incident) // those before it may have taken minutes
			if i == nil || t.isPending(i.Name) {
				continue
			}
			if event, _ := due(i, t.Name(), t.Now()); event != d.event {
				continue
			}
			about := i.DeepCopy()
			about.Told, about.ManagedFields = nil, nil
			m.Incidents, names = append(m.Incidents, about), append(names, i.Name)
		}
		if len(names) == 0 {
			continue
		}
		if m.Incident = m.Incidents[0]; len(names) == 1 {
			m.Incidents = nil
		}
		if sent++; sent > atOnce || ctx.Err() != nil {
			return
		}
		within, cancel := context.WithTimeout(ctx, timeout)
		err := t.Send(within, m)
		cancel()
		switch {
		case errors.As(err, new(partly)):
			t.Log.Warn("not everybody was told of an incident", "incident", names[0], "incidents", len(names), "event", d.event,
				"target", t.Name(), "err", err)
		case err != nil:
			t.Log.Warn("nobody was told of an incident: it is tried again", "incident", names[0], "incidents", len(names),
				"event", d.event, "target", t.Name(), "err", err)
		}
		t.remember(ctx, attempt{d.event, d.only, err}, names...)
	}
}

func (t *teller) isPending(incident string) bool {
	_, is := t.pending[incident]
	return is
}

// remember writes down what came of an attempt. Where that cannot be it is tried again, and the
// attempt is not made again until then.
func (t *teller) remember(ctx context.Context, a attempt, incidents ...string) {
	_, err := t.Fleet.Do(ctx, func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		for _, name := range incidents {
			i, _ := s.Get(state.Key{Kind: state.Incidents, Name: name}).(*fleet.Incident)
			if i == nil {
				continue
			}
			i = i.DeepCopy()
			at := slices.IndexFunc(i.Told, func(told fleet.IncidentTold) bool { return told.Whom == t.Name() })
			if at < 0 {
				i.Told, at = append(i.Told, fleet.IncidentTold{Whom: t.Name()}), len(i.Told)
			}
			outcome(&i.Told[at], a, now)
			changes = append(changes, state.Put(i, ""))
		}
		return changes, nil
	})
	for _, name := range incidents {
		if err == nil {
			delete(t.pending, name)
			continue
		}
		if !t.isPending(name) && ctx.Err() == nil {
			t.Log.Warn("cannot remember who was told of an incident: if the hub ends before it can, they are told again",
				"incident", name, "err", err)
		}
		t.pending[name] = a
	}
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
	if i == nil {
		return "This is a test: the hub can reach you"
	}
	text := i.Message
	if len(m.Incidents) > 1 {
		text = incident.Title(m.Incidents)
	}
	if m.Event == Closed {
		return "Over: " + text
	}
	return string(i.Severity) + ": " + text
}
