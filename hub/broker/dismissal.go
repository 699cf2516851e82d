package broker

import (
	"time"

	"flotilla.dev/shared/wire"
)

// serveDismissed serves a device whose enrolment has ended, for a short time. The node's own
// session goes on.
func (b *Broker) serveDismissed(s *session) {
	end := time.AfterFunc(dismissedTimeout, func() { _ = s.conn.Close() })
	defer end.Stop()
	b.stats.accepted.Add(1)
	b.serveUntilIdle(s)
}

// publishDismissal sends the dismissal notice after the device has subscribed to its desired topic.
func (b *Broker) publishDismissal(s *session, filter string) {
	if filter != s.filters()[0] {
		return
	}
	s.conn.send(message{channel: wire.ChannelDesired, topic: wire.Topic(b.cfg.Prefix, s.peer.Node, wire.ChannelDesired),
		payload: s.dismissal})
	time.AfterFunc(dismissedLinger, func() { _ = s.conn.Close() })
}
