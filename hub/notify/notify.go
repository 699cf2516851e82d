// Package notify sends notifications of incidents to a webhook and by mail.
//
// Each target gets one message when an incident opens and one when it closes; many incidents of one
// cause are one message. The Incident stores which messages were sent and when a failed attempt is
// repeated, so a restart repeats no message. Only the hub's configuration names targets and their
// secrets. The package decides nothing about incidents: package incident does. hub/serve runs it.
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
	// looks is the interval of checks for incidents.
	looks = 2 * time.Second
	// timeout is how long one message may take.
	timeout = 15 * time.Second
	// atOnce limits the messages to one target in one check.
	atOnce = 20

	leastRetry, mostRetry = 10 * time.Second, 10 * time.Minute
)

// A Fleet is the control loop.
type Fleet interface {
	Snapshot() state.Snapshot
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
}

// An Event is what happened to an incident.
type Event string

// The events.
const (
	Opened Event = "opened"
	Closed Event = "closed"
	Test   Event = "test"
)

// A Message is the content of a notification.
type Message struct {
	Event    Event           `json:"event"`
	Hub      string          `json:"hub,omitempty"` // address of the page
	At       metav1.Time     `json:"at"`
	Incident *fleet.Incident `json:"incident,omitempty"` // if there are several, the worst
	// Incidents are all incidents of a message about several: they have the same cause, the worst
	// is first.
	Incidents []*fleet.Incident `json:"incidents,omitempty"`

	// Only are the recipients that an earlier attempt did not reach. Nil: all recipients.
	Only []string `json:"-"`
}

// ID identifies the message. A message may be sent twice, because the hub ended before it stored
// that the message was sent. Both times it has the same ID.
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

// A Target receives notifications.
type Target interface {
	// Name is the target's name in Incidents: webhook or mail.
	Name() string
	// To is the target's address for users, without secrets.
	To() string
	Send(ctx context.Context, m Message) error
}

// A Notifier notifies targets.
type Notifier struct {
	Fleet   Fleet
	Targets []Target
	Hub     func() string // address of the page
	Now     func() time.Time
	Log     *slog.Logger
}

// A teller notifies one target, so that targets do not wait for each other.
type teller struct {
	*Notifier
	Target

	pending map[string]attempt // attempts whose result could not be stored, by incident
}

// An attempt is the result of sending a message that is not stored yet.
type attempt struct {
	event Event
	only  []string
	err   error
}

// Run notifies targets until ctx is done.
func (n *Notifier) Run(ctx context.Context) error {
	var all errgroup.Group
	for _, target := range n.Targets {
		t := &teller{Notifier: n, Target: target, pending: map[string]attempt{}}
		all.Go(func() error { return panics.Keep(ctx, "notifications", t.run) })
	}
	return all.Wait()
}

// run notifies the target until ctx is done.
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

// TestTarget sends a test message to a target.
func (n *Notifier) TestTarget(ctx context.Context, name string) error {
	i := slices.IndexFunc(n.Targets, func(t Target) bool { return t.Name() == name })
	if i < 0 {
		return errNobody
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return n.Targets[i].Send(ctx, Message{Event: Test, Hub: n.Hub(), At: metav1.NewTime(n.Now())})
}

// tell sends the messages that are due.
func (t *teller) tell(ctx context.Context) {
	sent := 0
	maps.DeleteFunc(t.pending, func(incident string, _ attempt) bool {
		return t.Fleet.Snapshot().Get(state.Key{Kind: state.Incidents, Name: incident}) == nil
	})
	for name, a := range t.pending { // sent already, so it is not sent again
		t.remember(ctx, a, name)
	}
	now := t.Fleet.Snapshot()
	for _, d := range deliveries(state.Each[*fleet.Incident](now, state.Incidents, ""), t.Name(), t.Now()) {
		m := Message{Event: d.event, Hub: t.Hub(), At: metav1.NewTime(t.Now()), Only: d.only}
		var names []string
		for _, i := range d.incidents {
			i, _ = t.Fleet.Snapshot().Get(state.KeyOf(i)).(*fleet.Incident) // the earlier messages may have taken minutes
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
			t.Log.Warn("some recipients were not notified of an incident",
				"incident", names[0], "incidents", len(names), "event", d.event,
				"target", t.Name(), "err", err)
		case err != nil:
			t.Log.Warn("cannot send a notification: it is sent again later", "incident", names[0], "incidents", len(names),
				"event", d.event, "target", t.Name(), "err", err)
		}
		t.remember(ctx, attempt{d.event, d.only, err}, names...)
	}
}

func (t *teller) isPending(incident string) bool {
	_, is := t.pending[incident]
	return is
}

// remember stores the result of an attempt. If that fails it is stored later, and the message is
// not sent again in the meantime.
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
			t.Log.Warn("cannot store that a notification was sent: a restart of the hub would send it again",
				"incident", name, "err", err)
		}
		t.pending[name] = a
	}
}

// outcome writes the result of an attempt into t.
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

// Line returns the message on one line.
func (m Message) Line() string {
	i := m.Incident
	if i == nil {
		return "This is a test: notifications reach you"
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
