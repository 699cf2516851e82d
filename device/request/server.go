// Package request serves the hub's requests to a device: logs, exec, attach, port-forward and
// usage, and the agent's own log (Journal).
//
// It limits how many requests run at once, ends them with their hub, and never changes what the
// device should run. Package agent makes the Server and finds the containers for it; package link
// carries the streams.
package request

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

const (
	maxRunning  = 16            // concurrent commands, and as many concurrent logs
	maxForwards = 32            // concurrent connections into pods
	maxWaiting  = 96            // further requests of each kind, which wait until a running one ends
	maxDuration = 4 * time.Hour // time limit without a deadline; also the longest silence of a stream
	endTimeout  = 10 * time.Second
	slotTimeout = 10 * time.Second // the hub waits 15 s for the first chunk, so the wait for a slot is shorter
)

// AnyContainer stands for any running container of a pod, because they all share one network.
const AnyContainer = "*"

// ErrStopping ends the requests of an agent that stops.
var ErrStopping = errors.New("the agent of the device is stopping")

// A Stream carries the replies to one request: package link's Stream. All its methods fail when the
// hub is disconnected.
type Stream interface {
	// Send waits while the hub reads too slowly. A chunk with EOF is the last one.
	Send(ctx context.Context, r wire.Reply) error
	// Input waits for the next stdin, resize or close-stdin. Each call acknowledges the previous
	// input.
	Input(ctx context.Context) (wire.Request, error)
	// Gone returns a channel that is closed when the hub is disconnected.
	Gone() <-chan struct{}
}

// A Device is the part of the agent that the Server calls. The functions may be called at any time.
type Device struct {
	// Running finds a running container; an empty name means the pod's default container.
	Running func(ctx context.Context, pod types.UID, container string) (e engine.Engine, id string, err error)
	// Log finds the container whose log is requested; previous means the instance before the
	// newest.
	Log func(ctx context.Context, pod types.UID, container string, previous bool) (e engine.Engine, id string, err error)
	// Usage measures the device and its containers and returns a wire.Usage in JSON.
	Usage func(context.Context) ([]byte, error)
	// ExecBegan and ExecEnded maintain the list of commands that would outlive a killed agent.
	ExecBegan, ExecEnded func(exec string)

	Journal  *Journal        // nil: the agent stores no log
	Stopping <-chan struct{} // closed when the agent stops
	Logger   *slog.Logger
}

// A Server serves requests, each in its own goroutine.
type Server struct {
	device Device

	mu                          sync.Mutex
	byID                        map[string]context.CancelFunc
	stopped                     bool
	commands, logs, connections slots          // separate slots, so that logs never keep an operator from a shell
	work                        sync.WaitGroup // requests, and the commands that they run
}

// NewServer returns a server.
func NewServer(d Device) *Server {
	return &Server{
		device: d, byID: map[string]context.CancelFunc{},
		commands:    newSlots(maxRunning, "the device runs %d commands already: end one first"),
		logs:        newSlots(maxRunning, "the device sends %d logs already: end one first"),
		connections: newSlots(maxForwards, "the device holds %d forwarded connections already: close one first"),
	}
}

// slotsOf returns the slots for requests of a kind.
func (s *Server) slotsOf(kind string) *slots {
	switch kind {
	case wire.RequestExec, wire.RequestAttach:
		return &s.commands
	case wire.RequestPortForward:
		return &s.connections
	}
	return &s.logs // logs and usage
}

// slots limit how many requests of a kind run at once.
type slots struct {
	taken chan struct{}
	count int // running and waiting requests; the server's mutex guards it
	full  error
}

func newSlots(n int, full string) slots {
	return slots{taken: make(chan struct{}, n), full: fmt.Errorf(full, n)}
}

// take waits for a slot, first come, first served. Waiting helps with bursts, such as the logs of
// all pods. It also avoids refusals: kubectl ends all its forwards when one connection is refused.
func (r *slots) take(ctx context.Context) (leave func(), err error) {
	ctx, done := context.WithTimeout(ctx, slotTimeout)
	defer done()
	select {
	case r.taken <- struct{}{}:
		return func() { <-r.taken }, nil
	case <-ctx.Done():
		return nil, r.full // after a cancellation the error is not sent
	}
}

// Wait refuses further requests and waits until all requests and their commands have ended.
// Device.Stopping must be closed first.
func (s *Server) Wait() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.work.Wait()
}

// Serve serves a request in the background; open returns its stream.
func (s *Server) Serve(id string, r wire.Request, open func(id string) Stream) {
	if r.Type == wire.RequestCancel {
		s.mu.Lock()
		cancel := s.byID[cmp.Or(r.Of, id)]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return
	}
	ctx, stop := context.WithCancelCause(context.Background())
	cancel := func() { stop(nil) }
	full, ok := s.begin(id, r, cancel)
	if !ok {
		cancel()
		return
	}
	stream := open(id)
	go func() {
		defer s.work.Done()
		defer cancel()
		go func() {
			select {
			case <-s.device.Stopping:
				stop(ErrStopping)
			case <-stream.Gone():
				cancel()
			case <-ctx.Done():
			}
		}()
		last := wire.Reply{EOF: true}
		err := full
		if err == nil {
			last.ExitCode, err = s.serve(ctx, r, stream)
			s.finish(id, r)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, context.Canceled) { // the hub cancelled it
			last.Error = err.Error()
		}
		ending, done := context.WithTimeout(context.Background(), endTimeout)
		defer done()
		if err := stream.Send(ending, last); err != nil {
			s.device.Logger.Debug("the end of a request did not reach the hub", "request", id, "err", err)
		}
	}()
}

func (s *Server) serve(ctx context.Context, r wire.Request, stream Stream) (exitCode int32, err error) {
	if r.Type != wire.RequestPortForward {
		leave, err := s.slotsOf(r.Type).take(ctx)
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	most := maxDuration
	if r.DeadlineSeconds > 0 {
		most = min(time.Duration(r.DeadlineSeconds)*time.Second, most)
	}
	switch r.Type {
	case wire.RequestLogs, wire.RequestNodeLogs:
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		if r.Type == wire.RequestNodeLogs {
			return 0, s.sendNodeLogs(ctx, r, stream)
		}
		return 0, s.sendLogs(ctx, r, stream)
	case wire.RequestUsage:
		usage, err := s.device.Usage(ctx)
		if err != nil {
			return 0, err
		}
		return 0, stream.Send(ctx, wire.Reply{Data: usage})
	case wire.RequestExec, wire.RequestAttach:
		return s.runCommand(ctx, r, stream)
	case wire.RequestPortForward:
		return 0, s.forward(ctx, r, stream)
	}
	return 0, errors.New(wire.Unsupported(r.Type))
}

// begin registers a request; full is the error with which the request ends at once. If ok is false,
// the hub has sent the request twice or the agent is stopping.
func (s *Server) begin(id string, r wire.Request, cancel context.CancelFunc) (full error, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.byID[id] != nil {
		return nil, false
	}
	s.work.Add(1)
	at := s.slotsOf(r.Type)
	if at.count >= cap(at.taken)+maxWaiting {
		return at.full, true
	}
	at.count++
	s.byID[id] = cancel
	return nil, true
}

func (s *Server) finish(id string, r wire.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
	s.slotsOf(r.Type).count--
}
