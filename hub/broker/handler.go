package broker

import (
	"context"
	"errors"

	"flotilla.dev/shared/wire"
)

// A Peer is the other end of a connection. Node comes from the client certificate (on the
// development listener: the user name), never from a message.
type Peer struct {
	Node    string
	Machine string // 16 hex digits from the client ID; "": unknown
	Key     string // sha256 of the certificate's public key, hex; "" on the development listener
	Boot    string // boot of the agent, from its will; "": unknown
	Addr    string // address of the peer
	Dev     bool   // connected to the development listener
}

// ErrStopping is a Handler's result while the hub stops. The message is not acknowledged and not
// logged; the device repeats it to the next hub.
var ErrStopping = errors.New("the hub is stopping")

// ErrLater is a Handler's result while the hub cannot store anything; the cause is logged
// elsewhere. The message is not acknowledged, and the device repeats it.
var ErrLater = errors.New("nothing can be stored for now")

// A Dismissal is a Handler's error for a device whose enrolment has ended. The device may subscribe
// to its desired topic, where it gets the payload. The hub handles only its list of pods. The
// connection ends soon.
type Dismissal struct{ Payload []byte }

func (f *Dismissal) Error() string { return "accepted only to be told that its enrolment ended" }

// A Handler receives the broker's messages. Its methods run on the goroutine of the connection, so
// calls for one node are sequential, and calls for different nodes are concurrent. A blocking call
// delays only its own node.
type Handler interface {
	// Connect reports whether the peer may connect. An error refuses the CONNECT and is logged.
	// Connect must refuse another machine while the current device is alive, because an accepted
	// peer takes the session over. A *Dismissal accepts the peer beside the node's session, only to
	// send the notice.
	Connect(p Peer) error
	// Speaks reports whether the peer may still act for the node. The broker calls it after it has
	// registered the session, because Disconnect reaches only registered sessions.
	Speaks(p Peer) bool
	// Left receives the list of pods of a dismissed device.
	Left(ctx context.Context, p Peer, pods wire.Pods) error
	// Connected and Disconnected enclose a session. Sessions of one node never overlap: the
	// Disconnected of the old session, and its will, precede the Connected of the next one.
	Connected(p Peer)
	Disconnected(p Peer)

	// Lease is the hot path: it must not wait and should not allocate.
	Lease(p Peer, l wire.Lease)
	// Status, Pods and Event return after the message is stored or discarded; the broker then
	// acknowledges it. After an error there is no acknowledgement, and the device repeats the
	// message. The context limits the time.
	Status(ctx context.Context, p Peer, s wire.Status) error
	Pods(ctx context.Context, p Peer, pods wire.Pods) error
	Event(ctx context.Context, p Peer, e wire.Event) error
	// Presence is an orderly stop or a will. If its boot differs from the current one, it is late:
	// ignore it.
	Presence(p Peer, state wire.Presence)
	// Reply is a part of the response to request id.
	Reply(p Peer, id string, r wire.Reply)
	// Offence reports that a node did something forbidden, at most once per ten seconds and node.
	// The text includes the number of suppressed reports.
	Offence(node, what string)
}
