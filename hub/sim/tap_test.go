package sim

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// A direction is the direction of a packet.
type direction string

const (
	toHub    direction = "device to hub"
	toDevice direction = "hub to device"
)

// A packet is one MQTT packet in transit. For a PUBLISH, kind is the channel; for any other packet,
// it is the packet's name.
type packet struct {
	device  string // key of the device's connection
	dir     direction
	kind    string
	raw     []byte
	payload int // offset in raw; 0: not a PUBLISH
}

// A tap returns after which delays copies of a packet arrive. Without a delay the packet is lost;
// with two it is doubled. A tap may replace the packet's bytes.
type tap func(p *packet) []time.Duration

var untouched = []time.Duration{0}

var packetNames = [16]string{1: "connect", 2: "connack", 3: "publish", 4: "puback", 8: "subscribe", 9: "suback",
	10: "unsubscribe", 11: "unsuback", 12: "pingreq", 13: "pingresp", 14: "disconnect"}

// tapped puts a tap on a device's connection to the hub, and returns the device's end.
func tapped(hub net.Conn, device string, t tap) net.Conn {
	ours, theirs := net.Pipe()
	up := &lane{from: theirs, to: hub, device: device, dir: toHub, tap: t}
	down := &lane{from: hub, to: theirs, device: device, dir: toDevice, tap: t}
	for _, l := range []*lane{up, down} {
		go func() {
			l.run()
			_ = hub.Close()
			_ = theirs.Close()
		}()
	}
	return ours
}

// A lane is one direction of a tapped connection.
type lane struct {
	from, to net.Conn
	device   string
	dir      direction
	tap      tap
	mu       sync.Mutex // serializes packets
}

func (l *lane) run() {
	var buf []byte
	chunk := make([]byte, 32<<10)
	for {
		for {
			n := wholePacket(buf)
			if n == 0 {
				break
			}
			l.pass(bytes.Clone(buf[:n]))
			buf = buf[n:]
		}
		n, err := l.from.Read(chunk)
		if buf = append(buf, chunk[:n]...); err != nil {
			return
		}
	}
}

// wholePacket returns the length of the first packet in buf, or 0 if the packet is incomplete.
func wholePacket(buf []byte) int {
	if len(buf) < 2 {
		return 0
	}
	length, used := binary.Uvarint(buf[1:])
	if total := 1 + used + int(length); used > 0 && len(buf) >= total {
		return total
	}
	return 0
}

func (l *lane) pass(raw []byte) {
	p := &packet{device: l.device, dir: l.dir, raw: raw, kind: packetNames[raw[0]>>4]}
	if p.kind == "publish" {
		_, used := binary.Uvarint(raw[1:])
		at := 1 + used
		size := int(binary.BigEndian.Uint16(raw[at:]))
		topic := string(raw[at+2 : at+2+size])
		p.payload = at + 2 + size
		if raw[0]>>1&3 > 0 {
			p.payload += 2
		}
		if a, err := wire.ParseTopic(wire.DefaultPrefix, topic); err == nil {
			p.kind = string(a.Channel)
		}
	}
	for _, after := range l.tap(p) {
		if after == 0 {
			l.send(p.raw)
		} else {
			time.AfterFunc(after, func() { l.send(p.raw) })
		}
	}
}

func (l *lane) send(raw []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.Copy(l.to, bytes.NewReader(raw)) // the reader sees a broken connection
}

// body returns the payload of a PUBLISH.
func (p *packet) body() []byte { return p.raw[p.payload:] }

// replace replaces the payload of a PUBLISH.
func (p *packet) replace(body []byte) {
	_, used := binary.Uvarint(p.raw[1:])
	head := p.raw[1+used : p.payload]
	raw := binary.AppendUvarint([]byte{p.raw[0]}, uint64(len(head)+len(body)))
	p.payload = len(raw) + len(head)
	p.raw = append(append(raw, head...), body...)
}

// withClock sets the times in a payload that come from the device's clock: the payload's own time,
// and those of conditions and containers.
func withClock(body []byte, now time.Time) []byte {
	var v any
	text := body
	if z, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
		text, _ = io.ReadAll(z) // unreadable data is not JSON, so the payload stays unchanged
	}
	if json.Unmarshal(text, &v) != nil {
		return body
	}
	at := now.UTC().Format(time.RFC3339)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				if s, ok := x.(string); ok && (k == "time" || strings.HasSuffix(k, "Time") || strings.HasSuffix(k, "At")) &&
					s != "" {
					v[k] = at
				} else {
					walk(x)
				}
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(v)
	out, err := json.Marshal(v)
	if err == nil && wire.Packed(body) {
		out, err = wire.Pack(out)
	}
	if err != nil {
		return body
	}
	return out
}
