package control

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/state"
)

// News is an event or a request, as a pure function: it returns the changes that follow, or the
// error that refuses them.
type News = func(s state.Snapshot, now time.Time) ([]state.Change, error)

// A Row is one object in the form of the store.
type Row struct {
	Key    state.Key
	UID    string
	Rev    uint64
	Object []byte // JSON; nil: deleted
	State  state.Object
}

// A Store keeps rows durably.
type Store interface {
	// Commit returns after all rows are durable. After an error no row is stored: ErrFull without
	// disk space, ErrUnavailable if the database does not answer.
	Commit(ctx context.Context, rows []Row, rev uint64) error
}

// Devices are the loop's view of devices. No call blocks.
type Devices interface {
	// Seen returns when this process last received a heartbeat from a node.
	Seen(node string) (at time.Time, ok bool)
	// Shown receives the new snapshot and the changes, after the commit. It runs on the loop's
	// goroutine.
	Shown(s state.Snapshot, log []state.Applied)
}

// Config is what a loop works with.
type Config struct {
	Store    Store
	Log      *slog.Logger
	Devices  Devices // nil: no devices
	Follows  Consequences
	Deciders []Decider
	Start    state.Snapshot
	History  int // changes kept for watchers; 0: 10,000
	// OnBurst is called before a pass that decides about many expired nodes, so that the process
	// can prepare, for example collect garbage less often; may be nil.
	OnBurst func()
}

// A Loop keeps the fleet in its desired state. Its goroutine is the only one that changes the
// fleet; all others read Snapshot.
type Loop struct {
	Config
	settler *Settler
	started time.Time // the hub's time when the loop was made
	began   time.Time // the machine's time when the loop was made
	jobs    chan *job
	stopped chan struct{}                   // closed when Run has ended
	running atomic.Pointer[context.Context] // Run's context
	soon    chan func(state.Snapshot)
	current atomic.Pointer[state.Snapshot]
	feed    *Feed
	stalls  stalls
	outage  storeOutage // used only by Run
	space   storeSpace  // used only by Run
	// changes that no decider has seen: events of the last pass, and news that was committed alone;
	// used only by Run
	unseen    []state.Applied
	passes    atomic.Uint64
	commits   atomic.Uint64
	pace      pace
	unsettled atomic.Uint64
	inCommit  atomic.Int64 // Age at which the running commit began; 0: no commit runs
}

type job struct {
	news News
	from sender
	took time.Duration
	done []state.Applied
	err  error
	over chan struct{}
}

// New returns a loop that starts from the stored fleet.
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

// Snapshot returns the fleet after the last pass. It never blocks.
func (l *Loop) Snapshot() state.Snapshot { return *l.current.Load() }

// Since returns the changes after a revision; see Feed.
func (l *Loop) Since(rev uint64) ([]state.Applied, <-chan struct{}, error) { return l.feed.Since(rev) }

// Now returns the hub's time: the clock at the start plus monotonic time, so that setting the clock
// moves no deadline.
func (l *Loop) Now() time.Time { return l.At(l.Age()) }

// Age returns the time since the loop was made, in monotonic time.
func (l *Loop) Age() time.Duration { return time.Since(l.began) }

// At returns the hub's time at an age of the loop.
func (l *Loop) At(age time.Duration) time.Time { return l.started.Add(age) }

// Soon calls f between two passes, on the loop's goroutine; f must not block. It returns false if
// too many calls are waiting.
func (l *Loop) Soon(f func(s state.Snapshot)) bool {
	select {
	case l.soon <- f:
		return true
	default:
		return false
	}
}

// Passes returns the number of passes, Commits the number of commits.
func (l *Loop) Passes() uint64  { return l.passes.Load() }
func (l *Loop) Commits() uint64 { return l.commits.Load() }

// Unsettled returns the number of passes in which the deciders did not settle.
func (l *Loop) Unsettled() uint64 { return l.unsettled.Load() }

// ErrFull is wrapped by the errors of a Store without disk space.
var ErrFull = errors.New("no room on the hub's disk")

// ErrUnavailable is wrapped by the errors of a Store that cannot be reached.
var ErrUnavailable = errors.New("the hub's database does not answer")

// ErrStopped refuses news that waits or arrives while the hub stops.
var ErrStopped = errors.New("the hub is stopping: nothing was changed, try again in a moment")

// Do passes news to the loop and waits until its consequences are durable. It returns the changes
// of the news itself.
func (l *Loop) Do(ctx context.Context, news News) ([]state.Applied, error) {
	j := &job{news: news, from: senderOf(ctx), over: make(chan struct{})}
	if err := l.pace.wait(ctx, j.from.name); err != nil {
		return nil, l.notQueued(err)
	}
	if since := l.inCommit.Load(); since != 0 && l.Age()-time.Duration(since) > slowCommit {
		return nil, ErrUnavailable // nothing can be stored now: do not wait
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
		select { // the running pass ends soon: wait for its result
		case <-j.over:
		case <-l.stopped:
		case <-time.After(stopGrace):
			return nil, ctx.Err()
		}
	}
	select {
	case <-j.over: // the last pass has evaluated the news
		return j.done, j.err
	default:
		return nil, ErrStopped
	}
}

// stopping tells whether the hub is stopping.
func (l *Loop) stopping() bool {
	ctx := l.running.Load()
	return ctx != nil && (*ctx).Err() != nil
}

// notQueued returns the error for news that the loop has not accepted.
func (l *Loop) notQueued(err error) error {
	if l.stopping() {
		return ErrStopped
	}
	return err
}

const (
	// slowCommit is how long a commit may run before further requests fail at once with
	// ErrUnavailable.
	slowCommit = 5 * time.Second
	// stopGrace is how long clients of a stopping hub wait for a result; then the server closes
	// their connections.
	stopGrace = 5 * time.Second
	// minPassInterval is the least time between two passes for alarms, so that ten thousand
	// deadlines cost at most a hundred passes a second.
	minPassInterval = 10 * time.Millisecond
	// maxBatch is how many pieces of news share one transaction.
	maxBatch = 128
)

// Run runs passes until ctx is done. It finishes the running pass; waiting and later news gets
// ErrStopped.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.stopped)
	l.running.Store(&ctx)
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	tidy := time.NewTicker(time.Minute)
	defer tidy.Stop()
	l.stalls.begin(l.Age()) // the devices' grace periods begin here
	go l.watchStalls(ctx)
	for {
		var jobs []*job
		news := l.jobs
		if l.Now().Before(l.outage.until) {
			news = nil // an alarm starts the next try
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
