package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
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
	stopped chan struct{} // closed when Run has ended
	again   chan string   // nodes whose desired state is to be sent again
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
		started: c.Start.Started, began: time.Now(), jobs: make(chan *job, 1024), stopped: make(chan struct{}), again: make(chan string, 1024),
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
	case <-l.stopped:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-j.over: // in the last pass
		return j.done, j.err
	default:
		return nil, ErrStopped
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

// Run keeps the fleet until ctx is done. The plan under way is carried out first;
// whoever waits then, or comes later, is told ErrStopped.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.stopped)
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	tidy := time.NewTicker(time.Minute)
	defer tidy.Stop()
	for {
		var jobs []*job
		select {
		case <-ctx.Done():
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
