package remote

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeWire stores each write, and reads from its input.
type fakeWire struct {
	net.Conn
	in     io.Reader
	writes [][]byte
}

func (f *fakeWire) Read(p []byte) (int, error) { return f.in.Read(p) }
func (f *fakeWire) Write(p []byte) (int, error) {
	f.writes = append(f.writes, slices.Clone(p))
	return len(p), nil
}
func (f *fakeWire) Close() error { return nil }

// frameOf returns a data frame.
func frameOf(data string) []byte {
	b := binary.BigEndian.AppendUint32(nil, 1)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(data))), data...)
}

func TestAFrameIsOneWriteAndPingsGoBetweenFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWire{}
		f := newFramed(w)
		defer func() { _ = f.Close() }()
		frame := frameOf("hello")
		for i := range 6 {
			_, _ = f.Write(frame[i : i+1])
		}
		pause := func() { // waits as long as the interval of pings
			for range 2 {
				synctest.Wait()
				time.Sleep(pingEvery / 2)
			}
			synctest.Wait()
		}
		pause()
		if len(w.writes) != 0 {
			t.Fatalf("written before the frame is complete: %v", w.writes)
		}
		_, _ = f.Write(frame[6:])
		pause()
		want := [][]byte{frame, {0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2}, {0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 4}}
		if !slices.EqualFunc(w.writes, want, bytes.Equal) {
			t.Errorf("written %v, want %v", w.writes, want)
		}
	})
}

func TestAFrameThatIsTooLongEndsTheConnection(t *testing.T) {
	header := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, maxFrame+1)
	f := newFramed(&fakeWire{in: bytes.NewReader(header)})
	defer func() { _ = f.Close() }()
	if _, err := io.ReadAll(f); err == nil || !strings.Contains(err.Error(), "the limit is 1048576") {
		t.Errorf("Read returned %v, want the limit of a frame", err)
	}
}

// taken returns the bytes of an input that the library receives.
func taken(b []byte) (out []byte) {
	var newest uint32
	empty := 0
	for len(b) >= frameHeader {
		head, n := b[:frameHeader], length(b)
		b = b[frameHeader:]
		if head[0]&0x80 == 0 { // a data frame
			if n > maxFrame {
				return out
			}
			if id := binary.BigEndian.Uint32(head); id%2 == 0 || id > newest {
				return out
			}
			if n > 0 {
				empty = 0
			} else if empty++; empty > maxEmpty {
				return out
			}
			if len(b) < n {
				return out
			}
			if head[4]&dataFin != 0 {
				out = append(out, head[0], head[1], head[2], head[3], head[4], 0, 0, 0)
			}
			b = b[n:]
			continue
		}
		if n > maxControl || len(b) < n {
			return out
		}
		switch kind := binary.BigEndian.Uint16(head[2:]); kind {
		case settings, windowUpdate:
		case synStream:
			if n < 4 {
				return out
			}
			id := binary.BigEndian.Uint32(b) & 0x7fffffff
			if id%2 == 0 || id <= newest {
				return out
			}
			newest, empty = id, 0
			out = append(append(out, head...), b[:n]...)
		case rstStream, ping, goAway:
			out = append(append(out, head...), b[:n]...)
		default:
			return out
		}
		b = b[n:]
	}
	return out
}

// The library receives the same bytes however frames are split, and frames are sent whole however
// the library writes them.
func FuzzFrames(f *testing.F) {
	opened := []byte{0x80, 3, 0, synStream, 0, 0, 0, 4, 0, 0, 0, 1}
	f.Add(slices.Concat(opened, frameOf("hello"), frameOf("")), byte(3))
	f.Add(frameOf("for a stream that is not open"), byte(3))
	f.Add(slices.Concat(opened, bytes.Repeat(frameOf(""), maxEmpty+1)), byte(9))
	f.Add(append(slices.Concat(opened, frameOf(strings.Repeat("x", 300))), 0x80, 3, 0, 6, 0, 0, 0, 4, 0,
		0, 0, 1), byte(200))
	f.Add(append(slices.Concat(opened, frameOf(strings.Repeat("x", 2*maxRead))), 0, 0, 0, 1, 1, 0, 0, 0, 0x80, 3, 0, 4, 0,
		0, 0, 0), byte(99))
	f.Add([]byte{0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1}, byte(7))
	f.Add([]byte{0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 1}, byte(1))
	f.Fuzz(func(t *testing.T, b []byte, piece byte) {
		size := int(piece) + 1
		w := &fakeWire{in: bytes.NewReader(b)}
		c := newFramed(w)
		defer func() { _ = c.Close() }()
		var got []byte
		var err error
		for buf := make([]byte, size); err == nil; {
			var n int
			n, err = c.Read(buf)
			got = append(got, buf[:n]...)
		}
		if strings.Contains(err.Error(), "sent an invalid ") ||
			strings.Contains(err.Error(), "window update of a wrong length") {
			return
		}
		if want := taken(b); !bytes.Equal(got, want) {
			t.Fatalf("read %v of %v, want %v", got, b, want)
		}
		if err != io.EOF && err != io.ErrUnexpectedEOF {
			return // the frame is too long or invalid
		}
		for piece := range slices.Chunk(b, size) {
			_, _ = c.Write(piece)
		}
		var out []byte
		for _, p := range w.writes {
			if len(p) < frameHeader || len(p) < frameHeader+length(p) {
				t.Fatalf("%v was written, which is not a frame", p)
			}
			out = append(out, p...)
		}
		if !bytes.Equal(append(out, c.frame...), b) {
			t.Fatalf("%v was written and %v is buffered, want together %v", out, c.frame, b)
		}
	})
}
