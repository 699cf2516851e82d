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

// Limits of what is kept of what a client has sent and nobody has read.
const (
	streamRoom = 64 << 10  // bytes of a stream
	roomOfAll  = 256 << 10 // bytes of a connection
	// maxSend is how much is sent at once, so that others come between.
	maxSend = 32 << 10
	// firstWindow is how much either side may send at first, of a stream and of all, SPDY/3.1 section
	// 2.6.8.
	firstWindow = 64 << 10
	// eatenEnough is how much is read until the client is told that it may send as much again.
	eatenEnough = 32 << 10
)

// initialWindowSize is the setting of how much may be sent of a stream at first.
const initialWindowSize = 7

// A flow is what may be sent and what has come on the streams of one connection. The library
// counts no windows, and gives what comes to the reader of its stream while the others wait.
//
// Clients that use the same library, such as kubectl, count none either, and are sent everything:
// their own readers hold up their connection. Who gives a window, or says how great the first is,
// is sent no more than that. What clients send is kept for its reader up to a bound.
type flow struct {
	write func(frame []byte) error

	mu      sync.Mutex
	changed *sync.Cond
	streams map[uint32]*window
	first   int64 // window of a new stream
	all     int64 // what may be sent on all streams
	counted bool  // the client counts the windows of streams
	both    bool  // and that of all
	kept    int   // bytes that nobody has read
	ended   bool
}

// A window is one stream's side of it.
type window struct {
	send  int64 // what may be sent
	in    []byte
	fin   bool // nothing comes after that
	gone  bool
	eaten int
}

var errUnwanted = errors.New("the client wants no more of this stream")

func newFlow(write func([]byte) error) *flow {
	f := &flow{write: write, streams: map[uint32]*window{}, first: firstWindow, all: firstWindow}
	f.changed = sync.NewCond(&f.mu)
	return f
}

func (f *flow) open(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[id] = &window{send: f.first}
}

// forget ends a stream, whoever waits for it.
func (f *flow) forget(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(id)
}

func (f *flow) drop(id uint32) {
	if w := f.streams[id]; w != nil {
		f.kept -= len(w.in)
		w.in, w.gone = nil, true
		delete(f.streams, id)
		f.changed.Broadcast()
	}
}

// end lets everybody go who waits.
func (f *flow) end() {
	defer panics.Catch("stream")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.changed.Broadcast()
}

// update hears that the client takes more of a stream, or (0) of all.
func (f *flow) update(id uint32, delta int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counted = true
	at := &f.all
	if id == 0 {
		f.both = true
	} else if w := f.streams[id]; w != nil {
		at = &w.send
	} else {
		return nil // it has ended
	}
	if *at += delta; delta <= 0 || *at > math.MaxInt32 {
		return errors.New("the client gives a window that cannot be")
	}
	f.changed.Broadcast()
	return nil
}

// settings hears the client's settings: how much it takes of a stream at first.
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
			return errors.New("the client gives a first window that cannot be")
		}
		for _, w := range f.streams {
			w.send += first - f.first
		}
		f.first, f.counted = first, true
		f.changed.Broadcast()
	}
	return nil
}

// may waits until something may be sent on a stream, and tells how much of n.
func (f *flow) may(id uint32, n int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		w := f.streams[id]
		if w == nil || f.ended {
			return 0, errUnwanted
		}
		free := min(int64(n), maxSend)
		if f.counted {
			free = min(free, w.send)
		}
		if f.both {
			free = min(free, f.all)
		}
		if free > 0 {
			w.send -= free
			f.all -= free
			return int(free), nil
		}
		f.changed.Wait()
	}
}

// came keeps what has come on a stream. It waits for room: so does everything that comes after it.
func (f *flow) came(id uint32, b []byte, fin bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		w := f.streams[id]
		if w == nil || f.ended {
			return // of no use to anybody
		}
		if len(b) == 0 || len(w.in)+len(b) <= streamRoom && f.kept+len(b) <= roomOfAll {
			w.in = append(w.in, b...)
			f.kept += len(b)
			w.fin = w.fin || fin
			f.changed.Broadcast()
			return
		}
		f.changed.Wait()
	}
}

// read reads what has come on a stream.
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
		case w == nil || w.gone || f.ended && len(w.in) == 0:
			return 0, 0, io.EOF
		case len(w.in) > 0:
			n = copy(p, w.in)
			if w.in = w.in[n:]; len(w.in) == 0 {
				w.in = nil
			}
			f.kept -= n
			if w.eaten += n; w.eaten >= eatenEnough && !w.fin {
				update, w.eaten = w.eaten, 0
			}
			f.changed.Broadcast()
			return n, update, nil
		case w.fin:
			return 0, 0, io.EOF
		}
		f.changed.Wait()
	}
}

// A flowing is a stream of which no more is sent and kept than its client and we can take.
type flowing struct {
	*spdystream.Stream
	flow *flow
}

func (s flowing) Read(p []byte) (int, error) { return s.flow.read(s.Identifier(), p) }

func (s flowing) Write(b []byte) (sent int, err error) {
	for len(b) > 0 {
		if s.IsFinished() {
			return sent, errUnwanted
		}
		n, err := s.flow.may(s.Identifier(), len(b))
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

// over tells whether either side has reset the stream, or given it up.
func (s flowing) over() bool {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	return s.flow.ended || s.flow.streams[s.Identifier()] == nil
}

// whole tells whether the client has said that nothing more comes, and all was read.
func (s flowing) whole() bool {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	w := s.flow.streams[s.Identifier()]
	return w != nil && w.fin && len(w.in) == 0
}
