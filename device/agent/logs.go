package agent

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

const (
	maxAnswers   = 16                    // under way at one time
	chunkSize    = 32 << 10              // bytes sent at once
	gather       = 20 * time.Millisecond // waits for more before a small chunk is sent
	longestReply = 4 * time.Hour         // for a request that gives no deadline
)

// An Answer is the reply to one request. Send waits while the hub does not keep up,
// and fails when the hub has gone.
type Answer interface {
	Send(ctx context.Context, data []byte) error
	End(ctx context.Context, text string) error // text: what went wrong
}

// answers are the ends of the answers under way, by request id.
type answers struct {
	sync.Mutex
	byID map[string]context.CancelFunc
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
	deadline := longestReply
	if r.DeadlineSeconds > 0 {
		deadline = min(time.Duration(r.DeadlineSeconds)*time.Second, longestReply)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	full, taken := a.begin(id, cancel)
	if taken { // the hub has sent it twice
		cancel()
		return
	}
	answer := hub.Stream(id)
	go func() {
		defer cancel()
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-a.ended:
				cancel()
			case <-stop:
			}
		}()
		var err error
		switch {
		case full:
			err = fmt.Errorf("the device answers %d requests already: end one first", maxAnswers)
		case r.Type == wire.RequestLogs:
			err = a.sendLogs(ctx, r, answer)
		default:
			err = fmt.Errorf("unsupported request %q", r.Type)
		}
		if !full {
			a.answers.Lock()
			delete(a.answers.byID, id)
			a.answers.Unlock()
		}
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		last, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := answer.End(last, text); err != nil {
			a.log.Debug("the end of an answer did not reach the hub", "request", id, "err", err)
		}
	}()
}

// begin notes an answer that begins.
func (a *Agent) begin(id string, cancel context.CancelFunc) (full, taken bool) {
	a.answers.Lock()
	defer a.answers.Unlock()
	if a.answers.byID == nil {
		a.answers.byID = map[string]context.CancelFunc{}
	}
	full, taken = len(a.answers.byID) >= maxAnswers, a.answers.byID[id] != nil
	if !full && !taken {
		a.answers.byID[id] = cancel
	}
	return full, taken
}

// sendLogs streams one container's log.
func (a *Agent) sendLogs(ctx context.Context, r wire.Request, answer Answer) error {
	e, id, err := a.logOf(ctx, types.UID(r.Pod), r.Container, r.Previous)
	if err != nil {
		return err
	}
	o := engine.LogOptions{Follow: r.Follow && !r.Previous, Timestamps: r.Timestamps, Tail: -1}
	if r.TailLines != nil {
		o.Tail = max(*r.TailLines, 0)
	}
	if r.SinceSeconds != nil {
		o.Since = time.Now().Add(-time.Duration(*r.SinceSeconds) * time.Second)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &pipe{ready: make(chan struct{}, 1), room: make(chan struct{}, 1), ctx: ctx, left: -1}
	if r.LimitBytes != nil {
		p.left = max(*r.LimitBytes, 0)
		p.ended = p.left == 0
	}
	go func() { p.close(e.Logs(ctx, id, o, p, p)) }()
	for {
		data, done, err := p.next(ctx)
		if len(data) > 0 {
			if err := answer.Send(ctx, data); err != nil {
				return err
			}
		}
		if done {
			return err
		}
	}
}

// logOf finds the container whose log is meant.
func (a *Agent) logOf(ctx context.Context, uid types.UID, name string, previous bool) (engine.Engine, string, error) {
	type answer struct {
		e   engine.Engine
		id  string
		err error
	}
	out := make(chan answer, 1)
	a.post(func() {
		e, id, err := a.loop.logOf(uid, name, previous)
		out <- answer{e, id, err}
	})
	select {
	case x := <-out:
		return x.e, x.id, x.err
	case <-ctx.Done():
		return nil, "", context.Cause(ctx)
	case <-a.ended:
		return nil, "", fmt.Errorf("the agent is stopping")
	}
}

func (l *loop) logOf(uid types.UID, name string, previous bool) (engine.Engine, string, error) {
	if l.engine == nil {
		return nil, "", fmt.Errorf("read the log: %w", l.engineErr)
	}
	podName := string(uid)
	for i := range l.desired.Pods {
		if p := &l.desired.Pods[i]; p.UID == uid {
			podName = p.Name
			if name == "" && len(p.Spec.Containers) > 0 {
				name = p.Spec.Containers[0].Name
			}
			if specOf(p, name) == nil {
				return nil, "", fmt.Errorf("container %s is not valid for pod %s", name, podName)
			}
		}
	}
	n := 0
	for _, in := range l.o.Containers {
		if in.Place != (Place{uid, name}) || in.State == engine.Created {
			continue
		}
		if n == 0 && !previous || n == 1 && previous {
			return l.engine, in.ID, nil
		}
		// a container that has ended and waits for its restart is the previous one already
		if n == 0 && previous && in.State != engine.Running && in.State != engine.Paused {
			return l.engine, in.ID, nil
		}
		n++
	}
	if previous {
		return nil, "", fmt.Errorf("previous terminated container %q in pod %q not found", name, podName)
	}
	return nil, "", fmt.Errorf("container %q in pod %q is waiting to start: it has no log yet", name, podName)
}

// A pipe carries a log from the engine to the sender and holds little of it: the
// engine waits when the hub does.
type pipe struct {
	ctx   context.Context
	mu    sync.Mutex
	buf   []byte
	left  int64 // bytes that may still come; < 0: any
	ended bool
	err   error
	ready chan struct{}
	room  chan struct{}
}

// Write takes log data; it is called from the engine's goroutines.
func (p *pipe) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		p.mu.Lock()
		take := min(len(b), 2*chunkSize-len(p.buf))
		if p.left >= 0 {
			take = int(min(int64(take), p.left))
			p.left -= int64(take)
			if p.left == 0 {
				b = b[:take]
				p.ended = true
			}
		}
		p.buf = append(p.buf, b[:take]...)
		b = b[take:]
		ended := p.ended
		p.mu.Unlock()
		signal(p.ready)
		if ended {
			return n, nil
		}
		if len(b) > 0 {
			select {
			case <-p.room:
			case <-p.ctx.Done():
				return 0, context.Cause(p.ctx)
			}
		}
	}
	return n, nil
}

func (p *pipe) close(err error) {
	p.mu.Lock()
	if !p.ended {
		p.ended, p.err = true, err
	}
	p.mu.Unlock()
	signal(p.ready)
}

// next waits for the next chunk.
func (p *pipe) next(ctx context.Context) (data []byte, done bool, err error) {
	for {
		p.mu.Lock()
		n, ended := len(p.buf), p.ended
		p.mu.Unlock()
		if n > 0 && n < chunkSize && !ended {
			select {
			case <-time.After(gather):
			case <-ctx.Done():
			}
		}
		p.mu.Lock()
		take := min(len(p.buf), chunkSize)
		data = append([]byte(nil), p.buf[:take]...)
		p.buf = append(p.buf[:0], p.buf[take:]...)
		done, err = p.ended && len(p.buf) == 0, p.err
		p.mu.Unlock()
		signal(p.room)
		if len(data) > 0 || done {
			return data, done, err
		}
		select {
		case <-p.ready:
		case <-ctx.Done():
			return nil, true, context.Cause(ctx)
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
