// Package link is the device's line to the hub: it connects over MQTT, says who
// is there and for how long, reports what the agent observes, and hands over what
// the hub wants.
//
// It numbers what it sends, sends again what was not acknowledged, and connects
// again for ever. It keeps nothing on disk and decides nothing about workloads:
// what is true it asks the Source, what arrives it gives the Sink, both of them
// the agent. Only here in device/ is paho imported. The words are shared/wire's.
package link

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// A Source knows what is true now. Its methods are called whenever something is
// to be sent, never at the same time, and must return quickly. The link fills in
// boot, seq, time and machine id.
type Source interface {
	Status() wire.Status
	Pods() wire.Pods
	StoredGeneration() int64 // of the desired state that is stored durably; 0: none
}

// A Sink takes what the hub sends. Its methods are called one at a time, and may
// take their time: a newer desired state replaces one that still waits. Refresh
// and ack requests are answered by the link and do not arrive here.
type Sink interface {
	Desired(wire.Desired)
	Request(id string, r wire.Request)
}

// Config is what a link is made of. Node, Boot, Server, Source and Sink are
// required.
type Config struct {
	Node         string
	Machine      string // 16 hex digits; empty: not known
	Boot         string // random id of this agent start; replaced where the hub asks for another
	AgentVersion string

	// Server is the hub: mqtts://host:8883, or mqtt://127.0.0.1:1883 for its
	// development listener, on loopback only. Several, with commas between them, are
	// addresses of the same hub or of its brokers.
	Server string
	// External: the addresses are those of a broker between the device and its hub. What the
	// broker acknowledges is not what the hub has: the hub acknowledges too.
	External bool
	// Prove proves to such a hub that a boot is this device's; nil: nothing is proved.
	Prove func(boot string) *wire.Proof
	// TLS holds the device's certificate and the hub's CA; required for mqtts.
	TLS *tls.Config
	// Dial opens the connection below TLS; nil: TCP to the host of Server.
	Dial func(context.Context) (net.Conn, error)

	Prefix         string        // of all topics; empty: wire.DefaultPrefix
	LeaseInterval  time.Duration // until the hub says otherwise; 0: 10 s
	StatusInterval time.Duration // longest time without a status; 0: 5 min

	Source Source
	Sink   Sink
	// Dismissed hears that the device's enrolment has ended. Run then says once more
	// which pods there are, as soon as there are none, and ends. nil: it is ignored.
	Dismissed func(wire.Dismissed)
	Log       *slog.Logger // nil: slog.Default()
}

// Times of the protocol, and limits of what waits here.
const (
	leaseJitter   = 0.04
	leaseRetry    = 200 * time.Millisecond // doubles
	leaseRetryMax = 7 * time.Second
	ackTimeout    = 10 * time.Second // for a PUBACK; then the message counts as lost
	maxUnacked    = 3                // lost in a row: then the connection counts as broken
	longPause     = time.Second      // after a list of pods that is longer as text than a message
	steady        = 30 * time.Second // a session of this length in which the hub answered ends the back-off
	newCause      = time.Minute      // between two lines of the log about one outage
	maxEvents     = 256
	maxRequests   = 1024    // that wait: more than the agent has room for, with their ends, as it is the one to refuse
	maxWaiting    = 1 << 20 // bytes of requests that wait; one alone may have more

	// Each desired state that differs is written to flash, twice. A hub that sends 4 MiB of
	// another one every second is held to 1.4 GB a day; the newest waits.
	desiredBurst = 32 << 20
	desiredRate  = 8 << 10 // bytes a second
)

// ErrOffline says that the hub cannot be reached now.
var ErrOffline = errors.New("not connected to the hub")

// ErrDismissed says that the device belongs to its hub no more, and holds no pods.
var ErrDismissed = errors.New("the hub has ended this device's enrolment")

// A Link keeps one device connected. Make it with New.
type Link struct {
	cfg  Config
	log  *slog.Logger
	told lineLimiter

	route   route          // the addresses, and the one that is used
	wake    chan struct{}  // something below changed
	deliver chan struct{}  // something arrived
	replies chan addressed // from Streams to the session
	numbers struct {       // of this boot; used by the session only
		lease, status, pods uint64
		list                uint64 // of pods that was begun last; pods: that was sent to its end
		connection          uint64
	}
	mu       sync.Mutex
	boot     string
	secret   string        // of its client id at a broker
	gone     bool          // dismissed
	interval time.Duration // between leases
	asked    asked
	events   []queued
	queued   uint64   // number of the newest event
	skipped  int      // events that had no room, not told yet
	desired  [][]byte // payloads that wait: a whole one, or parts of one
	requests []addressedRequest
	waiting  int // bytes of requests
	streams  map[string]*Stream
	session  *session     // nil: offline
	inFlight atomic.Int64 // bytes that the hub has not acknowledged
	lastErr  error
	acks     map[wire.Channel]*hubAck // what the hub has to acknowledge; the newest of each kind
	// the hub has heard a status of this connection; without a broker it let the device in
	known   atomic.Bool
	unheard atomic.Bool // an external broker is there, and its hub has not acknowledged what was sent last
	acked   bool        // the hub has acknowledged something in the session that is, or was last
	deaf    int         // sessions in a row in which an external broker's hub acknowledged nothing
}

// asked is what the agent or the hub wants sent soon.
type asked struct{ status, pods, lease, refresh, boot, move bool }

// queued is an event that waits, with its number of this run.
type queued struct {
	n uint64
	e wire.Event
}

type addressedRequest struct {
	id string
	r  wire.Request
}

// New checks the configuration. The link connects when it runs.
func New(cfg Config) (*Link, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = wire.DefaultPrefix
	}
	if cfg.LeaseInterval <= 0 {
		cfg.LeaseInterval = 10 * time.Second
	}
	if cfg.StatusInterval <= 0 {
		cfg.StatusInterval = 5 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	var r route
	err := errors.Join(wire.ValidNode(cfg.Node), wire.ValidMachine(cfg.Machine), wire.ValidBoot(cfg.Boot),
		wire.ValidPrefix(cfg.Prefix))
	if cfg.Source == nil || cfg.Sink == nil {
		err = errors.Join(err, errors.New("no Source or no Sink: this is a mistake in the program"))
	}
	if err == nil {
		err = r.set(&cfg, cfg.Server, cfg.External)
	}
	if err != nil {
		return nil, fmt.Errorf("link to hub %s: %w", cfg.Server, err)
	}
	l := &Link{
		cfg:      cfg,
		log:      cfg.Log,
		wake:     make(chan struct{}, 1),
		deliver:  make(chan struct{}, 1),
		replies:  make(chan addressed),
		interval: cfg.LeaseInterval,
		boot:     cfg.Boot,
		secret:   rand.Text(),
		streams:  map[string]*Stream{},
	}
	l.route.servers, l.route.external = r.servers, r.external
	return l, nil
}

// Run keeps the device connected until the context ends; then it says goodbye:
// the Source's last status (which should be Ready=False, NodeShutdown by then) and
// presence "shutdown". It never gives up and returns nil; ErrDismissed where the
// device was dismissed.
func (l *Link) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { l.deliverAll(serving) })
	defer wg.Wait()
	defer stop()
	var said string // the last cause that the log was told
	var saidAt time.Time
	for try := 0; ; {
		began := time.Now()
		err := l.connectOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if l.isGone() {
			return l.leave(ctx)
		}
		l.mu.Lock()
		l.lastErr = err
		l.mu.Unlock()
		if errors.Is(err, errNewBoot) {
			l.beginAnew()
			try = 0
		}
		if time.Since(began) >= steady {
			saidAt = time.Time{}
		}
		lastly, _ := l.route.now()
		good := l.acked && time.Since(began) >= steady || errors.Is(err, errNewBoot) || errors.Is(err, errMoved)
		if deaf := unacked(0); errors.As(err, &deaf) {
			good = false // whoever answers there, it is not the hub
		}
		pause := l.pause(&try, good)
		args := []any{"node", l.cfg.Node, "hub", lastly.url, "err", err, "again", pause.Round(time.Millisecond)}
		// The same thing every minute is no news; and as an error may name the port that was
		// called from, another one at every try, what is news is told once a minute at most.
		if said != err.Error() && time.Since(saidAt) >= newCause || saidAt.IsZero() {
			said, saidAt = err.Error(), time.Now()
			l.told.tell(l.log, slog.LevelWarn, "hub is out of reach; workloads run on", args...)
		} else {
			l.log.Debug("hub is out of reach; workloads run on", args...)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// backoff is the pause before a try. It never grows beyond half a lease interval: a hub
// that returns, after whatever time, hears every device before any grace ends.
func (l *Link) backoff(try int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return line.Pause(try, l.interval/2)
}

// StatusChanged, PodsChanged and DesiredStored tell that the Source has news.
// They never block, and may be called from a Sink.
func (l *Link) StatusChanged() { l.ask(func(a *asked) { a.status = true }) }

// PodsChanged: see StatusChanged.
func (l *Link) PodsChanged() { l.ask(func(a *asked) { a.pods = true }) }

// DesiredStored: see StatusChanged. A lease goes out at once: it is the
// acknowledgement of the desired state.
func (l *Link) DesiredStored() { l.ask(func(a *asked) { a.lease = true }) }

func (l *Link) ask(what func(*asked)) {
	l.mu.Lock()
	what(&l.asked)
	l.mu.Unlock()
	signal(l.wake)
}

// Event tells the hub something worth knowing, now or when it is in reach again.
// The newest 256 wait; older ones are dropped, and their number is told. The link
// fills in boot, and time where it is zero.
func (l *Link) Event(e wire.Event) {
	e.Boot = l.Boot()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if len(e.Message) > wire.MaxMessage {
		e.Message = clip(e.Message, wire.MaxMessage)
	}
	l.mu.Lock()
	if len(l.events) >= maxEvents {
		l.events = slices.Delete(l.events, 0, 1)
		l.skipped++
	}
	l.queued++
	l.events = append(l.events, queued{l.queued, e})
	l.mu.Unlock()
	signal(l.wake)
}

// Online says whether the hub is connected now; if not, why.
func (l *Link) Online() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		return true, nil
	}
	return false, l.lastErr
}

// deliverAll hands over what arrived, one after the other. A desired state that would
// be too much waits as it came, and a newer one takes its place.
func (l *Link) deliverAll(ctx context.Context) {
	budget := rate.NewLimiter(desiredRate, desiredBurst)
	var parts wire.DesiredParts
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.deliver:
		case <-again.C:
		}
		for {
			l.mu.Lock()
			var desired [][]byte
			requests := l.requests
			if len(l.desired) > 0 && l.isForUs() {
				size := 0 // of all: a part of one is worth nothing
				for _, payload := range l.desired {
					size += wire.TextSize(payload)
				}
				if budget.AllowN(time.Now(), min(size, desiredBurst)) {
					desired, l.desired = l.desired, nil
				} else {
					again.Reset(time.Second)
				}
			}
			l.requests, l.waiting = nil, 0
			l.mu.Unlock()
			if len(desired) == 0 && len(requests) == 0 {
				break
			}
			for _, payload := range desired {
				l.deliverDesired(payload, &parts)
			}
			for _, r := range requests {
				l.cfg.Sink.Request(r.id, r.r)
			}
		}
	}
}

func (l *Link) deliverDesired(payload []byte, parts *wire.DesiredParts) {
	d, err := wire.ParseDesired(payload)
	whole := false
	if err == nil {
		d, whole, err = parts.Add(d, payload)
	}
	if err != nil {
		l.log.Error("read desired state from the hub; keeping the stored one", "node", l.cfg.Node, "err", err)
		l.Event(wire.Event{Type: "Warning", Reason: "DesiredStateInvalid", Message: err.Error()})
		return
	}
	if l.isGone() || !whole {
		return // it knows, or the rest comes, or is asked for by the next lease
	}
	if d.Dismissed != nil {
		l.dismissed(*d.Dismissed)
		return
	}
	if d.LeaseIntervalSeconds > 0 {
		l.mu.Lock()
		l.interval = time.Duration(d.LeaseIntervalSeconds) * time.Second
		l.mu.Unlock()
	}
	l.cfg.Sink.Desired(d)
}

// signal sets a flag that one goroutine waits for.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
