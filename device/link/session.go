package link

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// A session is one connection. Its loop sends messages one after the other and builds each when it
// is sent, so that no message is outdated.
type session struct {
	l      *Link
	server server
	client paho.Client

	external bool       // the hub is behind a broker
	raw      *line.Conn // the TCP connection; nil before CONNECT
	lost     chan error
	done     chan struct{} // closed at the end of the session

	status, pods, event tracked // messages at QoS 1; at most one of each kind is in flight
	list                podList // lists of pods: in flight and acknowledged
	eventNumber         uint64  // number of the event in flight; 0: a report of dropped events
	eventSkipped        int     // number of dropped events that the report names
	unacked             int     // consecutive timeouts
	rtt                 float64 // round trip of the last acknowledged status in seconds; 0: unknown
	nextStatus          time.Time

	lease      paho.Token // the lease being written
	nextLease  time.Time
	leaseRetry time.Duration

	answers answers
	newBoot bool // the hub requests a new boot id
	moved   bool // the hub has other addresses
}

// connectOnce connects and returns when the connection or ctx ends. The error says why the
// connection ended.
func (l *Link) connectOnce(ctx context.Context) error {
	to, several := l.route.now()
	s := &session{l: l, server: to, external: l.route.isExternal(), lost: make(chan error, 1), done: make(chan struct{})}
	defer close(s.done)
	l.inFlight.Store(0)
	l.numbers.connection++
	l.known.Store(!s.external)
	l.acked = false
	s.client = paho.NewClient(s.options(ctx, several))
	if err := wait(ctx, s.lost, 2*connectTimeout, s.client.Connect); err != nil {
		s.client.Disconnect(0)
		return explain(err)
	}
	defer s.client.Disconnect(250)
	if err := s.subscribe(ctx); err != nil {
		return err
	}
	if l.isGone() {
		return s.confirm(ctx)
	}
	l.mu.Lock()
	l.session, l.lastErr = s, nil
	l.asked = asked{status: true, pods: true, lease: true}
	l.mu.Unlock()
	defer l.endSession()
	l.lines.line(l.log, slog.LevelInfo, "connected to the hub", "node", l.cfg.Node, "hub", s.server.url)
	s.nextStatus = time.Now().Add(l.cfg.StatusInterval)
	s.sendAll()
	return s.loop(ctx)
}

// options configures paho. paho must not reconnect or resume by itself, because it then reports
// lost messages as delivered.
func (s *session) options(ctx context.Context, several bool) *paho.ClientOptions {
	c := &s.l.cfg
	will, _ := json.Marshal(wire.Presence{Boot: s.l.Boot(), State: wire.PresenceLost, Connection: s.l.numbers.connection})
	o := paho.NewClientOptions().
		AddBroker("tcp://hub"). // a placeholder: SetCustomOpenConnectionFn dials
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) {
			opened, err := s.server.open(ctx, several, &s.l.inFlight)
			if err != nil {
				return nil, err
			}
			s.raw = opened.raw
			return opened, nil
		}).
		SetClientID(s.clientID()).
		SetProtocolVersion(4).
		SetCleanSession(true).
		SetAutoReconnect(false).
		SetConnectRetry(false).
		SetConnectTimeout(connectTimeout).
		SetWriteTimeout(writeTimeout).
		SetKeepAlive(keepAlive).
		SetPingTimeout(time.Hour). // conn detects silence earlier and tolerates slow packets
		SetBinaryWill(wire.Topic(c.Prefix, c.Node, wire.ChannelPresence), will, 1, false).
		SetStore(noStore{}).
		SetOrderMatters(true).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { s.l.arrived(m) }).
		SetConnectionLostHandler(func(_ paho.Client, err error) { s.lost <- err })
	if s.server.tls == nil {
		o.SetUsername(c.Node) // identifies the device on a development listener
	}
	return o
}

func (s *session) clientID() string {
	if s.external {
		return wire.ClientIDAtBroker(s.l.cfg.Node, s.l.secret)
	}
	return wire.ClientID(s.l.cfg.Node, s.l.cfg.Machine)
}

func (s *session) subscribe(ctx context.Context) error {
	filters := wire.Filters(s.l.cfg.Prefix, s.l.cfg.Node)
	var t *paho.SubscribeToken
	err := wait(ctx, s.lost, connectTimeout, func() paho.Token {
		t = s.client.SubscribeMultiple(map[string]byte{filters[0]: 0, filters[1]: 0}, nil).(*paho.SubscribeToken)
		return t
	})
	if err != nil {
		return fmt.Errorf("subscribe to the node's topics: %w", err)
	}
	for filter, code := range t.Result() {
		if code == 0x80 {
			return fmt.Errorf("the hub refuses the subscription to %s: check that %q is its topic prefix", filter,
				s.l.cfg.Prefix)
		}
	}
	return nil
}

func (l *Link) endSession() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = nil
}

// sendAll sends status, pods and lease in this order: the hub ignores the pods and leases of a boot
// id until it has a status with that boot id.
func (s *session) sendAll() {
	s.take()
	s.sendStatus()
	s.sendPods()
	s.sendLease(time.Now())
}

// loop sends what is due until the connection or ctx ends.
func (s *session) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		s.take()
		switch {
		case s.newBoot:
			return errNewBoot
		case s.l.isGone():
			return ErrDismissed
		case s.moved:
			s.moved = false
			if !s.l.route.has(s.server, s.external) {
				return errMoved
			}
		}
		if err := s.settle(now); err != nil {
			return err
		}
		s.sendDue(now)
		s.l.inFlight.Store(int64(s.inFlight()))
		timer.Reset(time.Until(s.earliest()))
		var leased <-chan struct{}
		if s.lease != nil {
			leased = s.lease.Done()
		}
		select {
		case <-ctx.Done():
			s.sendOffline()
			return nil
		case err := <-s.lost:
			return fmt.Errorf("connection lost: %w", err)
		case r := <-s.more():
			s.sendReply(r)
		case <-s.answered(0): // one case for each of maxUnderWay
		case <-s.answered(1):
		case <-s.answered(2):
		case <-s.answered(3):
		case <-timer.C:
		case <-s.l.wake:
		case <-leased:
		case <-s.status.acked():
		case <-s.pods.acked():
		case <-s.event.acked():
		}
	}
}

// take moves the requested messages and actions into the session.
func (s *session) take() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	a := s.l.asked
	s.l.asked = asked{}
	if a.refresh { // the hub lacks the message in flight, so do not wait for its PUBACK
		s.status.token = nil
		s.list.again(&s.pods)
	}
	s.newBoot = s.newBoot || a.boot
	s.moved = s.moved || a.move
	s.status.due = s.status.due || a.status || a.refresh
	s.pods.due = s.pods.due || a.pods || a.refresh
	if a.lease {
		s.nextLease = time.Time{}
	}
}

// leased schedules the next lease after one was written or failed.
func (s *session) leased(err error, now time.Time) {
	if err == nil {
		s.leaseRetry = 0
		return
	}
	s.leaseRetry = min(max(2*s.leaseRetry, leaseRetry), leaseRetryMax)
	s.nextLease = now.Add(s.leaseRetry)
}

// sendDue sends what is due and not in flight, the lease first.
func (s *session) sendDue(now time.Time) {
	if !now.Before(s.nextLease) && s.lease == nil {
		s.sendLease(now)
	}
	if !now.Before(s.nextStatus) {
		s.status.due = true
	}
	if s.status.due && s.status.token == nil {
		s.sendStatus()
	}
	switch {
	case s.pods.token != nil:
	case len(s.list.rest) > 0:
		s.sendPart()
	case s.pods.due && !now.Before(s.pods.after):
		s.sendPods()
	}
	if s.event.token == nil {
		s.sendEvent()
	}
	if s.answers.held != nil {
		s.sendReply(*s.answers.held)
	}
}

// earliest returns the time of the loop's next timed action.
func (s *session) earliest() time.Time {
	next := s.nextStatus
	if s.status.token != nil { // while a status is in flight, the next one has no time yet
		next = s.deadline(s.status.until)
	}
	for _, t := range []*tracked{&s.status, &s.pods, &s.event} {
		if t.token != nil {
			next = earlier(next, s.deadline(t.until))
		}
	}
	switch {
	case s.pods.token != nil:
	case len(s.list.rest) > 0:
		next = time.Now()
	case s.pods.due && s.pods.after.Before(next):
		next = s.pods.after
	}
	if s.lease == nil && s.nextLease.Before(next) {
		next = s.nextLease
	}
	if w := s.answers.underWay; len(w) > 0 {
		next = earlier(next, s.deadline(w[0].until))
	}
	if s.answers.held != nil {
		next = time.Now().Add(heldFor)
	}
	return next
}

func (s *session) sendLease(now time.Time) {
	l := s.l
	l.numbers.lease++
	payload := wire.AppendLease(nil, wire.Lease{
		Boot: l.Boot(), Seq: l.numbers.lease, Status: l.numbers.status, Pods: l.numbers.pods,
		Desired: l.cfg.Source.StoredGeneration(), Time: time.Now(),
	})
	l.mu.Lock()
	interval := float64(l.interval)
	l.mu.Unlock()
	s.nextLease = now.Add(time.Duration(interval * (1 + leaseJitter*rand.Float64())))
	s.lease = s.client.Publish(wire.Topic(l.cfg.Prefix, l.cfg.Node, wire.ChannelLease), 0, false, payload)
}

// sendStatus sends the status. Without a change the next one follows after half to all of the
// status interval, so that a fleet does not report at once.
func (s *session) sendStatus() {
	l := s.l
	s.status.due = false
	st := l.cfg.Source.Status()
	l.numbers.status++
	st.Boot, st.Seq, st.Time, st.MachineID = l.Boot(), l.numbers.status, time.Now(), l.cfg.Machine
	st.Connection = l.numbers.connection
	if s.external && l.cfg.Prove != nil {
		st.Proof = l.cfg.Prove(st.Boot)
	}
	if v := st.Vitals; v != nil && s.rtt > 0 {
		with := *v
		with.RTT = &s.rtt
		st.Vitals = &with
	}
	if l.cfg.AgentVersion != "" {
		st.AgentVersion = l.cfg.AgentVersion
	}
	s.nextStatus = time.Now().Add(time.Duration(float64(l.cfg.StatusInterval) * (0.5 + 0.5*rand.Float64())))
	s.publish(&s.status, wire.ChannelStatus, st)
}

// sendEvent reports dropped events, or else sends the oldest waiting event. The event stays queued
// until it is acknowledged.
func (s *session) sendEvent() {
	l := s.l
	l.mu.Lock()
	if len(l.events) == 0 {
		l.mu.Unlock()
		return
	}
	next := l.events[0]
	s.eventSkipped = l.skipped
	l.mu.Unlock()
	if s.eventNumber = next.n; s.eventSkipped > 0 {
		s.eventNumber = 0
		next.e = wire.Event{Boot: l.Boot(), Time: time.Now(), Type: "Warning", Reason: "EventsDropped",
			Message: fmt.Sprintf("%d events were dropped: more than %d waited for the hub", s.eventSkipped, maxEvents)}
	}
	s.publish(&s.event, wire.ChannelEvent, next.e)
	if s.event.token == nil { // the event cannot be encoded or is too large
		s.dropEvent()
	}
}

// dropEvent removes the acknowledged event from the queue.
func (s *session) dropEvent() {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.eventNumber == 0:
		l.skipped -= s.eventSkipped
	case len(l.events) > 0 && l.events[0].n == s.eventNumber:
		l.events = slices.Delete(l.events, 0, 1)
	}
}

// sendOffline ends the session: a last status, presence, DISCONNECT.
func (s *session) sendOffline() {
	const patience = 2 * time.Second
	s.sendStatus()
	if s.status.token != nil {
		s.status.token.WaitTimeout(patience)
	}
	var t tracked
	s.publish(&t, wire.ChannelPresence,
		wire.Presence{Boot: s.l.Boot(), State: wire.PresenceShutdown, Reason: "the agent was stopped"})
	if t.token == nil || !t.token.WaitTimeout(patience) {
		s.l.log.Warn("the hub has not acknowledged the shutdown; it will see the node's lease expire", "node", s.l.cfg.Node)
	}
}
