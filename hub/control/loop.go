package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// News is something that happened or that somebody wants: a pure function from the
// fleet as it is to the changes that follow, or to the error that refuses them.
type News = func(s state.Snapshot, now time.Time) ([]state.Change, error)

// A Row is one object as the store keeps it.
type Row struct {
	Key    state.Key
	UID    string
	Rev    uint64
	Object []byte // JSON; nil: the object is no more
	State  state.Object
}

// A Store remembers rows across a power cut.
type Store interface {
	// Commit returns after all rows are durable, or none.
	Commit(ctx context.Context, rows []Row, rev uint64) error
}

// A Broker reaches devices. Neither call waits for one.
type Broker interface {
	Publish(node string, c wire.Channel, payload []byte) error
	Request(node, id string, r wire.Request) error
}

// Config is what a loop works with.
type Config struct {
	Store         Store
	Broker        Broker // may be set later, before Run
	Log           *slog.Logger
	Deciders      []Decider // the first one's alarms on nodes are their deadlines
	Deliver       Decider   // decides which node gets a new desired state; asked last
	LeaseInterval time.Duration
	Grace         time.Duration // when a silent incumbent gives way to another machine
	Start         state.Snapshot
	// Profile names the board profile that matches a hardware report, "" for none.
	Profile func(s state.Snapshot, st corev1.NodeStatus, hardware json.RawMessage) string
	// Manual: a device does not become a node by reporting; an administrator
	// creates its Node first.
	Manual  bool
	History int // changes that watchers can still get; 0: 10,000
}

// A Loop keeps the fleet as it should be. Its goroutine is the only one that
// changes the fleet; everyone else reads what Snapshot returns.
type Loop struct {
	Config
	settler *Settler
	started time.Time // the hub's time then
	began   time.Time // the machine's
	jobs    chan *job
	again   chan string // nodes whose desired state is to be sent again
	current atomic.Pointer[state.Snapshot]
	feed    *Feed
	pulses  pulses
	ids     atomic.Uint64
	passes  atomic.Uint64
	commits atomic.Uint64
}

type job struct {
	news News
	done []state.Applied
	err  error
	over chan struct{}
}

// New returns a loop that starts from the fleet as the store remembers it.
func New(c Config) *Loop {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.History == 0 {
		c.History = 10_000
	}
	l := &Loop{
		Config: c, settler: NewSettler(append(slices.Clone(c.Deciders), c.Deliver)...),
		started: c.Start.Started, began: time.Now(), jobs: make(chan *job, 1024), again: make(chan string, 1024),
		feed: NewFeed(c.History, c.Start.Revision),
	}
	l.current.Store(&c.Start)
	for rec := range state.Each[*state.Record](c.Start, state.Records, "") {
		l.adopt(rec)
	}
	for n := range c.Start.Nodes() {
		l.pulses.get(n.Name).silent.Store(state.ReadyOf(n) == corev1.ConditionUnknown)
	}
	return l
}

// Snapshot returns the fleet as of the last pass. It never blocks.
func (l *Loop) Snapshot() state.Snapshot { return *l.current.Load() }

// Since returns the changes after a revision; see Feed.
func (l *Loop) Since(rev uint64) ([]state.Applied, <-chan struct{}, error) { return l.feed.Since(rev) }

// Now returns the hub's time: its clock at the start, carried on by the monotonic
// clock, so that a clock that is set later moves no deadline.
func (l *Loop) Now() time.Time { return l.started.Add(l.age()) }

// age is how long the loop has been there, by the monotonic clock alone: started
// can be later than this machine's clock was.
func (l *Loop) age() time.Duration { return time.Since(l.began) }

// Passes and Commits count what the loop has done.
func (l *Loop) Passes() uint64  { return l.passes.Load() }
func (l *Loop) Commits() uint64 { return l.commits.Load() }

// ErrStopped answers news that came while the hub was stopping.
var ErrStopped = errors.New("the hub is stopping: nothing was changed, try again in a moment")

// Do hands news to the loop and waits until what follows from it is durable. It
// returns what the news itself changed.
func (l *Loop) Do(ctx context.Context, news News) ([]state.Applied, error) {
	j := &job{news: news, over: make(chan struct{})}
	select {
	case l.jobs <- j:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-j.over:
		return j.done, j.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

const (
	// breath is the least time between two looks that only the clock asked for,
	// so that ten thousand deadlines cost a hundred looks a second, not ten thousand.
	breath = 10 * time.Millisecond
	// retry is how long to wait after a plan could not be remembered.
	retry = time.Second
	// together bounds how much news shares one transaction.
	together = 128
)

// Run keeps the fleet until ctx is done. The plan under way is carried out first.
func (l *Loop) Run(ctx context.Context) error {
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	tidy := time.NewTicker(time.Minute)
	defer tidy.Stop()
	for {
		var jobs []*job
		select {
		case <-ctx.Done():
			l.refuse()
			return nil
		case <-tidy.C:
			l.feed.forget(l.Now())
			continue
		case node := <-l.again:
			l.tell(l.Snapshot(), node)
			continue
		case j := <-l.jobs:
			jobs = append(jobs, j)
		more:
			for len(jobs) < together {
				select {
				case j := <-l.jobs:
					jobs = append(jobs, j)
				default:
					break more
				}
			}
		case <-alarm.C:
		}
		err := l.pass(context.WithoutCancel(ctx), jobs)
		wait := time.Hour
		if wake := l.settler.Wake(); !wake.IsZero() {
			wait = max(wake.Sub(l.Now()), breath)
		}
		if err != nil {
			l.Log.Error("pass failed, will try again", "err", err, "in", retry)
			wait = retry
		}
		alarm.Reset(wait)
	}
}

// refuse answers whoever still waits when the loop ends.
func (l *Loop) refuse() {
	for {
		select {
		case j := <-l.jobs:
			j.err = ErrStopped
			close(j.over)
		default:
			return
		}
	}
}

// pass hears news, settles, remembers, tells and shows, all at one moment. What
// cannot be remembered has not happened.
func (l *Loop) pass(ctx context.Context, jobs []*job) (err error) {
	l.passes.Add(1)
	now := l.Now()
	s := l.refreshSeen(*l.current.Load(), now)
	var log []state.Applied
	for _, j := range jobs {
		var changes []state.Change
		if changes, j.err = l.hear(j.news, s, now); j.err != nil {
			continue
		}
		s, j.done = state.Apply(s, changes)
		log = append(log, j.done...)
	}
	s = l.see(s, func(yield func(string) bool) {
		for _, a := range log {
			switch a.Key.Kind {
			case state.Nodes:
				yield(a.Key.Name)
			case state.Sites: // another grace moves the deadlines of its nodes
				for n := range s.NodesIn(a.Key.Name) {
					yield(n.Name)
				}
			}
		}
	})
	s, made, settled := l.settler.Settle(s, slices.Clip(log), now)
	if !settled {
		last := "an alarm that is past"
		if len(made) > 0 {
			last = made[len(made)-1].Change.String()
		}
		l.Log.Error("the deciders find no end", "last", last)
	}
	log = append(log, made...)
	s, told := state.Apply(s, events(s, log, now))
	log = append(log, told...)

	if err = l.remember(ctx, log, s.Revision); err != nil {
		l.settler.LookAtAll()
		for _, j := range jobs {
			if j.err == nil {
				j.done, j.err = nil, fmt.Errorf("nothing was changed: %w", err)
			}
			close(j.over)
		}
		return err
	}
	for _, a := range log {
		l.say(a)
	}
	l.current.Store(&s)
	for _, node := range l.show(log) {
		l.tell(s, node)
	}
	l.feed.append(log, now)
	for _, j := range jobs {
		close(j.over)
	}
	return nil
}

// hear asks news what follows from it. A mistake in the code of one piece of news
// must not end the hub.
func (l *Loop) hear(news News, s state.Snapshot, now time.Time) (changes []state.Change, err error) {
	defer func() {
		if r := recover(); r != nil {
			l.Log.Error("news failed", "panic", r, "stack", string(debug.Stack()))
			changes, err = nil, fmt.Errorf("internal error: %v", r)
		}
	}()
	return news(s, now)
}

// refreshSeen reads the pulses of the nodes that are going to be looked at: those
// whose deadlines have come, or all.
func (l *Loop) refreshSeen(s state.Snapshot, now time.Time) state.Snapshot {
	return l.see(s, func(yield func(string) bool) {
		if l.settler.all {
			for n := range s.Nodes() {
				yield(n.Name)
			}
			return
		}
		for _, k := range l.settler.Due(0, now) {
			if k.Kind == state.Nodes {
				yield(k.Name)
			}
		}
	})
}

// see returns the snapshot that knows when each of the nodes was last heard of.
func (l *Loop) see(s state.Snapshot, nodes iter.Seq[string]) state.Snapshot {
	return s.WithAllSeen(func(yield func(string, time.Time) bool) {
		for node := range nodes {
			if t, ok := l.lastSeen(node); ok && t.After(s.Seen(node)) {
				yield(node, t)
			}
		}
	})
}

// remember commits the newest state of every object that changed.
func (l *Loop) remember(ctx context.Context, log []state.Applied, rev uint64) error {
	if len(log) == 0 {
		return nil
	}
	newest := make(map[state.Key]state.Applied, len(log))
	for _, a := range log {
		newest[a.Key] = a
	}
	rows := make([]Row, 0, len(newest))
	for k, a := range newest {
		row := Row{Key: k, Rev: a.Rev, State: a.New}
		if a.New != nil {
			row.UID = string(a.New.GetUID())
			object, err := json.Marshal(a.New)
			if err != nil {
				return fmt.Errorf("encode %s: %w", k, err)
			}
			row.Object = object
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	if err := l.Store.Commit(ctx, rows, rev); err != nil {
		return fmt.Errorf("remember %d changes: %w", len(rows), err)
	}
	l.commits.Add(1)
	return nil
}

// say writes a change's sentence into the log.
func (l *Loop) say(a state.Applied) {
	if a.Change.Why == "" {
		return
	}
	attrs := []any{}
	switch a.Key.Kind {
	case state.Nodes:
		attrs = append(attrs, "node", a.Key.Name)
	case state.Sites:
		attrs = append(attrs, "site", a.Key.Name)
	case state.Pods:
		attrs = append(attrs, "pod", a.Key.Namespace+"/"+a.Key.Name)
	}
	if a.Change.Warn {
		l.Log.Warn(a.Change.Why, attrs...)
	} else {
		l.Log.Info(a.Change.Why, attrs...)
	}
}

// show brings the pulses in line with what is remembered now, and returns the
// nodes that have a new desired state.
func (l *Loop) show(log []state.Applied) (nodes []string) {
	for _, a := range log {
		switch a.Key.Kind {
		case state.Nodes:
			if n, ok := a.New.(*corev1.Node); ok && n != nil {
				l.pulses.get(n.Name).silent.Store(state.ReadyOf(n) == corev1.ConditionUnknown)
			}
		case state.Records:
			rec, _ := a.New.(*state.Record)
			if rec == nil {
				l.pulses.m.Delete(a.Key.Name)
				continue
			}
			l.adopt(rec)
			if old, _ := a.Old.(*state.Record); (old == nil || old.Generation != rec.Generation || old.Paused) && !rec.Paused {
				nodes = append(nodes, rec.Name)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// adopt makes a node's pulse follow its record.
func (l *Loop) adopt(rec *state.Record) {
	p := l.pulses.get(rec.Name)
	if boot := p.boot.Load(); rec.Boot != "" && (boot == nil || *boot != rec.Boot) {
		p.seq.Store(0)
		p.status.Store(0)
		p.pods.Store(0)
		p.boot.Store(&rec.Boot)
		p.mu.Lock()
		p.asked, p.resent = backoff{}, backoff{} // what an earlier boot did not hear says nothing of this one
		p.mu.Unlock()
	}
	p.unmet.Store(rec.Unmet)
	if p.wanted.Swap(rec.Generation) != rec.Generation {
		p.mu.Lock()
		p.resent = backoff{next: l.age() + firstGap, gap: firstGap}
		p.mu.Unlock()
	}
}

func (l *Loop) requestID() string { return "hub-" + strconv.FormatUint(l.ids.Add(1), 36) }

// resend asks the loop to send a node its desired state again.
func (l *Loop) resend(node string) {
	select {
	case l.again <- node:
	default: // the next lease asks again
	}
}

// tell publishes a node's desired state. That the device has it is known from its
// leases alone.
func (l *Loop) tell(s state.Snapshot, node string) {
	rec := s.Record(node)
	if rec == nil || rec.Paused || rec.Generation == 0 || l.Broker == nil {
		return
	}
	d := Desired(s, node)
	d.Generation, d.Hub, d.Time = rec.Generation, s.Salt, l.Now().UTC()
	d.LeaseIntervalSeconds = int32(l.LeaseInterval / time.Second)
	payload, err := json.Marshal(d)
	if err == nil && len(payload) > wire.MaxToDevice {
		err = fmt.Errorf("it is %d bytes, and the limit is %d: use fewer or smaller config maps", len(payload), wire.MaxToDevice)
	}
	if err == nil {
		err = l.Broker.Publish(node, wire.ChannelDesired, payload)
	}
	if err != nil {
		l.Log.Debug("publish desired state", "node", node, "generation", rec.Generation, "err", err)
	}
}
