package broker

import "sync/atomic"

// A kind is a kind of message.
type kind int

const (
	leases kind = iota
	statuses
	podLists
	events
	presences
	replies
	desireds
	requests
	kinds
)

var kindNames = [kinds]string{"lease", "status", "pods", "event", "presence", "reply", "desired", "request"}

// A reason is why a connection was refused.
type reason int

const (
	silent reason = iota
	badTLS
	badIdentity
	noConnect
	connectTooLarge
	version
	clientID
	badWill
	refusedByHub
	busy
	capacity
	perAddress
	reasons
)

var reasonNames = [reasons]string{"silent", "tls", "identity", "malformed", "too-large", "version", "client-id",
	"will", "hub", "busy", "capacity", "per-address"}

// An offenceKind is a kind of offence.
type offenceKind int

const (
	forbiddenTopic offenceKind = iota
	forbiddenFilter
	retained
	badPayload
	packetTooLarge
	badConnect
	sins
)

var sinNames = [sins]string{"topic", "filter", "retain", "payload", "packet-too-large", "connect"}

// counters are the values of /metrics.
type counters struct {
	accepted     atomic.Uint64
	acceptErrors atomic.Uint64
	refused      [reasons]atomic.Uint64
	received     [kinds]atomic.Uint64 // messages from devices and to them
	offences     [sins]atomic.Uint64
	unremembered atomic.Uint64
	offline      atomic.Uint64
	backlog      atomic.Uint64
	superseded   atomic.Uint64
	tooLarge     atomic.Uint64
}

// Stats are the broker's counters since its creation, and its current gauges.
type Stats struct {
	Connections  int               // open connections, identified or not
	Sessions     int               // connected nodes
	Accepted     uint64            // accepted CONNECTs
	AcceptErrors uint64            // failed accepts, each retried
	Refused      map[string]uint64 // refused connections by reason
	Messages     map[string]uint64 // by channel, in either direction
	Offences     map[string]uint64 // dropped messages and refused filters by kind
	NotStored    uint64            // messages that the Handler could not store, which were not acknowledged
	Dropped      map[string]uint64 // messages to devices that were not sent, by reason
	Observers    int               // connected observers
	Observed     map[string]uint64 // messages for observers: sent, or dropped because an observer reads too slowly
}

// Stats returns the counters.
func (b *Broker) Stats() Stats {
	c := &b.stats
	s := Stats{
		Accepted: c.accepted.Load(), AcceptErrors: c.acceptErrors.Load(), NotStored: c.unremembered.Load(),
		Refused: map[string]uint64{}, Messages: map[string]uint64{}, Offences: map[string]uint64{},
		Dropped: map[string]uint64{"offline": c.offline.Load(), "backlog": c.backlog.Load(),
			"superseded": c.superseded.Load(), "too-large": c.tooLarge.Load()},
	}
	for i, n := range reasonNames {
		s.Refused[n] = c.refused[i].Load()
	}
	for i, n := range kindNames {
		s.Messages[n] = c.received[i].Load()
	}
	for i, n := range sinNames {
		s.Offences[n] = c.offences[i].Load()
	}
	s.Observed = map[string]uint64{"sent": b.observers.sent.Load(), "dropped": b.observers.dropped.Load()}
	b.observers.mu.RLock()
	s.Observers = len(b.observers.all)
	b.observers.mu.RUnlock()
	b.mu.Lock()
	s.Connections, s.Sessions = len(b.open), len(b.sessions)
	b.mu.Unlock()
	return s
}
