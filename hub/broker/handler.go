package broker

import (
	"context"
	"errors"

	"flotilla.dev/shared/wire"
)

// A Peer is who is at the other end of a connection. Node is what the client
// certificate says (on the development listener: the user name), never what the
// client says of itself.
type Peer struct {
	Node    string
	Machine string // 16 hex digits from the client id, empty: not known
	Key     string // sha256 of the certificate's public key, in hex; empty on the development listener
	Boot    string // of the agent, from its will; empty: not known
	Addr    string // of the other end
	Dev     bool   // came through the development listener
}

// ErrStopping is a Handler's answer while the hub stops: there is no acknowledgement,
// the device sends again to the next hub, and nobody needs to read about it.
var ErrStopping = errors.New("the hub is stopping")

// ErrLater is a Handler's answer while the hub can remember nothing, which is told once and
// not for each message of each device: there is no acknowledgement, the device sends again.
var ErrLater = errors.New("nothing can be remembered for now")

// A Dismissal is a Handler's answer to one who is the node no more. He may subscribe to
// his desired topic and gets the payload there; of what he publishes only the list of
// his pods is told, and the connection ends by itself.
type Dismissal struct{ Payload []byte }

func (f *Dismissal) Error() string { return "let in only to be told that it is this node no more" }

// A Handler is what the broker tells the hub. Its methods are called on the
// goroutine of the connection concerned: one node's calls come one after the
// other, those of different nodes at the same time. One that blocks holds up
// only its own node.
type Handler interface {
	// Connect says whether the peer may connect now. An error refuses the
	// CONNECT; its text is logged. While the incumbent of an identity lives,
	// another machine must be refused here: whoever is let in takes the session
	// over. A Farewell lets the peer in beside the node's session, only to be told.
	Connect(p Peer) error
	// Speaks says whether the peer is still who may be the node. It is asked again
	// when the session has become the node's: from then on Disconnect reaches it.
	Speaks(p Peer) bool
	// Left is a list of its pods from one who is told farewell.
	Left(ctx context.Context, p Peer, pods wire.Pods) error
	// Connected and Disconnected frame a session. The sessions of one node never
	// overlap: Disconnected of the old one, and its will, come before Connected
	// of the next.
	Connected(p Peer)
	Disconnected(p Peer)

	// Lease is the hot path: no allocation worth naming, no waiting.
	Lease(p Peer, l wire.Lease)
	// Status, Pods and Event return when what they were given is remembered, or
	// is not worth it: the acknowledgement waits for them. After an error there
	// is none, and the device sends again. The context ends when that takes too long.
	Status(ctx context.Context, p Peer, s wire.Status) error
	Pods(ctx context.Context, p Peer, pods wire.Pods) error
	Event(ctx context.Context, p Peer, e wire.Event) error
	// Presence is an orderly stop, or the will. A will can be of an earlier boot:
	// compare its boot with the current one, and ignore it if it differs.
	Presence(p Peer, state wire.Presence)
	// Reply is a chunk of the answer to request id.
	Reply(p Peer, id string, r wire.Reply)
	// Offence tells what a node did that it may not do, at most once per ten
	// seconds and node; what was held back is counted in the next one's text.
	Offence(node, what string)
}
