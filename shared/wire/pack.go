package wire

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Limits of compressed payloads and of parts.
const (
	// MaxUnpacked limits the text of a compressed payload of a device. 100 pods of 8 containers
	// with exit messages take a third of it.
	MaxUnpacked = 2 << 20
	MaxParts    = 16       // parts of one list or desired state
	MaxDesired  = 16 << 20 // bytes of text of all parts of a desired state
	worthwhile  = 512      // bytes of text; gzip hardly shortens a shorter text
	// smallPart is the size of a part of a device's list if MaxParts suffice. It takes 13 s on a
	// link of 20 kbit/s, so that a lease can follow in time.
	smallPart = 32 << 10
)

// gzipMagic begins a compressed payload. JSON never begins with it.
var gzipMagic = []byte{0x1f, 0x8b}

// Packed reports whether a payload is gzip.
func Packed(payload []byte) bool { return bytes.HasPrefix(payload, gzipMagic) }

// errTooLong means that a payload does not fit into one message. Its parts may fit.
var errTooLong = errors.New("too long for one message")

// Pack encodes a status or pods payload. Short text stays unchanged; gzip reduces other text to a
// fourth of its size.
func Pack(text []byte) ([]byte, error) {
	if len(text) <= worthwhile {
		return text, nil
	}
	return pack(text, MaxUnpacked, MaxFromDevice)
}

// pack compresses a text of at most `most` bytes to at most `packed` bytes.
func pack(text []byte, most, packed int) ([]byte, error) {
	if len(text) > most {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are read", errTooLong, len(text), most)
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.DefaultCompression) // this level needs less memory than BestSpeed
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil && b.Len() > packed {
		err = fmt.Errorf("%w: it has %d bytes, and %d as gzip: at most %d are read", errTooLong, len(text), b.Len(), packed)
	}
	return b.Bytes(), err
}

// A packing has the limits for encoding objects.
type packing struct {
	most   int // largest text of a message, in bytes
	packed int // largest gzip of a message, in bytes; for a list it grows if MaxParts are too few
	plain  int // largest object that is sent uncompressed because gzip does not shorten it, in bytes
}

// pack encodes the text of a number of objects as a message.
func (p packing) pack(text []byte, objects int) ([]byte, error) {
	b, err := pack(text, p.most, p.packed)
	if errors.Is(err, errTooLong) && objects == 1 && len(text) <= p.plain {
		return text, nil
	}
	return b, err
}

// inParts encodes n objects in as few messages as possible. encode returns the text of the objects
// lo to hi as one part of parts. A single part has no part number.
func inParts(n int, how packing, encode func(lo, hi, part, parts int) ([]byte, error)) ([][]byte, error) {
	text, err := encode(0, n, 0, 0)
	if err != nil {
		return nil, err
	}
	whole, err := how.pack(text, n)
	if err == nil {
		return [][]byte{whole}, nil
	}
	var fit []span
	for ; errors.Is(err, errTooLong) && how.packed <= MaxFromDevice; how.packed *= 2 {
		fit, err = spans(n, func(s span) error {
			text, err := encode(s.lo, s.hi, MaxParts, MaxParts)
			if err == nil {
				_, err = how.pack(text, s.hi-s.lo)
			}
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	how.packed = MaxFromDevice
	parts := make([][]byte, len(fit))
	for i, s := range fit {
		text, err := encode(s.lo, s.hi, i+1, len(fit))
		if err == nil {
			parts[i], err = how.pack(text, s.hi-s.lo)
		}
		if err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// A span is the range of a list's objects from lo to hi.
type span struct{ lo, hi int }

// spans halves n objects until each span fits. There are at most MaxParts spans.
func spans(n int, fits func(span) error) (fit []span, err error) {
	for open := []span{{0, n}}; len(open) > 0; {
		s := open[0]
		switch err, mid := fits(s), (s.lo+s.hi)/2; {
		case err == nil:
			fit, open = append(fit, s), open[1:]
		case !errors.Is(err, errTooLong) || s.hi-s.lo < 2:
			return nil, err
		default:
			open = append([]span{{s.lo, mid}, {mid, s.hi}}, open[1:]...)
		}
		if len(fit)+len(open) > MaxParts {
			return nil, fmt.Errorf("%w: it takes more than %d parts", errTooLong, MaxParts)
		}
	}
	return fit, nil
}

// TextSize returns the number of bytes of text that a payload declares. A payload with more text is
// refused.
func TextSize(payload []byte) int {
	if !Packed(payload) || len(payload) < 4 {
		return len(payload)
	}
	return int(min(binary.LittleEndian.Uint32(payload[len(payload)-4:]), MaxDesired+1))
}

// unpack returns the text of a payload that may be compressed. The payload has at most
// MaxFromDevice bytes, its text at most `most` bytes.
func unpack(p payload, most int) (payload, error) {
	if !Packed(p.data) || len(p.data) > MaxFromDevice {
		return p, nil
	}
	name, size := p.name, min(TextSize(p.data), most+1)
	r, err := gzip.NewReader(bytes.NewReader(p.data))
	var text []byte
	if err == nil {
		r.Multistream(false)
		text, err = io.ReadAll(io.LimitReader(r, int64(size)+1))
	}
	switch {
	case err == nil && len(text) > most:
		return payload{}, fmt.Errorf("%s: payload has more than %d bytes when unpacked", name, most)
	case err == nil && len(text) > size:
		return payload{}, fmt.Errorf("%s: payload unpacks to more than its declared %d bytes", name, size)
	case err != nil:
		return payload{}, fmt.Errorf("%s: payload begins like gzip and is invalid: %w", name, err)
	case Packed(text):
		return payload{}, errors.New(name + ": payload is packed twice")
	}
	return payload{name, text, most}, nil
}
