package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

const (
	maxAnswers  = 16 // commands under way at one time, and as many logs
	maxForwards = 32 // connections into pods at one time
	maxAwaiting = 96 // more of each, which wait until one of those ends
	// for a request that gives no deadline; an exec, attach or port-forward may be silent so long
	longestReply = 4 * time.Hour
	endTime      = 10 * time.Second
	roomTime     = 10 * time.Second // for room: the hub waits 15 s for a first word
)

// An Answer is the reply to one request: package link's Stream. All its methods fail
// when the hub has gone.
type Answer interface {
	// Send waits while the hub does not keep up. A chunk with EOF is the last one.
	Send(ctx context.Context, r wire.Reply) error
	// Input waits for the next stdin, resize or close-stdin. Asking for it says that
	// the one before has been dealt with.
	Input(ctx context.Context) (wire.Request, error)
	// Gone is closed when the hub has gone.
	Gone() <-chan struct{}
}

// answers are the answers under way, by request id.
type answers struct {
	sync.Mutex
	byID                        map[string]context.CancelFunc
	commands, logs, connections room // whoever follows logs keeps nobody from a shell
	ended                       bool
	work                        sync.WaitGroup // what they do
}

func newAnswers() answers {
	return answers{
		commands:    newRoom(maxAnswers, "the device runs %d commands already: end one first"),
		logs:        newRoom(maxAnswers, "the device sends %d logs already: end one first"),
		connections: newRoom(maxForwards, "the device holds %d forwarded connections already: close one first"),
	}
}

// room is where a request is answered.
func (s *answers) room(kind string) *room {
	switch kind {
	case wire.RequestExec, wire.RequestAttach:
		return &s.commands
	case wire.RequestPortForward:
		return &s.connections
	}
	return &s.logs // and what is asked in passing
}

// A room is for so many answers at one time.
type room struct {
	seats chan struct{}
	there int // under way or waiting; the answers' mutex guards it
	full  error
}

func newRoom(n int, full string) room {
	return room{seats: make(chan struct{}, n), full: fmt.Errorf(full, n)}
}

// take takes a seat. Where there is none it waits in its turn, as in a listener's queue: a crowd
// that asks for the logs of all pods at once is answered, and kubectl gives up all that it forwards
// when one connection is refused, though those that come and go quickly end a moment later here
// than there.
func (r *room) take(ctx context.Context) (leave func(), err error) {
	ctx, done := context.WithTimeout(ctx, roomTime)
	defer done()
	select {
	case r.seats <- struct{}{}:
		return func() { <-r.seats }, nil
	case <-ctx.Done():
		return nil, r.full // unless nobody waits for it any more
	}
}

// wait takes no more requests, and waits until nothing of the answers is left: no
// command runs on in a container when nobody is there to hear it.
func (s *answers) wait() {
	s.Lock()
	s.ended = true
	s.Unlock()
	s.work.Wait()
}

// Request answers a request of the hub in the background. Those about the link and
// the certificate do not come here.
func (a *Agent) Request(id string, r wire.Request) {
	a.told.Lock()
	hub := a.told.hub
	a.told.Unlock()
	if hub == nil {
		return
	}
	if r.Type == wire.RequestCancel {
		a.answers.Lock()
		cancel := a.answers.byID[cmp.Or(r.Of, id)]
		a.answers.Unlock()
		if cancel != nil {
			cancel()
		}
		return
	}
	ctx, stop := context.WithCancelCause(context.Background())
	cancel := func() { stop(nil) }
	full, ok := a.answers.begin(id, r, cancel)
	if !ok {
		cancel()
		return
	}
	answer := hub.Stream(id)
	go func() {
		defer a.answers.work.Done()
		defer cancel()
		go func() {
			select {
			case <-a.ended:
				stop(errStopping)
			case <-answer.Gone():
				cancel()
			case <-ctx.Done():
			}
		}()
		last := wire.Reply{EOF: true}
		err := full
		if err == nil {
			last.ExitCode, err = a.answer(ctx, r, answer)
			a.answers.finish(id, r)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, context.Canceled) { // that is what the hub wanted
			last.Error = err.Error()
		}
		ending, done := context.WithTimeout(context.Background(), endTime)
		defer done()
		if err := answer.Send(ending, last); err != nil {
			a.log.Debug("the end of an answer did not reach the hub", "request", id, "err", err)
		}
	}()
}

// answer does what a request asks for.
func (a *Agent) answer(ctx context.Context, r wire.Request, answer Answer) (exitCode int32, err error) {
	if r.Type != wire.RequestPortForward {
		leave, err := a.answers.room(r.Type).take(ctx)
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	most := longestReply
	if r.DeadlineSeconds > 0 {
		most = min(time.Duration(r.DeadlineSeconds)*time.Second, most)
	}
	switch r.Type {
	case wire.RequestLogs, wire.RequestNodeLogs:
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		if r.Type == wire.RequestNodeLogs {
			return 0, a.sendNodeLogs(ctx, r, answer)
		}
		return 0, a.sendLogs(ctx, r, answer)
	case wire.RequestUsage:
		return 0, a.sendUsage(ctx, answer)
	case wire.RequestExec, wire.RequestAttach:
		return a.runCommand(ctx, r, answer)
	case wire.RequestPortForward:
		return 0, a.forward(ctx, r, answer)
	}
	return 0, errors.New(wire.Unsupported(r.Type))
}

// begin notes an answer that begins; full says why it ends at once. Not ok: the hub has
// sent it twice, or the agent is stopping.
func (s *answers) begin(id string, r wire.Request, cancel context.CancelFunc) (full error, ok bool) {
	s.Lock()
	defer s.Unlock()
	if s.ended || s.byID[id] != nil {
		return nil, false
	}
	s.work.Add(1)
	at := s.room(r.Type)
	if at.there >= cap(at.seats)+maxAwaiting {
		return at.full, true
	}
	at.there++
	if s.byID == nil {
		s.byID = map[string]context.CancelFunc{}
	}
	s.byID[id] = cancel
	return nil, true
}

func (s *answers) finish(id string, r wire.Request) {
	s.Lock()
	defer s.Unlock()
	delete(s.byID, id)
	s.room(r.Type).there--
}
