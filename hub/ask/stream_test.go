package ask_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/ask"
	"flotilla.dev/shared/wire"
)

var onPi = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"},
	Spec: corev1.PodSpec{NodeName: "pi-1"}}

// A gadget is a device that follows the protocol. It calls handle for every received request; reply
// sends a response.
type gadget struct {
	client *ask.Client
	handle func(g *gadget, id string, r wire.Request)
	lose   func(r wire.Request) bool // whether a request is lost on its way to the device
	away   bool

	mu       sync.Mutex
	received []wire.Request
	next     uint64 // number of the next chunk
}

func newGadget(handle func(g *gadget, id string, r wire.Request)) *gadget {
	g := &gadget{handle: handle}
	g.client = &ask.Client{Broker: g}
	return g
}

func (g *gadget) Request(_, id string, r wire.Request) error {
	if g.away {
		return errors.New("no session")
	}
	g.mu.Lock()
	lost := g.lose != nil && g.lose(r)
	if !lost {
		g.received = append(g.received, r)
	}
	g.mu.Unlock()
	if !lost && g.handle != nil {
		g.handle(g, id, r)
	}
	return nil
}

// reply sends the next chunk.
func (g *gadget) reply(id string, r wire.Reply) {
	g.mu.Lock()
	r.Seq = g.next
	g.next++
	g.mu.Unlock()
	g.client.Reply("pi-1", id, r)
}

// count returns the number of received requests of a kind.
func (g *gadget) count(kind string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.received {
		if r.Type == kind {
			n++
		}
	}
	return n
}

func (g *gadget) exec(ctx context.Context, s ask.IO) error {
	return g.client.Exec(ctx, onPi, corev1.PodExecOptions{Container: "c", Command: []string{"x"}, Stdin: s.Stdin != nil},
		s)
}

// echo answers like the command cat.
func echo(g *gadget, id string, r wire.Request) {
	switch r.Type {
	case wire.RequestExec, wire.RequestPortForward:
		g.reply(id, wire.Reply{})
	case wire.RequestStdin:
		g.reply(id, wire.Reply{Data: r.Data, Ack: r.Seq})
	case wire.RequestCloseStdin:
		g.reply(id, wire.Reply{EOF: true, Ack: r.Seq})
	}
}

// inOrder ignores input that is out of order, as a device does.
func inOrder(handle func(g *gadget, id string, r wire.Request)) func(g *gadget, id string, r wire.Request) {
	var mu sync.Mutex
	var last uint64
	return func(g *gadget, id string, r wire.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Input() {
			if r.Seq != last+1 {
				return
			}
			last = r.Seq
		}
		handle(g, id, r)
	}
}

func TestExec(t *testing.T) {
	long := bytes.Repeat([]byte("flotilla "), 100_000)
	for _, c := range []struct {
		name   string
		handle func(g *gadget, id string, r wire.Request)
		stdin  io.Reader
		out    string
		err    string // text on stderr
		want   string // error of Exec
	}{
		{"the input is echoed completely", inOrder(echo), bytes.NewReader(long), string(long), "", "<nil>"},
		{"a failing reader is not the end of input", func(g *gadget, id string, r wire.Request) {
			if r.Type == wire.RequestCloseStdin {
				g.reply(id, wire.Reply{Data: []byte("end")})
			}
			echo(g, id, r)
		}, io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(errors.New("the client has gone"))), "abc", "",
			"exec of node pi-1: read the input: the client has gone"},
		{"output, errors and exit code arrive separately", func(g *gadget, id string, r wire.Request) {
			if r.Type == wire.RequestExec {
				g.reply(id, wire.Reply{})
				g.reply(id, wire.Reply{Data: []byte("out")})
				g.reply(id, wire.Reply{Data: []byte("err"), Stderr: true})
				g.reply(id, wire.Reply{Data: []byte("!"), EOF: true, ExitCode: 42})
			}
		}, nil, "out!", "err", "command terminated with exit code 42"},
		{"the device's error", func(g *gadget, id string, r wire.Request) {
			g.reply(id, wire.Reply{EOF: true, Error: "container c is not valid for pod web"})
		}, nil, "", "", "container c is not valid for pod web"},
		{"a missing chunk ends the command", func(g *gadget, id string, r wire.Request) {
			if r.Type == wire.RequestExec {
				g.reply(id, wire.Reply{Data: []byte("a")})
				g.next++
				g.reply(id, wire.Reply{Data: []byte("c"), EOF: true})
			}
		}, nil, "a", "", "exec of node pi-1: received chunk 2 instead of 1: the device's response was interrupted"},
		{"a repeated chunk is written once", func(g *gadget, id string, r wire.Request) {
			if r.Type == wire.RequestExec {
				g.reply(id, wire.Reply{Data: []byte("a")})
				g.next--
				g.reply(id, wire.Reply{Data: []byte("a")})
				g.reply(id, wire.Reply{Data: []byte("b"), EOF: true})
			}
		}, nil, "ab", "", "<nil>"},
		{"an acknowledgement of unsent input ends the command", func(g *gadget, id string, r wire.Request) {
			if r.Type == wire.RequestExec {
				g.reply(id, wire.Reply{Ack: 1})
			}
		}, nil, "", "", "exec of node pi-1: the device acknowledges input 1, which was not sent: the device's response " +
			"was interrupted"},
		{"a device that does not respond", func(*gadget, string, wire.Request) {}, nil, "", "", "exec of node pi-1: no response for 15s: the device's response was interrupted"},
		{"a lost link", func(g *gadget, id string, r wire.Request) {
			if r.Type == wire.RequestExec {
				g.reply(id, wire.Reply{Data: []byte("a")})
				g.client.Disconnected("pi-1")
			}
		}, nil, "a", "", "exec of node pi-1: the link to the device was lost: the device's response was interrupted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out, errs bytes.Buffer
				err := newGadget(c.handle).exec(t.Context(), ask.IO{Stdin: c.stdin, Stdout: &out, Stderr: &errs})
				if fmt.Sprint(err) != c.want || out.String() != c.out || errs.String() != c.err {
					t.Errorf("%d bytes of output, errors %q, ended with %v; want %d bytes, %q, %s", out.Len(), errs.String(), err,
						len(c.out), c.err, c.want)
				}
			})
		})
	}
}

// endless is an endless input that counts the bytes read.
type endless struct{ taken atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) { e.taken.Add(int64(len(p))); return len(p), nil }

func TestInputWaitsForTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var g *gadget
		var id string
		g = newGadget(func(_ *gadget, i string, r wire.Request) {
			if r.Type == wire.RequestExec {
				id = i
				g.reply(id, wire.Reply{})
			}
		})
		in := &endless{}
		done := make(chan error, 1)
		go func() { done <- g.exec(ctx, ask.IO{Stdin: in}) }()
		time.Sleep(time.Second)
		if n := g.count(wire.RequestStdin); n != 2 || in.taken.Load() > 3*wire.MaxInput {
			t.Errorf("%d chunks unacknowledged and %d bytes read before the first acknowledgement; want 2 and at most %d",
				n, in.taken.Load(), 3*wire.MaxInput)
		}
		for ack := uint64(1); ack <= 40; ack++ {
			g.reply(id, wire.Reply{Ack: ack})
			synctest.Wait()
			if way := g.count(wire.RequestStdin) - int(ack); way > wire.InputWindow {
				t.Fatalf("%d chunks unacknowledged, want at most %d", way, wire.InputWindow)
			}
		}
		if way := g.count(wire.RequestStdin) - 40; way != wire.InputWindow {
			t.Errorf("a quick device has %d unacknowledged chunks, want %d", way, wire.InputWindow)
		}
		sent := g.count(wire.RequestStdin)
		time.Sleep(time.Minute) // the command does not read
		if more := g.count(wire.RequestStdin) - sent; more < 2 || more > 6 {
			t.Errorf("the newest input was sent again %d times in a minute, want 2 to 6", more)
		}
		for ack := uint64(41); ack <= 48; ack++ {
			g.reply(id, wire.Reply{Ack: ack})
			synctest.Wait()
		}
		if way := len(inputs(g)) - 48; way != 1 {
			t.Errorf("a device that takes a minute has %d unacknowledged chunks, want 1", way)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if g.count(wire.RequestCancel) != 1 {
			t.Error("the device did not receive a cancel")
		}
	})
}

// inputs returns the numbers of the received inputs, in order of arrival.
func inputs(g *gadget) (seqs []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.received {
		if r.Input() && !slices.Contains(seqs, r.Seq) {
			seqs = append(seqs, r.Seq)
		}
	}
	return seqs
}

func TestALostInputIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGadget(inOrder(echo))
		losses := 2
		g.lose = func(r wire.Request) bool {
			if r.Type == wire.RequestCloseStdin && losses > 0 {
				losses--
				return true
			}
			return false
		}
		var out bytes.Buffer
		began := time.Now()
		if err := g.exec(t.Context(), ask.IO{Stdin: strings.NewReader("abc"), Stdout: &out}); err != nil ||
			out.String() != "abc" {
			t.Errorf("the output is %q, want abc: %v", &out, err)
		}
		if took := time.Since(began); took != 15*time.Second { // probes after 5 s and after 10 s more
			t.Errorf("the lost input arrived after %s, want 15s", took)
		}
	})
}

// A slowWriter blocks until it is released.
type slowWriter struct {
	may chan struct{}
	got bytes.Buffer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.may
	return w.got.Write(p)
}

func TestASlowReaderSlowsTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g *gadget
		var id string
		g = newGadget(func(_ *gadget, i string, r wire.Request) {
			if r.Type == wire.RequestExec {
				id = i
				for range wire.ReplyWindow {
					g.reply(id, wire.Reply{Data: []byte("x")})
				}
			}
		})
		w := &slowWriter{may: make(chan struct{})}
		done := make(chan error, 1)
		go func() { done <- g.exec(t.Context(), ask.IO{Stdout: w}) }()
		time.Sleep(time.Hour)
		if g.count(wire.RequestAck) != 0 {
			t.Error("unread chunks were acknowledged")
		}
		for range 100 { // the device repeats its newest chunk until it is acknowledged
			g.client.Reply("pi-1", id, wire.Reply{Seq: g.next - 1, Data: []byte("x")})
		}
		close(w.may)
		synctest.Wait()
		if g.count(wire.RequestAck) == 0 {
			t.Error("read chunks were not acknowledged")
		}
		g.reply(id, wire.Reply{EOF: true})
		if err := <-done; err != nil || w.got.Len() != wire.ReplyWindow {
			t.Errorf("the reader got %d bytes, want %d: %v", w.got.Len(), wire.ReplyWindow, err)
		}
	})
}

func TestADeviceThatExceedsItsWindowLosesItsReader(t *testing.T) {
	for _, c := range []struct {
		name   string
		chunks int
		data   []byte
	}{
		{"too many chunks", 2*wire.ReplyWindow + 2, []byte("x")},
		{"too many bytes", 50, make([]byte, 180<<10)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGadget(func(g *gadget, id string, r wire.Request) {
					for n := 0; r.Type == wire.RequestExec && n < c.chunks; n++ {
						g.reply(id, wire.Reply{Data: c.data})
					}
				})
				w := &slowWriter{may: make(chan struct{})}
				done := make(chan error, 1)
				go func() { done <- g.exec(t.Context(), ask.IO{Stdout: w}) }()
				synctest.Wait()
				close(w.may)
				if err := <-done; !errors.Is(err, ask.ErrLost) || !strings.Contains(err.Error(), "exceeds its window") {
					t.Error(err)
				}
			})
		})
	}
}

func TestAnAbandonedResponseIsCancelled(t *testing.T) {
	g := newGadget(nil)
	for seq := range uint64(40) {
		g.client.Reply("pi-1", "old", wire.Reply{Seq: seq})
	}
	g.client.Reply("pi-1", "old", wire.Reply{Seq: 48, EOF: true})
	if n := g.count(wire.RequestCancel); n != 3 || g.received[0].Of != "old" {
		t.Errorf("%d cancels for 41 chunks of an unknown request, want 3: %+v", n, g.received)
	}
}

func TestResizeSendsEverySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGadget(func(g *gadget, id string, r wire.Request) {
			switch {
			case r.Type == wire.RequestExec:
				g.reply(id, wire.Reply{})
			case r.Type == wire.RequestResize:
				g.reply(id, wire.Reply{Ack: r.Seq, EOF: r.Width == 132})
			}
		})
		sizes := make(chan ask.Size, 3)
		sizes <- ask.Size{Width: 80, Height: 24}
		sizes <- ask.Size{} // an empty size must not be sent
		sizes <- ask.Size{Width: 132, Height: 43}
		if err := g.exec(t.Context(), ask.IO{Resize: sizes}); err != nil {
			t.Error(err)
		}
		if n := g.count(wire.RequestResize); n != 2 {
			t.Errorf("%d window sizes were sent, want 2", n)
		}
	})
}

func TestForward(t *testing.T) {
	t.Run("bytes pass in both directions, and one direction can be closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGadget(inOrder(echo))
			c, err := g.client.Forward(t.Context(), onPi, 8080)
			if err != nil {
				t.Fatal(err)
			}
			sent := bytes.Repeat([]byte("0123456789"), 20_000)
			go func() {
				_, _ = c.Write(sent)
				_ = c.(interface{ CloseWrite() error }).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes of %d came back, or differ: %v", len(got), len(sent), err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("a closed port", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGadget(func(g *gadget, id string, _ wire.Request) {
				g.reply(id, wire.Reply{EOF: true, Error: "connection refused: nothing listens on port 8080"})
			})
			_, err := g.client.Forward(t.Context(), onPi, 8080)
			if want := "forward port 8080 of pod default/web: connection refused: nothing listens on port 8080"; err == nil ||
				err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	})
	t.Run("an invalid port", func(t *testing.T) {
		g := newGadget(nil)
		if _, err := g.client.Forward(t.Context(), onPi, 70000); err == nil ||
			!strings.Contains(err.Error(), "port 70000 is not one of 1 to 65535") {
			t.Error(err)
		}
	})
	t.Run("a reset connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGadget(func(g *gadget, id string, r wire.Request) {
				if r.Type == wire.RequestPortForward {
					g.reply(id, wire.Reply{Data: []byte("a")})
					g.reply(id, wire.Reply{EOF: true, Error: "connection reset by peer"})
				}
			})
			c, err := g.client.Forward(t.Context(), onPi, 80)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(c)
			if string(got) != "a" || err == nil || err.Error() != "connection reset by peer" {
				t.Errorf("the connection returned %q, %v; want a and the reset", got, err)
			}
			_ = c.Close()
		})
	})
	for name, end := range map[string]func(c io.Closer, cancel func()){
		"the device receives a close":                           func(c io.Closer, _ func()) { _ = c.Close() },
		"the end of the caller's context closes the connection": func(_ io.Closer, cancel func()) { cancel() },
		"a connection can be closed twice":                      func(c io.Closer, cancel func()) { _ = c.Close(); cancel(); _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				g := newGadget(inOrder(echo))
				c, err := g.client.Forward(ctx, onPi, 80)
				if err != nil {
					t.Fatal(err)
				}
				read := make(chan error, 1)
				go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
				synctest.Wait()
				end(c, cancel)
				if err := <-read; err == nil || errors.Is(err, io.EOF) {
					t.Errorf("Read returned %v", err)
				}
				if _, err := c.Write([]byte("x")); err == nil {
					t.Error("Write to a closed connection succeeds")
				}
				synctest.Wait()
				if n := g.count(wire.RequestCancel); n != 1 {
					t.Errorf("the device received %d cancels, want 1", n)
				}
			})
		})
	}
}

func TestUsage(t *testing.T) {
	measuring := func(g *gadget, id string, r wire.Request) {
		if r.Type == wire.RequestUsage {
			time.AfterFunc(2*time.Second, func() {
				g.mu.Lock()
				g.next = 0
				g.mu.Unlock()
				g.reply(id, wire.Reply{Data: []byte(`{"window":"2s","node":{"cpu":`)})
				g.reply(id, wire.Reply{Data: []byte(`"250m"}}`), EOF: true})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		g := newGadget(measuring)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				u, err := g.client.Usage(t.Context(), "pi-1")
				if err != nil || u.Node.Cpu().MilliValue() != 250 || !u.Time.Equal(time.Now()) {
					t.Errorf("the usage is %+v, want 250m of cpu, measured now: %v", u, err)
				}
			})
		}
		wg.Wait()
		time.Sleep(12 * time.Second)
		_, _ = g.client.Usage(t.Context(), "pi-1")
		if n := g.count(wire.RequestUsage); n != 1 {
			t.Errorf("the device received %d requests within 15 s, want 1", n)
		}
		time.Sleep(2 * time.Second)
		_, _ = g.client.Usage(t.Context(), "pi-1")
		if n := g.count(wire.RequestUsage); n != 2 {
			t.Errorf("the device received %d requests in 16 s, want 2", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := newGadget(measuring)
		g.away = true
		if _, err := g.client.Usage(t.Context(), "pi-1"); !errors.Is(err, ask.ErrOffline) {
			t.Error(err)
		}
		g.away = false
		if _, err := g.client.Usage(t.Context(), "pi-1"); err != nil {
			t.Errorf("a failure is cached: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := newGadget(measuring)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.client.Usage(ctx, "pi-1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := g.client.Usage(t.Context(), "pi-1"); err != nil || g.count(wire.RequestUsage) != 1 {
			t.Errorf("a cancelled call makes the next call fail: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := newGadget(func(g *gadget, id string, r wire.Request) {
			for n := 0; r.Type == wire.RequestUsage && n < 8; n++ {
				g.reply(id, wire.Reply{Data: make([]byte, 180<<10)})
			}
		})
		if _, err := g.client.Usage(t.Context(), "pi-1"); err == nil ||
			!strings.Contains(err.Error(), "more than 1048576 bytes") {
			t.Error(err)
		}
	})
}
