package remote

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"sync"

	"github.com/moby/spdystream"

	"flotilla.dev/hub/panics"
)

// Limits of buffers, writes and windows. The buffers hold data of clients that is still unread.
const (
	streamBuffer = 64 << 10  // bytes of a stream
	connBuffer   = 256 << 10 // bytes of a connection
	// maxSend limits a single write, so that streams take turns.
	maxSend = 32 << 10
	// defaultWindow is the initial window of streams and of the connection, in both directions
	// (SPDY/3.1, section 2.6.8).
	defaultWindow = 64 << 10
	// windowUpdateThreshold is how many bytes are read before the client gets a WINDOW_UPDATE.
	windowUpdateThreshold = 32 << 10
)

// initialWindowSize is the ID of the setting for new streams' windows.
const initialWindowSize = 7

// A flow does the flow control for the streams of one connection. The library has no flow control:
// it counts no windows, and one unread stream blocks all others.
//
// kubectl uses the same library and counts no windows either. Such a client is sent everything, and
// its connection limits the rate. A client that sends a window or an initial window gets no more
// than that. Data from clients is buffered up to a limit.
type flow struct {
	write func(frame []byte) error

	mu            sync.Mutex
	changed       *sync.Cond
	streams       map[uint32]*window
	initialWindow int64 // window of a new stream
	connWindow    int64 // window of the connection
	countsStreams bool  // the client counts windows of streams
	countsConn    bool  // the client counts the connection's window
	buffered      int   // unread bytes of all streams
	ended         bool
}

// A window is the state of one stream.
type window struct {
	send   int64 // bytes that may be sent
	in     []byte
	fin    bool // the client sends no more data
	closed bool
	read   int
}

var errStreamClosed = errors.New("the client has closed this stream")

func newFlow(write func([]byte) error) *flow {
	f := &flow{write: write, streams: map[uint32]*window{}, initialWindow: defaultWindow, connWindow: defaultWindow}
	f.changed = sync.NewCond(&f.mu)
	return f
}

func (f *flow) open(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[id] = &window{send: f.initialWindow}
}

// closeStream ends a stream and wakes the goroutines that wait for it.
func (f *flow) closeStream(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(id)
}

func (f *flow) drop(id uint32) {
	if w := f.streams[id]; w != nil {
		f.buffered -= len(w.in)
		w.in, w.closed = nil, true
		delete(f.streams, id)
		f.changed.Broadcast()
	}
}

// end ends all streams and wakes the goroutines that wait for them.
func (f *flow) end() {
	defer panics.Catch("stream")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.changed.Broadcast()
}

// update handles a WINDOW_UPDATE of a stream, or of the connection if the id is 0.
func (f *flow) update(id uint32, delta int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countsStreams = true
	at := &f.connWindow
	if id == 0 {
		f.countsConn = true
	} else if w := f.streams[id]; w != nil {
		at = &w.send
	} else {
		return nil // the stream has ended
	}
	if *at += delta; delta <= 0 || *at > math.MaxInt32 {
		return errors.New("the client sent an invalid window update")
	}
	f.changed.Broadcast()
	return nil
}

// settings handles the client's SETTINGS, which have the initial window of streams.
func (f *flow) settings(payload []byte) error {
	if len(payload) < 4 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for b := payload[4:]; len(b) >= 8; b = b[8:] {
		first := int64(binary.BigEndian.Uint32(b[4:]))
		if binary.BigEndian.Uint32(b)&0xffffff != initialWindowSize {
			continue
		}
		if first > math.MaxInt32 {
			return errors.New("the client sent an invalid initial window")
		}
		for _, w := range f.streams {
			w.send += first - f.initialWindow
		}
		f.initialWindow, f.countsStreams = first, true
		f.changed.Broadcast()
	}
	return nil
}

// reserve waits until a stream may send, and returns how many of n bytes it may.
func (f *flow) reserve(id uint32, n int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		w := f.streams[id]
		if w == nil || f.ended {
			return 0, errStreamClosed
		}
		free := min(int64(n), maxSend)
		if f.countsStreams {
			free = min(free, w.send)
		}
		if f.countsConn {
			free = min(free, f.connWindow)
		}
		if free > 0 {
			w.send -= free
			f.connWindow -= free
			return int(free), nil
		}
		f.changed.Wait()
	}
}

// receive buffers data of a stream. While the buffers are full it waits, and the whole connection
// with it.
func (f *flow) receive(id uint32, b []byte, fin bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		w := f.streams[id]
		if w == nil || f.ended {
			return // the stream is closed: drop the data
		}
		if len(b) == 0 || len(w.in)+len(b) <= streamBuffer && f.buffered+len(b) <= connBuffer {
			w.in = append(w.in, b...)
			f.buffered += len(b)
			w.fin = w.fin || fin
			f.changed.Broadcast()
			return
		}
		f.changed.Wait()
	}
}

// read reads the buffered data of a stream.
func (f *flow) read(id uint32, p []byte) (int, error) {
	n, update, err := f.next(id, p)
	if update > 0 {
		frame := func(id uint32) []byte {
			b := binary.BigEndian.AppendUint32([]byte{0x80, 3, 0, windowUpdate, 0, 0, 0, 8}, id)
			return binary.BigEndian.AppendUint32(b, uint32(update))
		}
		if f.write(append(frame(id), frame(0)...)) != nil {
			f.end()
		}
	}
	return n, err
}

func (f *flow) next(id uint32, p []byte) (n, update int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.streams[id]
	for {
		switch {
		case w == nil || w.closed || f.ended && len(w.in) == 0:
			return 0, 0, io.EOF
		case len(w.in) > 0:
			n = copy(p, w.in)
			if w.in = w.in[n:]; len(w.in) == 0 {
				w.in = nil
			}
			f.buffered -= n
			if w.read += n; w.read >= windowUpdateThreshold && !w.fin {
				update, w.read = w.read, 0
			}
			f.changed.Broadcast()
			return n, update, nil
		case w.fin:
			return 0, 0, io.EOF
		}
		f.changed.Wait()
	}
}

// A flowStream is a stream with flow control in both directions.
type flowStream struct {
	*spdystream.Stream
	flow *flow
}

func (s flowStream) Read(p []byte) (int, error) { return s.flow.read(s.Identifier(), p) }

func (s flowStream) Write(b []byte) (sent int, err error) {
	for len(b) > 0 {
		if s.IsFinished() {
			return sent, errStreamClosed
		}
		n, err := s.flow.reserve(s.Identifier(), len(b))
		if err == nil {
			_, err = s.Stream.Write(b[:n])
		}
		if err != nil {
			return sent, err
		}
		sent, b = sent+n, b[n:]
	}
	return sent, nil
}

// closed tells whether either side has reset or abandoned the stream.
func (s flowStream) closed() bool {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	return s.flow.ended || s.flow.streams[s.Identifier()] == nil
}

// complete tells whether the client has ended the stream and all of it was read.
func (s flowStream) complete() bool {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	w := s.flow.streams[s.Identifier()]
	return w != nil && w.fin && len(w.in) == 0
}
