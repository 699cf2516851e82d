package broker

import (
	"bytes"
	"errors"
	"os"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"flotilla.dev/hub/broker/idle"
	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/line"
)

// Devices send little: a lease every ten seconds with a ping. Between packets a connection is idle,
// without a goroutine, and the poller's goroutine answers lease and ping. Another goroutine reads
// other packets and partial ones, until the connection is idle again.

// setIdle makes the session's connection idle. It returns false if data has arrived meanwhile.
func (s *session) setIdle() bool {
	return s.conn.sock.SetIdle(time.Now().Add(s.conn.maxSilence), s)
}

// Wake handles the data that has arrived on the idle connection. It implements idle.Waiter.
func (s *session) Wake(scratch []byte) {
	if !s.conn.tryLockWriter() { // another goroutine writes, and TLS might block
		s.resume(func() bool { return s.broker.read(s) })
		return
	}
	for {
		next := s.handleAvailable(scratch)
		s.conn.unlockWriter()
		if next != nil {
			s.resume(next)
			return
		}
		if s.setIdle() {
			return
		}
		if !s.conn.tryLockWriter() {
			s.resume(func() bool { return s.broker.read(s) })
			return
		}
	}
}

// handleAvailable handles the data that has arrived. It returns the function with which a goroutine
// has to continue; nil: no goroutine is needed.
func (s *session) handleAvailable(scratch []byte) (next func() (isIdle bool)) {
	b := s.broker
	defer panics.CatchThen("mqtt", func(err error) { next = func() bool { return b.endSession(s, err) } })
	for before := s.conn.sock.Received(); ; before = s.conn.sock.Received() {
		n, err := s.conn.readAvailable(scratch)
		switch {
		case err == nil:
			rest, err := b.answered(s, scratch[:n])
			if err != nil {
				return func() bool { return b.endSession(s, err) }
			}
			if len(rest) > 0 {
				s.conn.readAhead = bytes.Clone(rest)
				return func() bool { return b.read(s) }
			}
		case !errors.Is(err, idle.ErrNothing):
			return func() bool { return b.endSession(s, err) }
		case s.conn.sock.Received() != before: // a part of a TLS record has arrived: wait for the rest
			return func() bool { return b.awaitPacket(s) }
		default:
			return nil
		}
	}
}

// Expire ends a session that was silent for too long. It first reads once more, because packets may
// be waiting after a pause of the hub. It implements idle.Waiter.
func (s *session) Expire() {
	s.resume(func() (isIdle bool) {
		b, before, p := s.broker, s.conn.sock.Received(), make([]byte, smallPacket)
		n, err := s.conn.readAvailable(p)
		switch {
		case err == nil:
			s.conn.readAhead = p[:n]
			return b.read(s)
		case !errors.Is(err, idle.ErrNothing):
			return b.endSession(s, err)
		case s.conn.sock.Received() != before:
			return b.awaitPacket(s)
		}
		return b.endSession(s, os.ErrDeadlineExceeded)
	})
}

// resume continues a session on its own goroutine.
func (s *session) resume(part func() (isIdle bool)) {
	go s.broker.runPart(s, part)
}

// awaitPacket waits for a packet before the connection may become idle again.
func (b *Broker) awaitPacket(s *session) (isIdle bool) {
	s.conn.packetDeadline = time.Now().Add(s.conn.maxSilence + line.Takes(maxRecord))
	one := make([]byte, smallPacket)
	n, err := s.conn.Read(one)
	if err != nil {
		return b.endSession(s, err)
	}
	s.conn.packetDeadline = time.Time{}
	s.conn.readAhead = one[:n]
	return b.read(s)
}

// answered answers leases and pings at the start of p, and returns the rest.
func (b *Broker) answered(s *session, p []byte) (rest []byte, err error) {
	for len(p) > 0 {
		size, header := packetSize(p)
		if header == 0 || size > len(p) || !s.rate.has(1) {
			return p, nil
		}
		switch {
		case p[0] == publish0 && b.lease(s, p[header:size]):
		case p[0] == packets.Pingreq<<4 && size == header:
			s.chargeRate(0, 0)
			if _, err := s.conn.Conn.Write(pingresp); err != nil { // this goroutine holds the writer's lock
				return nil, err
			}
		default:
			return p, nil
		}
		p = p[size:]
	}
	return nil, nil
}
