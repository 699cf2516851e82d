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

// A device says little: a lease every ten seconds, and a ping along with it. Between two
// packets its connection is parked, without a goroutine, and these two are answered where
// all parked connections are waited for. Whatever else comes, or comes in part, is read by
// a goroutine of its own, as on any connection, until it is quiet again.

// park parks the session's connection; false: something has come meanwhile.
func (s *session) park() bool {
	return s.conn.sock.Park(time.Now().Add(s.conn.idle), s)
}

// Wake hears what came on the parked connection: idle.Sleeper.
func (s *session) Wake(scratch []byte) {
	if !s.conn.tryLockWriter() { // somebody writes: TLS could have to wait for it
		s.resume(func() bool { return s.broker.read(s) })
		return
	}
	for {
		next := s.hear(scratch)
		s.conn.unlockWriter()
		if next != nil {
			s.resume(next)
			return
		}
		if s.park() {
			return
		}
		if !s.conn.tryLockWriter() {
			s.resume(func() bool { return s.broker.read(s) })
			return
		}
	}
}

// hear hears all that is there for the moment, and returns how a goroutine has to go on;
// nil: not at all.
func (s *session) hear(scratch []byte) (next func() (parked bool)) {
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
				s.conn.seen = bytes.Clone(rest)
				return func() bool { return b.read(s) }
			}
		case !errors.Is(err, idle.ErrNothing):
			return func() bool { return b.endSession(s, err) }
		case s.conn.sock.Received() != before: // a part of a record of TLS: it has its time
			return func() bool { return b.awaitPacket(s) }
		default:
			return nil
		}
	}
}

// Expire ends a session of which nothing was heard for too long: quiet to the last, for a
// hub that has stood still finds what came meanwhile. idle.Sleeper.
func (s *session) Expire() {
	s.resume(func() (parked bool) {
		b, before, p := s.broker, s.conn.sock.Received(), make([]byte, smallPacket)
		n, err := s.conn.readAvailable(p)
		switch {
		case err == nil:
			s.conn.seen = p[:n]
			return b.read(s)
		case !errors.Is(err, idle.ErrNothing):
			return b.endSession(s, err)
		case s.conn.sock.Received() != before:
			return b.awaitPacket(s)
		}
		return b.endSession(s, os.ErrDeadlineExceeded)
	})
}

// resume goes on with a session on a goroutine of its own.
func (s *session) resume(part func() (parked bool)) {
	go s.broker.runPart(s, part)
}

// awaitPacket waits for a packet before the connection may be parked again.
func (b *Broker) awaitPacket(s *session) (parked bool) {
	s.conn.until = time.Now().Add(s.conn.idle + line.Takes(maxRecord))
	one := make([]byte, smallPacket)
	n, err := s.conn.Read(one)
	if err != nil {
		return b.endSession(s, err)
	}
	s.conn.until = time.Time{}
	s.conn.seen = one[:n]
	return b.read(s)
}

// answered answers leases and pings that p begins with, and returns the rest: what has to
// be waited for, in whatever way.
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
			if _, err := s.conn.Conn.Write(pingresp); err != nil { // we hold the lock of the writer
				return nil, err
			}
		default:
			return p, nil
		}
		p = p[size:]
	}
	return nil, nil
}
