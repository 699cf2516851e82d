//go:build linux

package idle

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// two returns both ends of a connection. The first end can be idle.
func two(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, ok := New(accepted).(*Conn)
	if !ok {
		t.Fatal("a TCP connection cannot be idle")
	}
	t.Cleanup(func() { other.Close(); c.Close() })
	return c, other
}

// A recorder is a Waiter that records its calls.
type recorder struct {
	c    *Conn
	told chan string
}

func newRecorder(c *Conn) *recorder { return &recorder{c, make(chan string, 8)} }

func (s *recorder) Wake(scratch []byte) {
	s.c.Impatient(true)
	defer s.c.Impatient(false)
	n, err := s.c.Read(scratch)
	switch {
	case errors.Is(err, net.ErrClosed):
		s.told <- "closed"
	case err != nil:
		s.told <- err.Error()
	default:
		s.told <- string(scratch[:n])
	}
}

func (s *recorder) Expire() { s.told <- "expired" }

func (s *recorder) is(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-s.told:
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no call, want %q", want)
	}
}

// setIdle makes the connection idle once all data has been read.
func setIdle(t *testing.T, c *Conn, by time.Time, s Waiter) {
	t.Helper()
	c.Impatient(true)
	if _, err := c.Read(make([]byte, 8)); !errors.Is(err, ErrNothing) {
		t.Fatalf("a read without data returns %v", err)
	}
	c.Impatient(false)
	if !c.SetIdle(by, s) {
		t.Fatal("the connection cannot become idle")
	}
}

func TestAnIdleConnectionWakesItsWaiterOnce(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		by   time.Time
		do   func(c *Conn, other net.Conn)
		want string
	}{
		"something comes": {later, func(_ *Conn, other net.Conn) { _, _ = other.Write([]byte("hello")) },
			"hello"},
		"the other end closes": {later, func(_ *Conn, other net.Conn) { other.Close() }, "EOF"},
		"the other end resets the connection": {later,
			func(_ *Conn, other net.Conn) { _ = other.(*net.TCPConn).SetLinger(0); other.Close() }, "reset"},
		"this end closes":                     {later, func(c *Conn, _ net.Conn) { c.Close() }, "closed"},
		"no data arrives before the deadline": {time.Now(), func(*Conn, net.Conn) {}, "expired"},
		"data has arrived before":             {later, func(*Conn, net.Conn) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, other := two(t)
			s := newRecorder(conn)
			if c.want == "" {
				_, _ = other.Write([]byte("early"))
				if conn.SetIdle(c.by, s) {
					s.is(t, "early")
				}
				return
			}
			setIdle(t, conn, c.by, s)
			c.do(conn, other)
			if c.want == "reset" {
				if got := <-s.told; got == "" || got == "expired" {
					t.Errorf("got %q", got)
				}
			} else {
				s.is(t, c.want)
			}
			select {
			case more := <-s.told:
				t.Errorf("the Waiter is called again: %q", more)
			case <-time.After(30 * time.Millisecond):
			}
		})
	}
}

// The last bytes and the end of the stream may be one event. A short read must not hide the end.
func TestTheEndAfterTheLastBytesIsRead(t *testing.T) {
	for range 20 {
		c, other := two(t)
		_, _ = other.Write([]byte("bye"))
		other.Close()
		time.Sleep(2 * tick)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if all, err := io.ReadAll(c); err != nil || string(all) != "bye" {
			t.Fatalf("read %q, %v", all, err)
		}
	}
}

func TestADeadlineEndsAWaitingCall(t *testing.T) {
	c, _ := two(t)
	for name, set := range map[string]func(){
		"before":    func() { _ = c.SetDeadline(time.Now().Add(20 * time.Millisecond)) },
		"meanwhile": func() { time.AfterFunc(20*time.Millisecond, func() { _ = c.SetDeadline(time.Now()) }) },
		"past":      func() { _ = c.SetDeadline(time.Now().Add(-time.Second)) },
	} {
		_ = c.SetDeadline(time.Time{})
		set()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a read returns %v", name, err)
		}
		var err error
		for err == nil {
			_, err = c.Write(make([]byte, 1<<20))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a write returns %v", name, err)
		}
	}
}

// With Spill a write does not wait. It keeps the rest, in order.
func TestASpillingWriteKeepsTheRest(t *testing.T) {
	c, other := two(t)
	var want bytes.Buffer
	c.Spill(true)
	for i := range 200 {
		p := bytes.Repeat([]byte{byte(i)}, 64<<10)
		want.Write(p)
		if n, err := c.Write(p); n != len(p) || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	rest := c.Spill(false)
	if len(rest) == 0 {
		t.Fatal("an unread socket took 12 MB: the test cannot work")
	}
	go func() {
		_, _ = c.Write(rest)
		c.Close()
	}()
	if got, err := io.ReadAll(other); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d bytes arrived, %v, want the %d written ones", len(got), err, want.Len())
	}
}

func TestCloseEndsWaitingCalls(t *testing.T) {
	c, _ := two(t)
	over := make(chan error, 2)
	go func() { _, err := c.Read(make([]byte, 1)); over <- err }()
	go func() {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				over <- err
				return
			}
		}
	}()
	time.Sleep(50 * time.Millisecond)
	c.Close()
	for range 2 {
		select {
		case err := <-over:
			if err == nil {
				t.Error("a waiting call ended without an error")
			}
		case <-time.After(time.Minute):
			t.Fatal("a call still waits for a closed connection")
		}
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read of a closed connection returns %v", err)
	}
}
