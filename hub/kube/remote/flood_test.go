package remote

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/moby/spdystream"
	"github.com/moby/spdystream/spdy"
)

// A flood is a SPDY client that does not use the library.
type flood struct {
	conn net.Conn
	sent atomic.Int64 // bytes that the hub has read so far
}

func (c *flood) Write(b []byte) (int, error) {
	n, err := c.conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}

// flooding lets a client write in a synctest bubble until the hub stops reading, and then calls
// look with the number of sent bytes. The hub accepts the client's streams but does not read them.
func flooding(t *testing.T, write func(f *spdy.Framer) error, look func(sent int64)) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		var mu sync.Mutex
		var open []*spdystream.Stream
		conn, gone, err := serveSPDY(there, func(s flowStream) {
			mu.Lock()
			open = append(open, s.Stream)
			mu.Unlock()
			answer(s.Stream)
		})
		if err != nil {
			t.Fatal(err)
		}
		c := &flood{conn: here}
		f, err := spdy.NewFramer(c, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, here) }()
		go func() {
			for err := error(nil); err == nil; err = write(f) {
			}
		}()
		synctest.Wait()
		look(c.sent.Load())
		_ = here.Close()
		_ = conn.Close()
		for _, s := range open {
			_ = s.Reset() // the library waits until the streams end
		}
		<-gone
	})
}

func opens(id spdy.StreamId, h http.Header) *spdy.SynStreamFrame {
	return &spdy.SynStreamFrame{StreamId: id, Headers: h}
}

// The hub buffers at most a megabyte of a connection with unread streams.
func TestUnreadStreamsAreBufferedToALimit(t *testing.T) {
	var n int
	flooding(t, func(f *spdy.Framer) error {
		n++
		id := spdy.StreamId(2*(n%5) + 1)
		if n <= 5 {
			return f.WriteFrame(opens(spdy.StreamId(2*n-1), http.Header{"streamtype": {"data"}}))
		}
		return f.WriteFrame(&spdy.DataFrame{StreamId: id, Data: make([]byte, 1<<20)})
	}, func(sent int64) {
		if sent > 2<<20 {
			t.Errorf("the hub buffers %d KiB of unread streams, want at most 2048", sent>>10)
		}
	})
}

// Some frames end the connection, because the hub's clients do not need them. The library would
// store such frames, or answer them from goroutines that wait for the client.
func TestFramesThatEndTheConnection(t *testing.T) {
	control := func(kind uint16, payload ...byte) []byte {
		b := binary.BigEndian.AppendUint16([]byte{0x80, 3}, kind)
		return append(binary.BigEndian.AppendUint32(b, uint32(len(payload))), payload...)
	}
	good := control(synStream, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0)
	data := func(stream byte, b ...byte) []byte {
		return append([]byte{0, 0, 0, stream, 0, 0, 0, byte(len(b))}, b...)
	}
	empty := bytes.Repeat(data(3), maxEmpty)
	var tried []byte // streams of a port probe: each is opened and then ended by an empty frame
	for id := uint32(1); id < 4*maxEmpty; id += 2 {
		open := binary.BigEndian.AppendUint32(nil, id)
		end := append(binary.BigEndian.AppendUint32(nil, id), dataFin, 0, 0, 0)
		tried = slices.Concat(tried, control(synStream, append(open, 0, 0, 0, 0, 0, 0)...), end)
	}
	for _, tt := range []struct {
		name  string
		bytes []byte
		want  string // part of the error; "" if the input is read to its end
	}{
		{"streams in ascending order", append(slices.Clone(good), control(synStream, 0, 0, 0, 5)...), ""},
		{"a stream number of the server", control(synStream, 0, 0, 0, 2), "opened stream 2 after 0"},
		{"a stream number used twice", append(slices.Clone(good), good...), "opened stream 3 after 3"},
		{"a stream without a number", control(synStream, 0, 0), "without a number"},
		{"a reply without a stream", control(2, 0, 0, 0, 1), "type 2"},
		{"headers on an open stream", control(8, 0, 0, 0, 1), "type 8"},
		{"settings are ignored", control(settings, make([]byte, maxControl)...), ""},
		{"endless settings", control(settings, make([]byte, maxControl+1)...), "the limit is 2048"},
		{"an unknown type", control(12), "type 12"},
		{"only zeros", make([]byte, frameHeader), "data on stream 0, which"},
		{"data on a stream number of the server", slices.Concat(good, data(2, 1)), "data on stream 2, which"},
		{"data on a stream that is not open yet", slices.Concat(good, data(5, 1)), "data on stream 5, which"},
		{"frames without data, each followed by a frame with data", slices.Concat(good, empty, data(3, 1), empty, data(3, 1)), ""},
		{"many streams that end without data", tried, ""},
		{"endless frames without data", slices.Concat(good, empty, data(3)), "more than 1000 frames without data"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFramed(&fakeWire{in: bytes.NewReader(tt.bytes)})
			defer func() { _ = f.Close() }()
			_, err := io.ReadAll(f)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Read returned %v, want %q", err, tt.want)
			}
		})
	}
}
