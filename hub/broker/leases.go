package broker

import (
	"time"

	"flotilla.dev/shared/wire"
)

// A leaseReader takes leases out of what a device sends before mochi sees it.
//
// Leases are nearly all of the traffic and need nothing of mochi: at QoS 0 there is
// no acknowledgement, and the hub passes them on to nobody. Handled here, right
// above the network, one costs a third of the time, and the goroutine of a quiet
// connection keeps a small stack. Only a whole lease packet is taken, and only when
// nothing that came before it waits for mochi; whatever else comes, in whatever
// pieces, mochi gets as it came, and treats it by the same rules.
type leaseReader struct {
	session *session
	b       *Broker

	left   int     // bytes of the packet that is passing
	header [5]byte // of a packet whose fixed header came in pieces
	have   int
}

// take removes leases from p, which has just been read, and returns what is left.
func (e *leaseReader) take(p []byte) []byte {
	kept := 0
	for at := 0; at < len(p); {
		n := 0
		switch {
		case e.left > 0: // in the middle of a packet
			n = min(e.left, len(p)-at)
			e.left -= n
		case e.have > 0: // in the middle of a fixed header
			n = e.piece(p[at:])
		default:
			size, whole := packetSize(p[at:])
			switch {
			case !whole:
				n = e.piece(p[at:])
			case kept == 0 && size <= len(p)-at && e.lease(p[at:at+size]):
				at += size
				continue
			default:
				n = min(size, len(p)-at)
				e.left = size - n
			}
		}
		kept += copy(p[kept:], p[at:at+n])
		at += n
	}
	return p[:kept]
}

// piece takes what it can of a fixed header that is not whole yet.
func (e *leaseReader) piece(p []byte) (n int) {
	for n < len(p) && e.have < len(e.header) {
		e.header[e.have] = p[n]
		e.have++
		n++
		if size, whole := packetSize(e.header[:e.have]); whole {
			e.left = max(size-e.have, 0)
			e.have = 0
			return n
		}
	}
	if e.have == len(e.header) { // no header is so long: mochi will say so
		e.have, e.left = 0, len(p)-n
		return len(p)
	}
	return n
}

// packetSize is the size of the packet that p begins with, header included, if
// p holds the whole of its fixed header.
func packetSize(p []byte) (size int, whole bool) {
	length, shift := 0, 0
	for i := 1; i < len(p) && i < 5; i++ {
		length |= int(p[i]&0x7f) << shift
		if p[i]&0x80 == 0 {
			return 1 + i + length, true
		}
		shift += 7
	}
	return 0, false
}

// publish0 is the first byte of a PUBLISH at QoS 0 without DUP and RETAIN.
const publish0 = 0x30

// lease handles the packet if it is one of the session's own leases.
func (e *leaseReader) lease(packet []byte) bool {
	s := e.session
	if packet[0] != publish0 || !s.established.Load() {
		return false
	}
	body := packet[1:]
	for body[0]&0x80 != 0 {
		body = body[1:]
	}
	body = body[1:]
	if len(body) < 2 {
		return false
	}
	topic := int(body[0])<<8 | int(body[1])
	if body = body[2:]; topic > len(body) || string(body[:topic]) != s.lease {
		return false
	}
	l, err := wire.ParseLease(body[topic:])
	if err != nil {
		return false // mochi's way tells the offence
	}
	if !s.rate.spare(1) {
		return false // mochi's way makes it wait
	}
	e.b.stats.heard[leases].Add(1)
	e.b.cfg.Handler.Lease(s.peer, l)
	return true
}

// spare takes n if that many are there.
func (b *bucket) spare(n float64) bool {
	b.fill(time.Now())
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}
