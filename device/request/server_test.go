package request

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/request/requesttest"
	"flotilla.dev/shared/wire"
)

// A fixture is a server for one container.
type fixture struct {
	fake     *enginetest.Fake
	engine   engine.Engine // the fake, or a wrapper around it
	server   *Server
	stopping chan struct{}
}

// bubble runs a test with a server for a container that runs a command of the test image.
func bubble(t *testing.T, command string, f func(t *testing.T, d *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		d := &fixture{fake: enginetest.New(), stopping: make(chan struct{})}
		d.engine = d.fake
		d.fake.AddTool()
		id, err := d.fake.Create(t.Context(),
			engine.Spec{Name: "web", Image: enginetest.ToolImage, Args: strings.Fields(command)})
		if err == nil {
			err = d.fake.Start(t.Context(), id)
		}
		if err != nil {
			t.Fatal(err)
		}
		find := func(context.Context, types.UID, string) (engine.Engine, string, error) { return d.engine, id, nil }
		d.server = NewServer(Device{
			Running: find,
			Log: func(ctx context.Context, _ types.UID, _ string, _ bool) (engine.Engine, string, error) {
				return find(ctx, "", "")
			},
			ExecBegan: func(string) {}, ExecEnded: func(string) {},
			Stopping: d.stopping, Logger: slog.New(slog.DiscardHandler),
		})
		time.Sleep(5 * time.Second)
		f(t, d)
		select {
		case <-d.stopping:
		default:
			close(d.stopping)
		}
		d.server.Wait()
	})
}

// serve sends the server a request and returns its stream.
func (d *fixture) serve(id string, r wire.Request) *requesttest.Stream {
	s := requesttest.New()
	d.server.Serve(id, r, func(string) Stream { return s })
	return s
}

func interactive(words string) wire.Request {
	return wire.Request{Type: wire.RequestExec, Command: strings.Fields(words), Stdin: true}
}

// A countingEngine counts the running commands.
type countingEngine struct {
	*enginetest.Fake
	mu      sync.Mutex
	running int
}

func (w *countingEngine) Exec(ctx context.Context, id string, command []string, s engine.Streams) (int, error) {
	w.add(1)
	defer w.add(-1)
	return w.Fake.Exec(ctx, id, command, s)
}

func (w *countingEngine) add(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running += n
	return w.running
}

func TestACommandEndsAndTheHubLearnsWhy(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(d *fixture, s *requesttest.Stream)
		want string // error in the last reply; "-": the hub receives no reply
	}{
		{"the hub cancels the request", func(d *fixture, _ *requesttest.Stream) {
			d.serve("r2", wire.Request{Type: wire.RequestCancel, Of: "r1"})
		}, ""},
		{"the hub disconnects", func(_ *fixture, s *requesttest.Stream) { close(s.Lost) }, "-"},
		{"an input is lost", func(_ *fixture, s *requesttest.Stream) { close(s.Inputs) }, "input 5 came after 3"},
		{"neither input nor output for hours", func(*fixture, *requesttest.Stream) { time.Sleep(maxDuration) }, "ended, because there was no input or output for 4h0m0s"},
		{"the agent stops", func(d *fixture, _ *requesttest.Stream) { close(d.stopping); d.server.Wait() }, "the agent of the device is stopping"},
		{"the container ends", func(d *fixture, _ *requesttest.Stream) { d.fake.Exit("web", 0) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, "wait", func(t *testing.T, d *fixture) {
				w := &countingEngine{Fake: d.fake}
				d.engine = w
				s := d.serve("r1", interactive("/tool wait"))
				time.Sleep(time.Second)
				if w.add(0) != 1 {
					t.Fatal("the command does not run")
				}
				c.end(d, s)
				if c.want != "-" {
					if end := <-s.End; end.Error != c.want {
						t.Errorf("the hub receives %q, want %q", end.Error, c.want)
					}
				}
				time.Sleep(time.Second)
				if w.add(0) != 0 {
					t.Error("the command still runs")
				}
			})
		})
	}
}

// A readingEngine runs commands that read their input to its end.
type readingEngine struct {
	*enginetest.Fake
	ended chan error // the error of reading the input
}

func (r readingEngine) Exec(ctx context.Context, _ string, _ []string, s engine.Streams) (int, error) {
	_, err := io.ReadAll(s.Stdin)
	if ctx.Err() == nil {
		err = errors.Join(errors.New("the command was not ended"), err)
	}
	r.ended <- err
	return 0, ctx.Err()
}

func TestACommandDoesNotReadABrokenInputAsComplete(t *testing.T) {
	bubble(t, "wait", func(t *testing.T, d *fixture) {
		r := readingEngine{d.fake, make(chan error, 1)}
		d.engine = r
		s := d.serve("r1", interactive("/tool sum"))
		s.Inputs <- wire.Request{Type: wire.RequestStdin, Data: []byte("incomplete")}
		close(s.Inputs)
		if err := <-r.ended; err == nil || strings.Contains(err.Error(), "not ended") {
			t.Errorf("the command's input ends with %v, want an error that ends the command", err)
		}
		if end := <-s.End; end.Error != "input 5 came after 3" {
			t.Errorf("the request ends with %+v, want the error about the lost input", end)
		}
	})
}

func TestRequestsAboveTheLimitWaitForASlot(t *testing.T) {
	for name, c := range map[string]struct {
		request wire.Request
		most    int
		full    string
	}{
		"commands":    {interactive("/tool wait"), maxRunning, "the device runs 16 commands already: end one first"},
		"logs":        {wire.Request{Type: wire.RequestLogs, Follow: true}, maxRunning, "the device sends 16 logs already: end one first"},
		"connections": {wire.Request{Type: wire.RequestPortForward, Port: 8080}, maxForwards, "the device holds 32 forwarded connections already: close one first"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "serve :8080", func(t *testing.T, d *fixture) {
				serve := func(id string, r wire.Request) *requesttest.Stream {
					s := d.serve(id, r)
					synctest.Wait()
					return s
				}
				end := func(id string) { serve("end "+id, wire.Request{Type: wire.RequestCancel, Of: id}) }
				for n := range c.most {
					if s := serve(fmt.Sprint("first-", n), c.request); !s.Began() {
						t.Fatalf("request %d did not begin", n)
					}
				}
				var waiting []*requesttest.Stream
				for n := range maxWaiting {
					waiting = append(waiting, serve(fmt.Sprint("waiting-", n), c.request))
				}
				begun := func() (n int) {
					for _, s := range waiting {
						if s.Began() {
							n++
						}
					}
					return n
				}
				if end := <-serve("one more", c.request).End; end.Error != c.full {
					t.Errorf("a request above the waiting limit ends with %q, want %q", end.Error, c.full)
				}
				if n := begun(); n != 0 {
					t.Errorf("%d waiting requests began without a free slot", n)
				}
				otherKind := interactive("/tool wait")
				if c.request.Type == otherKind.Type {
					otherKind = wire.Request{Type: wire.RequestPortForward, Port: 8080}
				}
				if !serve("other kind", otherKind).Began() {
					t.Error("a request of another kind did not begin")
				}
				end("waiting-0") // its client cancels it
				waiting = waiting[1:]
				end("first-3")
				if n := begun(); n != 1 {
					t.Errorf("%d waiting requests began with one free slot, want 1", n)
				}
				time.Sleep(slotTimeout)
				for _, s := range waiting[1:] {
					if end := <-s.End; end.Error != c.full {
						t.Fatalf("after the timeout a waiting request ends with %q, want %q", end.Error, c.full)
					}
				}
				end("waiting-1") // the first request in the queue, which got the slot
				if !serve("last", c.request).Began() {
					t.Error("a request did not begin although a slot is free")
				}
			})
		})
	}
}

func TestACommandWaitsForAHubThatReadsSlowly(t *testing.T) {
	bubble(t, "wait", func(t *testing.T, d *fixture) {
		w := &countingEngine{Fake: d.fake}
		d.engine = w
		s := requesttest.New()
		s.Delay = time.Second
		d.server.Serve("r1", wire.Request{Type: wire.RequestExec, Command: strings.Fields("/tool noise 1000000")},
			func(string) Stream { return s })
		time.Sleep(10 * time.Second)
		if n := len(s.Stdout()); n > 10*chunkSize {
			t.Errorf("%d bytes were sent in the time of ten chunks, which have %d", n, 10*chunkSize)
		}
		if w.add(0) != 1 {
			t.Error("the command has ended before its output was read")
		}
		<-s.End
		if n := len(s.Stdout()); n != 1000000 {
			t.Errorf("%d bytes of 1000000 arrived", n)
		}
	})
}

func TestAFollowedLogEndsWithItsHub(t *testing.T) {
	bubble(t, "print one then wait", func(t *testing.T, d *fixture) {
		s := d.serve("r1", wire.Request{Type: wire.RequestLogs, Follow: true})
		time.Sleep(time.Second)
		close(s.Lost)
		synctest.Wait()
		d.server.mu.Lock()
		defer d.server.mu.Unlock()
		if s.Stdout() != "one\n" || len(d.server.byID) != 0 {
			t.Errorf("the log sent %q, and %d requests still run; want one and 0", s.Stdout(), len(d.server.byID))
		}
	})
}
