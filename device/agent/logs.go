package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// sendLogs streams one container's log.
func (a *Agent) sendLogs(ctx context.Context, r wire.Request, answer Answer) error {
	e, id, err := a.logOf(ctx, types.UID(r.Pod), r.Container, r.Previous)
	if err != nil {
		return err
	}
	o := engine.LogOptions{Follow: r.Follow && !r.Previous, Timestamps: r.Timestamps, Tail: -1, Since: sinceOf(r)}
	if r.TailLines != nil {
		o.Tail = max(*r.TailLines, 0)
	}
	return copyLog(ctx, r, answer, func(ctx context.Context, w io.Writer) error { return e.Logs(ctx, id, o, w, w) })
}

// sinceOf is the moment from which on a log is wanted; zero: from its beginning.
func sinceOf(r wire.Request) time.Time {
	const longest = int64(math.MaxInt64 / time.Second)
	switch {
	case r.SinceTime != nil:
		return *r.SinceTime
	case r.SinceSeconds == nil:
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(min(max(*r.SinceSeconds, 0), longest)) * time.Second)
}

// sendNodeLogs streams the agent's own log.
func (a *Agent) sendNodeLogs(ctx context.Context, r wire.Request, answer Answer) error {
	if a.c.Journal == nil {
		return errors.New("this agent keeps nothing of its own log")
	}
	return copyLog(ctx, r, answer, func(ctx context.Context, w io.Writer) error { return a.c.Journal.Copy(ctx, r, w) })
}

// copyLog sends what source writes.
func copyLog(ctx context.Context, r wire.Request, answer Answer, source func(context.Context, io.Writer) error) error {
	if err := answer.Send(ctx, wire.Reply{}); err != nil { // it has begun, even if there is nothing to say for long
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newPipe(ctx)
	if r.LimitBytes != nil {
		p.left = max(*r.LimitBytes, 0)
		p.ended = p.left == 0
	}
	go func() { p.close(source(ctx, p.stdout())) }()
	return p.send(ctx, answer)
}

// logOf finds the container whose log is meant.
func (a *Agent) logOf(ctx context.Context, uid types.UID, name string, previous bool) (e engine.Engine, id string,
	err error) {
	err = a.inLoop(ctx, func(l *loop) (err error) {
		e, id, err = l.logOf(uid, name, previous)
		return err
	})
	return e, id, err
}

func (l *loop) logOf(uid types.UID, name string, previous bool) (engine.Engine, string, error) {
	if l.engine == nil {
		return nil, "", fmt.Errorf("read the log: %w", l.engineErr)
	}
	podName := string(uid)
	if p := l.pod(uid); p != nil {
		podName = p.Name
		if name == "" && len(p.Spec.Containers) > 0 {
			name = p.Spec.Containers[0].Name
		}
		if podspec.Find(p, name) == nil {
			return nil, "", fmt.Errorf("container %s is not valid for pod %s", name, podName)
		}
	}
	n := 0
	for _, in := range l.o.Containers {
		if in.Place != (plan.Place{Pod: uid, Container: name}) || in.State == engine.Created {
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
