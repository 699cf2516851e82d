package broker

import (
	"time"

	"flotilla.dev/shared/wire"
)

// serveDismissed is the connection of one who is his node no more. It is beside the
// node's session, which may be another device's by now, and short.
func (b *Broker) serveDismissed(s *session) {
	end := time.AfterFunc(farewellTimeout, func() { _ = s.conn.Close() })
	defer end.Stop()
	b.stats.accepted.Add(1)
	b.serveUntilIdle(s)
}

// publishDismissal tells one who has subscribed to his desired topic what there is to tell.
func (b *Broker) publishDismissal(s *session, filter string) {
	if filter != s.filters()[0] {
		return
	}
	s.conn.send(message{channel: wire.ChannelDesired, topic: wire.Topic(b.cfg.Prefix, s.peer.Node, wire.ChannelDesired),
		payload: s.farewell})
	time.AfterFunc(farewellLinger, func() { _ = s.conn.Close() })
}
