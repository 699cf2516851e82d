package link

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

// give sends an input and waits until the device has it.
func (h *hub) give(id string, r wire.Request) {
	h.request(id, r)
	synctest.Wait()
}

func typed(seq uint64, text string) wire.Request {
	return wire.Request{Type: wire.RequestStdin, Seq: seq, Data: []byte(text)}
}

// taken returns the input acknowledgement of the newest chunk, and the number of chunks.
func (h *hub) taken() (ack uint64, chunks int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.replies); n > 0 {
		ack = h.replies[n-1].Ack
	}
	return ack, len(h.replies)
}

func TestInputArrivesInOrderAndIsAcknowledged(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		s := l.Stream("r1")
		h.give("other", typed(1, "for another stream"))
		var got []string
		next := func() {
			t.Helper()
			r, err := s.Input(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Type+" "+string(r.Data))
		}
		h.give("r1", typed(1, "a"))
		h.give("r1", typed(2, "b"))
		h.give("r1", wire.Request{Type: wire.RequestResize, Seq: 3, Width: 80, Height: 24})
		h.give("r1", typed(2, "b")) // a repeated input
		h.give("r1", wire.Request{Type: wire.RequestCloseStdin, Seq: 4})
		for range 4 {
			next()
		}
		if want := "stdin a,stdin b,resize ,close-stdin "; strings.Join(got, ",") != want {
			t.Errorf("got %s, want %s", got, want)
		}
		time.Sleep(time.Second)
		if ack, chunks := h.taken(); chunks != 0 {
			t.Errorf("input %d was acknowledged before the caller had processed it", ack)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Input(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if ack, chunks := h.taken(); ack != 4 || chunks != 1 {
			t.Errorf("input %d is acknowledged in %d chunks, want input 4 in one chunk", ack, chunks)
		}
		if a.requests != nil {
			t.Errorf("the agent received inputs as requests: %q", a.requests)
		}
	})
}

func TestOutputCarriesTheAcknowledgementOfInput(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		s := l.Stream("r1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			for {
				r, err := s.Input(ctx)
				if err != nil {
					return
				}
				_ = s.Send(ctx, wire.Reply{Data: r.Data})
			}
		}()
		for seq := uint64(1); seq <= 20; seq++ {
			h.give("r1", typed(seq, "x"))
			time.Sleep(time.Second)
			if ack, _ := h.taken(); ack != seq {
				t.Fatalf("after input %d, the acknowledged input is %d", seq, ack)
			}
		}
		h.give("r1", typed(20, "x")) // the hub repeats an input because it missed the acknowledgement
		time.Sleep(time.Second)
		_, before := h.taken()
		h.give("r1", typed(20, "x"))
		time.Sleep(time.Second)
		if ack, chunks := h.taken(); ack != 20 || chunks != before+1 {
			t.Errorf("a repeated input was answered with %d chunks that acknowledge input %d, want 1 chunk and input 20",
				chunks-before, ack)
		}
	})
}

func TestInputWithAGapIsAnError(t *testing.T) {
	for _, c := range []struct {
		name, want string
		seqs       []uint64
	}{
		{"a lost input", "input 3 came after 1: the inputs between were lost", []uint64{1, 3, 4}},
		{"too many inputs", "more than 8 inputs ahead", []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hub{}
			bubble(t, h, func(t *testing.T, l *Link, a *agent) {
				synctest.Wait()
				s := l.Stream("r1")
				for _, seq := range c.seqs {
					h.give("r1", typed(seq, "x"))
				}
				var err error
				for range c.seqs {
					_, err = s.Input(t.Context())
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
			})
		})
	}
}

func TestInputEndsWithItsConnection(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		s := l.Stream("r1")
		go func() {
			time.Sleep(time.Second)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.conn.Close()
		}()
		if _, err := s.Input(t.Context()); !errors.Is(err, ErrOffline) {
			t.Errorf("got %v, want ErrOffline", err)
		}
		<-s.Gone()
	})
}

// acknowledging acknowledges every chunk within 100 ms, as a hub with a fast reader does.
func (h *hub) acknowledging(ctx context.Context, id string) {
	for seen := uint64(0); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		n := with(h, func(h *hub) uint64 { return uint64(len(h.replies)) })
		if n > seen {
			seen = n
			h.request("a", wire.Request{Type: wire.RequestAck, Of: id, Seq: n - 1})
		}
	}
}

func TestALongReplyOverASlowLineDelaysNoLease(t *testing.T) {
	h := &hub{rate: 16 << 10, buffer: 4 << 20} // a modem with megabytes of buffer
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		go h.acknowledging(ctx, "r1")
		s := l.Stream("r1")
		data := bytes.Repeat([]byte("x"), MaxChunk)
		for s.Send(ctx, wire.Reply{Data: data}) == nil {
		}
		leases := h.times("lease", began)
		last := time.Duration(0)
		for _, at := range leases {
			if at-last > 15*time.Second {
				t.Errorf("no lease for %s, want one every 15s", at-last)
			}
			last = at
		}
		if last < 4*time.Minute+40*time.Second {
			t.Errorf("the last lease of 5 minutes came after %s, want at least 4m40s", last)
		}
		if got := len(with(h, func(h *hub) []wire.Reply { return h.replies })); got < 90 {
			t.Errorf("%d chunks in 5 minutes, want at least 90: the line was not used", got)
		}
		if n := with(h, func(h *hub) int { return h.connects }); n != 1 {
			t.Errorf("%d connections", n)
		}
		time.Sleep(time.Minute) // the buffer drains
	})
}

func TestABusyLineLosesNoChunk(t *testing.T) {
	h := &hub{rate: 8 << 10}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		go h.acknowledging(ctx, "r1")
		s := l.Stream("r1")
		n := byte(0)
		send := func() {
			if err := s.Send(ctx, wire.Reply{Data: []byte{n}}); err != nil {
				t.Error(err)
			}
			n++
		}
		for range 3 {
			for range 6 { // fast acknowledgements raise the limit of chunks in flight
				send()
				time.Sleep(200 * time.Millisecond)
			}
			a.mu.Lock()
			a.load = strings.Repeat("x", 60<<10) // a write longer than paho's timeout
			a.mu.Unlock()
			l.StatusChanged()
			time.Sleep(100 * time.Millisecond) // the status is in flight
			for range 4 {
				send()
			}
			time.Sleep(30 * time.Second)
		}
		time.Sleep(time.Minute)
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, r := range h.replies {
			if r.Seq != uint64(i) || !bytes.Equal(r.Data, []byte{byte(i)}) {
				t.Errorf("chunk %d is %+v, want number and data %d", i, r, i)
			}
		}
		if len(h.replies) != int(n) || h.connects != 1 {
			t.Errorf("%d chunks over %d connections, want %d over one", len(h.replies), h.connects, n)
		}
	})
}
