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

// Limits of a SPDY client's frames. kubectl sends data frames of 32 KiB, and three short headers to
// open a stream.
const (
	frameHeader = 8       // bytes of a frame's header
	maxFrame    = 1 << 20 // bytes of a data frame's payload
	maxControl  = 2 << 10 // bytes of a control frame's payload
	maxHeaders  = 8       // headers of a stream
	maxHeader   = 256     // bytes of a header's name or value
	maxEmpty    = 1000    // consecutive frames that neither have data nor open a stream
	// maxRead is the most data that is read at a time.
	maxRead = 1 << 10
)

// Types of control frames (SPDY/3.1, section 2.6).
const (
	synStream    = 1
	rstStream    = 3
	settings     = 4
	ping         = 6
	goAway       = 7
	windowUpdate = 9
)

// dataFin marks a stream's last data frame.
const dataFin = 1

// framed is a SPDY/3.1 connection between a client and the library:
//   - The library writes a frame in pieces; framed writes it at once, as one packet or message.
//   - The library buffers frames of any length; framed passes on small pieces of data, and only the control
//     frames that a client of streams needs.
//   - All other frames end the connection, and so do frames that are too long or that the library would answer
//     from another goroutine.
//   - framed sends its own pings, because the library's pings wait for the response.
type framed struct {
	net.Conn
	stop chan struct{}
	once sync.Once

	// Fields of the reader.
	next   []byte // the unread part of a frame
	buf    [frameHeader + maxControl]byte
	head   [frameHeader]byte // header of the current data frame
	rest   int               // bytes of that frame that were not received yet
	stream uint32            // newest stream of the client
	empty  int               // consecutive frames without data

	flow *flow

	writing sync.Mutex
	frame   []byte // incomplete frame of the library
	queued  []byte // frames to write after frame
	pingDue bool   // write a ping after frame
	pings   uint32
}

func newFramed(c net.Conn) *framed {
	f := &framed{Conn: c, stop: make(chan struct{})}
	f.flow = newFlow(f.insert)
	go f.sendPings()
	return f
}

func (f *framed) Close() error {
	f.once.Do(func() { close(f.stop); f.flow.end() })
	return f.Conn.Close()
}

// Read reads at most to the end of a frame, or of a piece of a frame.
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

// fill reads the next control frame or piece of data. It skips frames without a meaning here.
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
			return fmt.Errorf("the client sent a frame of %d bytes; the limit is %d", size, maxFrame)
		}
		if id := binary.BigEndian.Uint32(f.head[:]); id%2 == 0 || id > f.stream {
			return fmt.Errorf("the client sent data on stream %d, which it has not opened", id)
		}
		if f.empty++; size > 0 {
			f.empty = 0
		} else if f.empty > maxEmpty {
			return fmt.Errorf("the client sent more than %d frames without data in a row", maxEmpty)
		}
		f.rest = size
		return f.data()
	}
	if size > maxControl {
		return fmt.Errorf("the client sent a control frame of %d bytes; the limit is %d", size, maxControl)
	}
	frame := f.buf[:frameHeader+size]
	copy(frame, f.head[:])
	if _, err := io.ReadFull(f.Conn, frame[frameHeader:]); err != nil {
		return err
	}
	switch kind := binary.BigEndian.Uint16(frame[2:]); kind {
	case synStream:
		if size < 4 {
			return errors.New("the client opened a stream without a number")
		}
		id := binary.BigEndian.Uint32(frame[frameHeader:]) & 0x7fffffff
		if id%2 == 0 || id <= f.stream {
			return fmt.Errorf("the client opened stream %d after %d", id, f.stream)
		}
		// Restart the count: an empty frame closes each stream later, and a port probe sends no data.
		f.stream, f.empty = id, 0
		f.flow.open(id)
	case rstStream:
		if size >= 4 {
			f.flow.closeStream(binary.BigEndian.Uint32(frame[frameHeader:]) & 0x7fffffff)
		}
	case ping, goAway:
	case settings:
		return f.flow.settings(frame[frameHeader:])
	case windowUpdate:
		if size != 8 {
			return errors.New("the client sent a window update of a wrong length")
		}
		return f.flow.update(binary.BigEndian.Uint32(frame[frameHeader:])&0x7fffffff,
			int64(binary.BigEndian.Uint32(frame[frameHeader+4:])&0x7fffffff))
	default:
		return fmt.Errorf("the client sent a control frame of unsupported type %d", kind)
	}
	f.next = frame
	return nil
}

// data reads a piece of a data frame into its stream's buffer. The library receives only the
// stream's end.
func (f *framed) data() error {
	n := min(f.rest, maxRead)
	b := f.buf[:n]
	if _, err := io.ReadFull(f.Conn, b); err != nil {
		return err
	}
	f.rest -= n
	fin := f.rest == 0 && f.head[4]&dataFin != 0
	f.flow.receive(binary.BigEndian.Uint32(f.head[:])&0x7fffffff, b, fin)
	if fin {
		frame := f.buf[:frameHeader]
		copy(frame, f.head[:5])
		clear(frame[5:])
		f.next = frame
	}
	return nil
}

// Write buffers its input until a frame is complete.
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
		f.flow.closeStream(binary.BigEndian.Uint32(f.frame[frameHeader:]) & 0x7fffffff)
	}
	f.frame = f.frame[:0]
	if len(f.queued) > 0 {
		b := f.queued
		f.queued = nil
		if _, err := f.Conn.Write(b); err != nil {
			return 0, err
		}
	}
	if !f.pingDue {
		return len(p), nil
	}
	return len(p), f.ping()
}

// insert writes frames between two frames of the library.
func (f *framed) insert(frames []byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if len(f.frame) > 0 {
		f.queued = append(f.queued, frames...)
		return nil
	}
	_, err := f.Conn.Write(frames)
	return err
}

// length returns the length from a frame's header.
func length(header []byte) int { return int(binary.BigEndian.Uint32(header[4:]) & 0xffffff) }

// sendPings sends pings between other frames.
func (f *framed) sendPings() {
	defer panics.CatchThen("stream", func(error) { _ = f.Close() })
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-t.C:
		}
		f.writing.Lock()
		f.pingDue = true
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

// ping writes a SPDY/3.1 PING. A server's pings must have even IDs.
func (f *framed) ping() error {
	f.pings += 2
	f.pingDue = false
	_, err := f.Conn.Write(binary.BigEndian.AppendUint32([]byte{0x80, 3, 0, 6, 0, 0, 0, 4}, f.pings))
	return err
}
