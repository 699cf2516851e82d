// Package link connects a device to its hub over MQTT: it sends leases, the agent's observations
// and answers, and receives the desired state and requests.
//
// It numbers messages, repeats unacknowledged ones and reconnects for ever. It stores nothing on
// disk and never decides about workloads: a Source has the facts and a Sink receives messages, both
// in package agent. In device/ it alone imports paho. The messages are package wire's.
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

// A Source returns the present facts. The link calls its methods one at a time, whenever it sends;
// they must return quickly. The link fills in boot, seq, time and machine id.
type Source interface {
	Status() wire.Status
	Pods() wire.Pods
	StoredGeneration() int64 // generation of the durably stored desired state; 0: none
}

// A Sink receives the hub's messages. Its methods are called one at a time and may be slow:
// meanwhile a newer desired state replaces a waiting one. The link handles refresh and ack requests
// itself.
type Sink interface {
	Desired(wire.Desired)
	Request(id string, r wire.Request)
}

// Config configures a Link. Node, Boot, Server, Source and Sink are required.
type Config struct {
	Node         string
	Machine      string // 16 hex digits; empty: unknown
	Boot         string // random id of this agent start; replaced on the hub's request
	AgentVersion string

	// Server is the hub: mqtts://host:8883, or mqtt://127.0.0.1:1883 for its development listener
	// on loopback. Several, separated by commas, are addresses of one hub or of its brokers.
	Server string
	// External means that the addresses are those of a broker. The hub then acknowledges messages
	// itself, since the broker's acknowledgement does not mean that the hub has received them.
	External bool
	// Prove returns the proof that a boot id is this device's. A hub behind a broker needs it; may
	// be nil.
	Prove func(boot string) *wire.Proof
	// TLS has the device's certificate and the hub's CA; required for mqtts.
	TLS *tls.Config
	// Dial opens the connection below TLS; nil: TCP to the host of Server.
	Dial func(context.Context) (net.Conn, error)

	Prefix         string        // prefix of all topics; empty: wire.DefaultPrefix
	LeaseInterval  time.Duration // lease interval until the hub sets another; 0: 10 s
	StatusInterval time.Duration // longest time without a status; 0: 5 min

	Source Source
	Sink   Sink
	// Dismissed is called when the device's enrolment has ended; nil: the link ignores that. After
	// the call Run waits until the device has no pods, reports that, and ends.
	Dismissed func(wire.Dismissed)
	Log       *slog.Logger // nil: slog.Default()
}

// Times of the protocol, and limits of waiting messages.
const (
	leaseJitter   = 0.04
	leaseRetry    = 200 * time.Millisecond // pause after a failed lease; doubles
	leaseRetryMax = 7 * time.Second
	ackTimeout    = 10 * time.Second // time without a PUBACK after which a message counts as lost
	maxUnacked    = 3                // lost messages in a row, after which the connection counts as broken
	longPause     = time.Second      // pause after a list of pods that needs several messages
	steady        = 30 * time.Second // a session of this length with answers resets the back-off
	newCause      = time.Minute      // shortest time between two log lines about one outage
	maxEvents     = 256
	maxRequests   = 1024    // waiting requests; above the agent's limit, so that the agent can refuse excess requests
	maxWaiting    = 1 << 20 // bytes of waiting requests; one request alone may be larger

	// Each different desired state is written to flash twice. If a hub sends 4 MiB every second, the
	// rate limits these writes to 1.4 GB a day, and only the newest desired state waits.
	desiredBurst = 32 << 20
	desiredRate  = 8 << 10 // bytes per second
)

// ErrOffline means that the hub cannot be reached now.
var ErrOffline = errors.New("not connected to the hub")

// ErrDismissed means that the device's enrolment has ended and it has no pods.
var ErrDismissed = errors.New("the hub has ended this device's enrolment")

// A Link keeps one device connected. Make it with New.
type Link struct {
	cfg   Config
	log   *slog.Logger
	lines lineLimiter

	route   route          // the hub's addresses
	wake    chan struct{}  // a field below has changed
	deliver chan struct{}  // a message has arrived
	replies chan addressed // from Streams to the session
	numbers struct {       // message numbers of this boot; only the session uses them
		lease, status, pods uint64
		list                uint64 // newest list of pods; the field pods is the newest list that was sent completely
		connection          uint64
	}
	mu       sync.Mutex
	boot     string
	secret   string        // part of the client id at a broker
	gone     bool          // the enrolment has ended
	interval time.Duration // time between leases
	asked    asked
	events   []queued
	queued   uint64   // number of the newest event
	skipped  int      // dropped events that are not reported yet
	desired  [][]byte // the waiting desired state, in one payload or in parts
	requests []addressedRequest
	waiting  int // bytes of waiting requests
	streams  map[string]*Stream
	session  *session     // nil: offline
	inFlight atomic.Int64 // bytes sent without an acknowledgement
	lastErr  error
	acks     map[wire.Channel]*hubAck // the newest message of each kind that the hub must acknowledge
	// the hub has acknowledged a status of this connection; always true without a broker
	known          atomic.Bool
	unheard        atomic.Bool // behind a broker, the hub has not acknowledged the last message
	heard          atomic.Bool // the hub has acknowledged a message since the start
	acked          bool        // the hub has acknowledged something in the present or last session
	silentSessions int         // consecutive sessions that ended for lack of acknowledgements; used with a broker
}

// asked are the messages and actions that the agent or the hub has requested since the last turn of
// the session's loop.
type asked struct{ status, pods, lease, refresh, boot, move bool }

// A queued is a waiting event and its number.
type queued struct {
	n uint64
	e wire.Event
}

type addressedRequest struct {
	id string
	r  wire.Request
}

// New checks the configuration; it does not connect.
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
		err = errors.Join(err, errors.New("no Source or no Sink: this is an error in the program"))
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

// Run keeps the device connected until ctx ends. It then sends the Source's last status, which
// should be Ready=False with reason NodeShutdown, and presence "shutdown", and returns nil. It
// returns ErrDismissed when the enrolment has ended.
func (l *Link) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { l.deliverAll(serving) })
	defer wg.Wait()
	defer stop()
	var logged string // the last logged cause
	var loggedAt time.Time
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
			loggedAt = time.Time{}
		}
		lastly, _ := l.route.now()
		good := l.acked && time.Since(began) >= steady || errors.Is(err, errNewBoot) || errors.Is(err, errMoved)
		if deaf := unacked(0); errors.As(err, &deaf) {
			good = false // the server is not the hub
		}
		pause := l.pause(&try, good)
		args := []any{"node", l.cfg.Node, "hub", lastly.url, "err", err, "again", pause.Round(time.Millisecond)}
		// The error text may differ at every try, for example in a port number, so a new cause is
		// logged at most once a minute.
		if logged != err.Error() && time.Since(loggedAt) >= newCause || loggedAt.IsZero() {
			logged, loggedAt = err.Error(), time.Now()
			l.lines.line(l.log, slog.LevelWarn, "cannot reach the hub; workloads keep running", args...)
		} else {
			l.log.Debug("cannot reach the hub; workloads keep running", args...)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// backoff returns the pause before a try. It is at most half a lease interval, so that after a
// restart the hub has received a lease from every device before a grace period ends.
func (l *Link) backoff(try int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return line.Pause(try, l.interval/2)
}

// StatusChanged makes the link send the Source's status. StatusChanged, PodsChanged and
// DesiredStored never block, and a Sink may call them.
func (l *Link) StatusChanged() { l.ask(func(a *asked) { a.status = true }) }

// PodsChanged makes the link send the Source's pods.
func (l *Link) PodsChanged() { l.ask(func(a *asked) { a.pods = true }) }

// DesiredStored makes the link send a lease at once, which acknowledges the desired state.
func (l *Link) DesiredStored() { l.ask(func(a *asked) { a.lease = true }) }

func (l *Link) ask(what func(*asked)) {
	l.mu.Lock()
	what(&l.asked)
	l.mu.Unlock()
	signal(l.wake)
}

// Event sends an event now, or when the hub is back. The newest 256 events wait; older ones are
// dropped, and their number is reported. The link fills in boot, and the time if it is zero.
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

// Online reports whether the hub is connected; if not, the error says why.
func (l *Link) Online() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		return true, nil
	}
	return false, l.lastErr
}

// Heard reports whether the hub is connected and has acknowledged a message since the start.
func (l *Link) Heard() bool {
	online, _ := l.Online()
	return online && l.heard.Load()
}

// deliverAll passes the waiting messages to the Sink one after the other. A desired state above the
// rate limit waits, and a newer one replaces it.
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
				size := 0 // bytes of all parts, because a part alone is useless
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
		l.log.Error("cannot read the desired state from the hub; keeping the stored one", "node", l.cfg.Node, "err", err)
		l.Event(wire.Event{Type: "Warning", Reason: "DesiredStateInvalid", Message: err.Error()})
		return
	}
	if l.isGone() || !whole {
		return // the enrolment has ended, or parts are missing: they follow, or the next lease requests them
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

// signal sets a flag on which one goroutine waits.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
