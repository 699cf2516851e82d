package remote

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"
)

// Limits of what a SPDY client may send. kubectl sends frames of 32 KiB.
const (
	frameHeader = 8       // bytes
	maxFrame    = 1 << 20 // bytes behind it
)

// framed is a connection that carries SPDY/3.1. The library writes each frame in
// pieces and takes frames of any length: here each frame is one write, which is one
// packet or one message, and one that is too long ends the connection. Its beat is
// a ping of its own, for the library's waits for the answer.
type framed struct {
	net.Conn
	stop chan struct{}
	once sync.Once

	// of the reader
	header [frameHeader]byte
	have   int // bytes of the header that were read
	rest   int // bytes of the frame that were not

	writing sync.Mutex
	frame   []byte // not complete yet
	due     bool   // a ping goes behind it
	beats   uint32
}

func newFramed(c net.Conn) *framed {
	f := &framed{Conn: c, stop: make(chan struct{})}
	go f.beat()
	return f
}

func (f *framed) Close() error {
	f.once.Do(func() { close(f.stop) })
	return f.Conn.Close()
}

// Read reads no further than to the end of a frame or of its header.
func (f *framed) Read(p []byte) (int, error) {
	most := f.rest
	if most == 0 {
		most = frameHeader - f.have
	}
	n, err := f.Conn.Read(p[:min(len(p), most)])
	if f.rest > 0 {
		f.rest -= n
		return n, err
	}
	f.have += copy(f.header[f.have:], p[:n])
	if f.have == frameHeader {
		f.have, f.rest = 0, length(f.header[:])
		if f.rest > maxFrame {
			return 0, fmt.Errorf("the client sends a frame of %d bytes, at most %d are read", f.rest, maxFrame)
		}
	}
	return n, err
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
	f.frame = f.frame[:0]
	if !f.due {
		return len(p), nil
	}
	return len(p), f.ping()
}

// length is that of the frame behind a header.
func length(header []byte) int { return int(binary.BigEndian.Uint32(header[4:]) & 0xffffff) }

// beat sends pings, between two frames.
func (f *framed) beat() {
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
