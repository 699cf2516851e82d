package remote

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/spdystream/spdy"
)

// A counter is a SPDY/3.1 client that counts windows. It does not use the library.
type counter struct {
	*spdy.Framer
	mu   sync.Mutex
	got  map[spdy.StreamId]int // received bytes of data
	sums map[spdy.StreamId]int // sums of received window updates
}

func (c *counter) listen() {
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		switch f := frame.(type) {
		case *spdy.DataFrame:
			c.got[f.StreamId] += len(f.Data)
		case *spdy.WindowUpdateFrame:
			c.sums[f.StreamId] += int(f.DeltaWindowSize)
		}
		c.mu.Unlock()
	}
}

func (c *counter) of(id spdy.StreamId) (got, given int) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got[id], c.sums[id]
}

// counting connects a client that opens the streams 1, 3 and 5. first is its initial window; 0 for
// none. serve handles each stream.
func counting(t *testing.T, first uint32, serve func(id uint32, s flowStream), client func(t *testing.T, c *counter)) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		var open []flowStream
		var mu sync.Mutex
		var running sync.WaitGroup
		conn, gone, err := serveSPDY(there, func(s flowStream) {
			answer(s.Stream)
			mu.Lock()
			open = append(open, s)
			mu.Unlock()
			running.Go(func() { serve(s.Identifier(), s) })
		})
		if err != nil {
			t.Fatal(err)
		}
		framer, err := spdy.NewFramer(here, here)
		if err != nil {
			t.Fatal(err)
		}
		c := &counter{Framer: framer, got: map[spdy.StreamId]int{}, sums: map[spdy.StreamId]int{}}
		go c.listen()
		if first > 0 {
			if err := c.WriteFrame(&spdy.SettingsFrame{FlagIdValues: []spdy.SettingsFlagIdValue{{Id: spdy.SettingsInitialWindowSize, Value: first}}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []spdy.StreamId{1, 3, 5} {
			if err := c.WriteFrame(opens(id, http.Header{"streamtype": {"data"}})); err != nil {
				t.Fatal(err)
			}
		}
		client(t, c)
		_ = here.Close()
		_ = conn.Close()
		running.Wait()
		for _, s := range open {
			_ = s.Reset()
		}
		<-gone
	})
}

// A client counts windows and does not read one stream. The hub sends no more of that stream than
// its window, and the other streams continue.
func TestAStreamWithoutAWindowDoesNotBlockOthers(t *testing.T) {
	const first, more = 1000, 5000
	counting(t, first, func(id uint32, s flowStream) {
		switch id {
		case 1:
			_, _ = s.Write(make([]byte, 64<<20))
		case 3:
			_, _ = io.Copy(s, bytes.NewReader(make([]byte, 1<<20)))
		}
	}, func(t *testing.T, c *counter) {
		window := func(id spdy.StreamId, n uint32) {
			if err := c.WriteFrame(&spdy.WindowUpdateFrame{StreamId: id, DeltaWindowSize: n}); err != nil {
				t.Fatal(err)
			}
		}
		window(3, 2<<20)
		if got, _ := c.of(3); got != 1<<20 {
			t.Errorf("%d bytes of the read stream were sent, want %d", got, 1<<20)
		}
		if got, _ := c.of(1); got != first {
			t.Errorf("%d bytes of the unread stream were sent, want %d", got, first)
		}
		window(1, more)
		if got, _ := c.of(1); got != first+more {
			t.Errorf("%d bytes of the unread stream were sent after a window of %d more, want %d", got, more, first+more)
		}
		// From now on the connection's window counts too. More than that window was already sent.
		window(0, 1)
		window(1, more)
		if got, _ := c.of(1); got != first+more {
			t.Errorf("%d bytes of the unread stream were sent without a window of the connection, want %d", got, first+more)
		}
		window(0, 2<<20)
		if got, _ := c.of(1); got != first+2*more {
			t.Errorf("%d bytes of the unread stream were sent after a window of %d more, want %d", got, 2*more, first+2*more)
		}
	})
}

// adding counts the written bytes.
type adding struct{ *atomic.Int64 }

func (a adding) Write(p []byte) (int, error) { a.Add(int64(len(p))); return len(p), nil }

// Data of an unread stream is buffered up to its window, while the other streams continue. A client
// that sends more has to wait.
func TestAnUnreadStreamDoesNotBlockOthers(t *testing.T) {
	const little = "still here"
	var whole, other atomic.Int64
	counting(t, 0, func(id uint32, s flowStream) {
		switch id {
		case 1:
			time.Sleep(time.Hour) // the stream is not read
			_, _ = io.Copy(io.Discard, s)
		case 3:
			_, _ = io.Copy(adding{&whole}, s)
		case 5:
			_, _ = io.Copy(adding{&other}, s)
		}
	}, func(t *testing.T, c *counter) {
		send := func(id spdy.StreamId, flags spdy.DataFlags, b []byte) {
			if err := c.WriteFrame(&spdy.DataFrame{StreamId: id, Flags: flags, Data: b}); err != nil {
				t.Error(err)
			}
		}
		send(1, 0, make([]byte, defaultWindow))
		for range 300 {
			send(3, 0, make([]byte, 1024))
		}
		if _, given := c.of(3); given < 300*1024-windowUpdateThreshold || whole.Load() != 300*1024 {
			t.Errorf("%d bytes of another stream were read, but window updates add up to %d", whole.Load(), given)
		}
		if _, given := c.of(1); given > 0 {
			t.Errorf("an unread stream got window updates for %d bytes", given)
		}
		sent := make(chan struct{})
		go func() { // like kubectl, this client counts no windows
			defer close(sent)
			send(1, 0, []byte{1})
			send(5, 0, []byte(little))
		}()
		synctest.Wait()
		if other.Load() > 0 {
			t.Error("an unread stream must not be buffered beyond its window")
		}
		<-sent // the first stream is closed now
		synctest.Wait()
		if got := other.Load(); got != int64(len(little)) {
			t.Errorf("%d bytes arrived after the first stream was closed, want %d", got, len(little))
		}
	})
}

// A client that counts windows gets a window update for the bytes that were read, and so can send
// without end.
func TestReadDataGivesAWindow(t *testing.T) {
	counting(t, 0, func(id uint32, s flowStream) { _, _ = io.Copy(io.Discard, s) }, func(t *testing.T, c *counter) {
		const most = 1 << 20
		for range most / 1024 {
			if err := c.WriteFrame(&spdy.DataFrame{StreamId: 1, Data: make([]byte, 1024)}); err != nil {
				t.Fatal(err)
			}
		}
		if _, given := c.of(1); given < most-windowUpdateThreshold || given > most {
			t.Errorf("%d bytes were read, but the stream's window updates add up to %d", most, given)
		}
		if _, given := c.of(0); given < most-windowUpdateThreshold || given > most {
			t.Errorf("%d bytes were read, but the connection's window updates add up to %d", most, given)
		}
	})
}
