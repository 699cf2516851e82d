package control

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/state"
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
	// Commit returns after all rows are durable, or none. ErrFull: there is no room; ErrUnavailable:
	// not now.
	Commit(ctx context.Context, rows []Row, rev uint64) error
}

// Devices are what the loop asks about nodes, and whom it tells. No call waits for one.
type Devices interface {
	// Seen returns when a node was last heard of, if this process has heard of it.
	Seen(node string) (at time.Time, ok bool)
	// Shown tells what is remembered and shown now. It is called on the loop's goroutine.
	Shown(s state.Snapshot, log []state.Applied)
}

// Config is what a loop works with.
type Config struct {
	Store    Store
	Log      *slog.Logger
	Devices  Devices // nil: there are none
	Follows  Consequences
	Deciders []Decider
	Start    state.Snapshot
	History  int // changes that watchers can still get; 0: 10,000
	// OnBurst is called before many nodes' deadlines are looked at at once: whoever waits for that
	// should not have to wait for anything else. Nil: nobody minds.
	OnBurst func()
}

// A Loop keeps the fleet as it should be. Its goroutine is the only one that
// changes the fleet; everyone else reads what Snapshot returns.
type Loop struct {
	Config
	settler *Settler
	started time.Time // the hub's time then
	began   time.Time // the machine's
	jobs    chan *job
	stopped chan struct{}                   // closed when Run has ended
	running atomic.Pointer[context.Context] // Run's
	soon    chan func(state.Snapshot)
	current atomic.Pointer[state.Snapshot]
	feed    *Feed
	stalls  stalls
	outage  storeOutage // only Run's
	space   storeSpace  // only Run's
	// what no decider has heard of: events of the last pass, news without what follows; only Run's
	unseen    []state.Applied
	passes    atomic.Uint64
	commits   atomic.Uint64
	pace      pace
	unsettled atomic.Uint64
	inCommit  atomic.Int64 // age at which the commit began that is under way; 0: none is
}

type job struct {
	news News
	from sender // who brought it
	took time.Duration
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
		Config: c, settler: NewSettler(c.Follows, c.Deciders...),
		started: c.Start.Started, began: time.Now(), jobs: make(chan *job, 1024), stopped: make(chan struct{}),
		soon: make(chan func(state.Snapshot), 1024),
		feed: NewFeed(c.History, c.Start.Revision),
	}
	l.current.Store(&c.Start)
	return l
}

// Snapshot returns the fleet as of the last pass. It never blocks.
func (l *Loop) Snapshot() state.Snapshot { return *l.current.Load() }

// Since returns the changes after a revision; see Feed.
func (l *Loop) Since(rev uint64) ([]state.Applied, <-chan struct{}, error) { return l.feed.Since(rev) }

// Now returns the hub's time: its clock at the start, carried on by the monotonic
// clock, so that a clock that is set later moves no deadline.
func (l *Loop) Now() time.Time { return l.At(l.Age()) }

// Age is how long the loop has been there, by the monotonic clock alone: started
// can be later than this machine's clock was.
func (l *Loop) Age() time.Duration { return time.Since(l.began) }

// At returns the hub's time when the loop had an age.
func (l *Loop) At(age time.Duration) time.Time { return l.started.Add(age) }

// Soon calls f between two passes, on the loop's goroutine; it must not wait. Where too
// much is to be done already it is not, and Soon returns false.
func (l *Loop) Soon(f func(s state.Snapshot)) bool {
	select {
	case l.soon <- f:
		return true
	default:
		return false
	}
}

// Passes and Commits count what the loop has done.
func (l *Loop) Passes() uint64  { return l.passes.Load() }
func (l *Loop) Commits() uint64 { return l.commits.Load() }

// Unsettled counts the passes in which the deciders found no end.
func (l *Loop) Unsettled() uint64 { return l.unsettled.Load() }

// ErrFull is what a Store wraps that has no room for anything more.
var ErrFull = errors.New("no room on the hub's disk")

// ErrUnavailable is what a Store wraps that cannot be reached for now.
var ErrUnavailable = errors.New("the hub's database does not answer")

// ErrStopped answers news that came while the hub was stopping.
var ErrStopped = errors.New("the hub is stopping: nothing was changed, try again in a moment")

// Do hands news to the loop and waits until what follows from it is durable. It
// returns what the news itself changed.
func (l *Loop) Do(ctx context.Context, news News) ([]state.Applied, error) {
	j := &job{news: news, from: senderOf(ctx), over: make(chan struct{})}
	if err := l.pace.wait(ctx, j.from.name); err != nil {
		return nil, l.notQueued(err)
	}
	if since := l.inCommit.Load(); since != 0 && l.Age()-time.Duration(since) > slowCommit {
		return nil, ErrUnavailable // nothing is remembered for now: nobody has to wait for that
	}
	select {
	case l.jobs <- j:
	case <-ctx.Done():
		return nil, l.notQueued(ctx.Err())
	}
	select {
	case <-j.over:
		return j.done, j.err
	case <-l.stopped:
	case <-ctx.Done():
		if !l.stopping() {
			return nil, ctx.Err()
		}
		select { // what is under way is carried out: what became of it is known soon
		case <-j.over:
		case <-l.stopped:
		case <-time.After(stopGrace):
			return nil, ctx.Err()
		}
	}
	select {
	case <-j.over: // in the last pass
		return j.done, j.err
	default:
		return nil, ErrStopped
	}
}

// stopping tells whether the hub has been told to stop: the contexts of requests end with it.
func (l *Loop) stopping() bool {
	ctx := l.running.Load()
	return ctx != nil && (*ctx).Err() != nil
}

// notQueued is what becomes of news that the loop has not been handed.
func (l *Loop) notQueued(err error) error {
	if l.stopping() {
		return ErrStopped
	}
	return err
}

const (
	// slowCommit is how long a commit may take before whoever comes is told at once that
	// the database does not answer.
	slowCommit = 5 * time.Second
	// stopGrace is how long a hub that stops lets its clients wait: the server cuts them off then.
	stopGrace = 5 * time.Second
	// minPassInterval is the least time between two passes that only the clock asked for,
	// so that ten thousand deadlines cost a hundred passes a second, not ten thousand.
	minPassInterval = 10 * time.Millisecond
	// maxBatch bounds how much news shares one transaction.
	maxBatch = 128
)

// Run keeps the fleet until ctx is done. The plan under way is carried out first;
// whoever waits then, or comes later, is told ErrStopped.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.stopped)
	l.running.Store(&ctx)
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	tidy := time.NewTicker(time.Minute)
	defer tidy.Stop()
	l.stalls.begin(l.Age()) // from now on devices can be heard: their grace begins here
	go l.watchStalls(ctx)
	for {
		var jobs []*job
		news := l.jobs
		if l.Now().Before(l.outage.until) {
			news = nil // the alarm rings when it is time to try again
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tidy.C:
			l.feed.forget(l.Now())
			continue
		case f := <-l.soon:
			f(l.Snapshot())
			continue
		case j := <-news:
			jobs = append(jobs, j)
		case <-alarm.C:
		}
	more:
		for len(jobs) < maxBatch {
			select {
			case j := <-l.jobs:
				jobs = append(jobs, j)
			default:
				break more
			}
		}
		err := l.pass(context.WithoutCancel(ctx), jobs)
		wait := time.Hour
		wake := l.settler.Wake()
		if l.space.full && (wake.IsZero() || l.space.next.Before(wake)) {
			wake = l.space.next
		}
		if l.settler.AsksAll(l.Now()) {
			wake = l.Now()
		}
		if !wake.IsZero() {
			wait = max(wake.Sub(l.Now()), minPassInterval)
		}
		if err != nil {
			wait = retry
		}
		alarm.Reset(wait)
	}
}
