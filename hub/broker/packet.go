package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"flotilla.dev/shared/wire"
)

// maxPacket is the largest payload with space for the header and the topic.
const maxPacket = wire.MaxFromDevice + 1<<10

// Errors that close a connection after CONNECT.
var (
	errTooLarge  = errors.New("packet is too large")
	errMalformed = errors.New("not MQTT 3.1.1")
)

// A packetReader reads MQTT packets. Its buffer has smallPacket bytes, enough for a lease. For a
// larger packet it allocates memory as the bytes arrive, not by the announced size.
type packetReader struct {
	from     io.Reader
	expect   func(size int) // called with the size of an incomplete packet, and with 0 after its end; may be nil
	at, have int            // unread bytes in buf
	buf      [smallPacket]byte
}

const (
	smallPacket = 384
	maxHeader   = 5
	growth      = 16 << 10 // bytes first allocated for a large packet
)

// next returns the first header byte and the body of the next packet. The body is valid until the
// next call.
func (r *packetReader) next() (head byte, body []byte, err error) {
	size, header := packetSize(r.buf[r.at:r.have])
	for header == 0 {
		if r.have-r.at >= maxHeader {
			return 0, nil, fmt.Errorf("%w: its length has more than four bytes", errMalformed)
		}
		if err := r.fill(); err != nil {
			return 0, nil, err
		}
		size, header = packetSize(r.buf[r.at:r.have])
	}
	if size > maxPacket {
		return 0, nil, errTooLarge
	}
	head = r.buf[r.at]
	if r.have-r.at < size && r.expect != nil {
		r.expect(size)
		defer r.expect(0)
	}
	if size > len(r.buf) {
		body, err = r.large(header, size)
		return head, body, err
	}
	for r.have-r.at < size {
		if err := r.fill(); err != nil {
			return 0, nil, err
		}
	}
	body = r.buf[r.at+header : r.at+size]
	if r.at += size; r.at == r.have {
		r.at, r.have = 0, 0
	}
	return head, body, nil
}

// fill reads at least one byte.
func (r *packetReader) fill() error {
	if r.at > 0 {
		r.have, r.at = copy(r.buf[:], r.buf[r.at:r.have]), 0
	}
	n, err := r.from.Read(r.buf[r.have:])
	if r.have += n; n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// large reads a packet that is larger than the buffer. The buffer contains the packet's beginning.
func (r *packetReader) large(header, size int) ([]byte, error) {
	size -= header
	body := append(make([]byte, 0, min(size, growth)), r.buf[r.at+header:r.have]...)
	r.at, r.have = 0, 0
	for len(body) < size {
		if len(body) == cap(body) {
			body = append(make([]byte, 0, min(size, 2*cap(body))), body...)
		}
		n, err := r.from.Read(body[len(body):cap(body)])
		if body = body[:len(body)+n]; n == 0 && err != nil {
			return nil, err
		}
	}
	return body, nil
}

// packetSize returns the size of the packet at the start of p and the size of its fixed header; 0:
// p does not contain the whole header.
func packetSize(p []byte) (size, header int) {
	length, shift := 0, 0
	for i := 1; i < len(p) && i < maxHeader; i++ {
		length |= int(p[i]&0x7f) << shift
		if p[i]&0x80 == 0 {
			return 1 + i + length, 1 + i
		}
		shift += 7
	}
	return 0, 0
}

// A publication is a device's PUBLISH; topic and payload point into its packet.
type publication struct {
	topic, payload []byte
	qos            byte
	retain         bool
	id             uint16
}

func parsePublish(head byte, body []byte) (p publication, err error) {
	p.qos, p.retain = head>>1&3, head&1 != 0
	if len(body) < 2 {
		return p, fmt.Errorf("%w: PUBLISH has no topic", errMalformed)
	}
	n := int(binary.BigEndian.Uint16(body))
	if body = body[2:]; n > len(body) {
		return p, fmt.Errorf("%w: the topic of PUBLISH is longer than the packet", errMalformed)
	}
	p.topic, p.payload = body[:n], body[n:]
	switch {
	case p.qos == 0:
		return p, nil
	case p.qos > 1:
		return p, fmt.Errorf("%w: PUBLISH at QoS %d; this broker takes 0 and 1", errMalformed, p.qos)
	case len(p.payload) < 2:
		return p, fmt.Errorf("%w: PUBLISH at QoS 1 has no packet identifier", errMalformed)
	}
	p.id, p.payload = binary.BigEndian.Uint16(p.payload), p.payload[2:]
	if p.id == 0 {
		return p, fmt.Errorf("%w: the packet identifier of PUBLISH is 0", errMalformed)
	}
	return p, nil
}

func parseSubscribe(head byte, body []byte) (*packets.SubscribePacket, error) {
	p := &packets.SubscribePacket{FixedHeader: packets.FixedHeader{MessageType: packets.Subscribe, Qos: 1,
		RemainingLength: len(body)}}
	if err := unpack(head, body, p); err != nil {
		return nil, err
	}
	if len(p.Topics) == 0 || p.MessageID == 0 {
		return nil, fmt.Errorf("%w: SUBSCRIBE has no filter, or no packet identifier", errMalformed)
	}
	for _, q := range p.Qoss {
		if q > 2 {
			return nil, fmt.Errorf("%w: SUBSCRIBE at QoS %d", errMalformed, q)
		}
	}
	return p, nil
}

func parseUnsubscribe(head byte, body []byte) (*packets.UnsubscribePacket, error) {
	p := &packets.UnsubscribePacket{FixedHeader: packets.FixedHeader{MessageType: packets.Unsubscribe, Qos: 1,
		RemainingLength: len(body)}}
	if len(body) < 2 {
		return nil, fmt.Errorf("%w: UNSUBSCRIBE has no packet identifier", errMalformed)
	}
	return p, unpack(head, body, p)
}

// unpack decodes a body with paho's codec. The codec reads missing bytes as zero and ignores
// surplus bytes. So unpack encodes the result again, and refuses a packet that differs.
func unpack(head byte, body []byte, into packets.ControlPacket) error {
	if err := into.Unpack(bytes.NewBuffer(bytes.Clone(body))); err != nil {
		return fmt.Errorf("%w: %s: %w", errMalformed, packets.PacketNames[head>>4], err)
	}
	var again bytes.Buffer
	if err := into.Write(&again); err != nil {
		return fmt.Errorf("%w: %s: %w", errMalformed, packets.PacketNames[head>>4], err)
	}
	want := append(binary.AppendUvarint([]byte{head}, uint64(len(body))), body...)
	if !bytes.Equal(again.Bytes(), want) {
		return fmt.Errorf("%w: %s has a wrong length or a reserved flag", errMalformed,
			packets.PacketNames[head>>4])
	}
	return nil
}

// ack returns an acknowledgement of a packet with an identifier.
func ack(kind byte, id uint16, codes ...byte) []byte {
	out := binary.AppendUvarint([]byte{kind << 4}, uint64(2+len(codes)))
	return append(binary.BigEndian.AppendUint16(out, id), codes...)
}

// publishPacket returns a PUBLISH at QoS 0 as header and payload.
func publishPacket(m message) [][]byte {
	head := binary.AppendUvarint([]byte{packets.Publish << 4}, uint64(2+len(m.topic)+len(m.payload)))
	head = binary.BigEndian.AppendUint16(head, uint16(len(m.topic)))
	head = append(head, m.topic...)
	if len(head)+len(m.payload) <= oneWrite {
		return [][]byte{append(head, m.payload...)}
	}
	return [][]byte{head, m.payload}
}
