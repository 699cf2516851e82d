package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

// Limits of what a SPDY client may send. kubectl sends frames of data of 32 KiB, and
// three short headers to open a stream.
const (
	frameHeader = 8       // bytes
	maxFrame    = 1 << 20 // bytes of data behind it
	maxControl  = 2 << 10 // bytes of anything else behind it
	maxHeaders  = 8       // of a stream
	maxHeader   = 256     // bytes, of a header's name or value
	maxEmpty    = 1000    // frames of no data in a row, without a stream that is opened
	// piece is how much data is read at once.
	piece = 1 << 10
)

// Types of control frames, SPDY/3.1 section 2.6.
const (
	synStream    = 1
	rstStream    = 3
	settings     = 4
	ping         = 6
	goAway       = 7
	windowUpdate = 9
)

// dataFin is the flag of the last frame of data of a stream.
const dataFin = 1

// framed is a connection that carries SPDY/3.1. The library writes each frame in
// pieces: here each is one write, which is one packet or one message. It also keeps what
// it has read until somebody takes it, frame by frame and of any length: here it gets
// data in small pieces, and of control frames only those that a client of streams
// needs; one that is too long, or that the library would answer from a goroutine of its own,
// ends the connection. Its beat is a ping of its own, for the library's waits for the answer.
type framed struct {
	net.Conn
	stop chan struct{}
	once sync.Once

	// of the reader
	next   []byte // of a frame or a piece of one, not read yet
	buf    [frameHeader + maxControl]byte
	head   [frameHeader]byte // of the frame of data that goes on
	rest   int               // bytes of it that have not come
	stream uint32            // the newest that the client has opened
	empty  int               // frames of no data in a row

	flow *flow

	writing sync.Mutex
	frame   []byte // not complete yet
	behind  []byte // frames that go behind it
	due     bool   // a ping goes behind it
	beats   uint32
}

func newFramed(c net.Conn) *framed {
	f := &framed{Conn: c, stop: make(chan struct{})}
	f.flow = newFlow(f.insert)
	go f.beat()
	return f
}

func (f *framed) Close() error {
	f.once.Do(func() { close(f.stop); f.flow.end() })
	return f.Conn.Close()
}

// Read reads no further than to the end of a frame or of a piece of it.
func (f *framed) Read(p []byte) (int, error) {
	for len(f.next) == 0 {
		if err := f.fill(); err != nil {
			f.flow.end()
			return 0, err
		}
	}
	n := copy(p, f.next)
	f.next = f.next[n:]
	return n, nil
}

// fill reads the next control frame or piece of data. It keeps nothing of a frame that
// says nothing here.
func (f *framed) fill() error {
	if f.rest > 0 {
		return f.data()
	}
	if _, err := io.ReadFull(f.Conn, f.head[:]); err != nil {
		return err
	}
	size := length(f.head[:])
	if f.head[0]&0x80 == 0 {
		if size > maxFrame {
			return fmt.Errorf("the client sends a frame of %d bytes, at most %d are read", size, maxFrame)
		}
		if id := binary.BigEndian.Uint32(f.head[:]); id%2 == 0 || id > f.stream {
			return fmt.Errorf("the client sends data on stream %d, which it has not opened", id)
		}
		if f.empty++; size > 0 {
			f.empty = 0
		} else if f.empty > maxEmpty {
			return fmt.Errorf("the client sends more than %d frames of no data in a row", maxEmpty)
		}
		f.rest = size
		return f.data()
	}
	if size > maxControl {
		return fmt.Errorf("the client sends a control frame of %d bytes, at most %d are read", size, maxControl)
	}
	frame := f.buf[:frameHeader+size]
	copy(frame, f.head[:])
	if _, err := io.ReadFull(f.Conn, frame[frameHeader:]); err != nil {
		return err
	}
	switch kind := binary.BigEndian.Uint16(frame[2:]); kind {
	case synStream:
		if size < 4 {
			return errors.New("the client opens a stream without a number")
		}
		id := binary.BigEndian.Uint32(frame[frameHeader:]) & 0x7fffffff
		if id%2 == 0 || id <= f.stream {
			return fmt.Errorf("the client opens stream %d after %d", id, f.stream)
		}
		f.stream, f.empty = id, 0 // each has its end, and a connection that is only tried has no data
		f.flow.open(id)
	case rstStream:
		if size >= 4 {
			f.flow.forget(binary.BigEndian.Uint32(frame[frameHeader:]) & 0x7fffffff)
		}
	case ping, goAway:
	case settings:
		return f.flow.settings(frame[frameHeader:])
	case windowUpdate:
		if size != 8 {
			return errors.New("the client gives a window of no size")
		}
		return f.flow.update(binary.BigEndian.Uint32(frame[frameHeader:])&0x7fffffff,
			int64(binary.BigEndian.Uint32(frame[frameHeader+4:])&0x7fffffff))
	default:
		return fmt.Errorf("the client sends a control frame of type %d, which no client of streams needs", kind)
	}
	f.next = frame
	return nil
}

// data reads a piece of a frame of data, for the reader of its stream. The library is told the
// end of the stream alone.
func (f *framed) data() error {
	n := min(f.rest, piece)
	b := f.buf[:n]
	if _, err := io.ReadFull(f.Conn, b); err != nil {
		return err
	}
	f.rest -= n
	fin := f.rest == 0 && f.head[4]&dataFin != 0
	f.flow.came(binary.BigEndian.Uint32(f.head[:])&0x7fffffff, b, fin)
	if fin {
		frame := f.buf[:frameHeader]
		copy(frame, f.head[:5])
		clear(frame[5:])
		f.next = frame
	}
	return nil
}

// Write keeps what it is given until it is a whole frame.
func (f *framed) Write(p []byte) (int, error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.frame = append(f.frame, p...)
	if len(f.frame) < frameHeader || len(f.frame) < frameHeader+length(f.frame) {
		return len(p), nil
	}
	if _, err := f.Conn.Write(f.frame); err != nil {
		return 0, err
	}
	if f.frame[0]&0x80 != 0 && f.frame[3] == rstStream && len(f.frame) >= frameHeader+4 {
		f.flow.forget(binary.BigEndian.Uint32(f.frame[frameHeader:]) & 0x7fffffff)
	}
	f.frame = f.frame[:0]
	if len(f.behind) > 0 {
		b := f.behind
		f.behind = nil
		if _, err := f.Conn.Write(b); err != nil {
			return 0, err
		}
	}
	if !f.due {
		return len(p), nil
	}
	return len(p), f.ping()
}

// insert writes frames of our own, between two of the library's.
func (f *framed) insert(frames []byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if len(f.frame) > 0 {
		f.behind = append(f.behind, frames...)
		return nil
	}
	_, err := f.Conn.Write(frames)
	return err
}

// length is that of the frame behind a header.
func length(header []byte) int { return int(binary.BigEndian.Uint32(header[4:]) & 0xffffff) }

// beat sends pings, between two frames.
func (f *framed) beat() {
	defer panics.CatchThen("stream", func(error) { _ = f.Close() })
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-t.C:
		}
		f.writing.Lock()
		f.due = true
		var err error
		if len(f.frame) == 0 {
			err = f.ping()
		}
		f.writing.Unlock()
		if err != nil {
			_ = f.Close()
			return
		}
	}
}

// ping writes a PING of SPDY/3.1 with an even id, as is a server's.
func (f *framed) ping() error {
	f.beats += 2
	f.due = false
	_, err := f.Conn.Write(binary.BigEndian.AppendUint32([]byte{0x80, 3, 0, 6, 0, 0, 0, 4}, f.beats))
	return err
}
