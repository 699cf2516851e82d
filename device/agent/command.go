package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// runCommand runs a command in a container, or attaches to one.
func (a *Agent) runCommand(ctx context.Context, r wire.Request, answer Answer) (exitCode int32, err error) {
	e, id, err := a.running(ctx, types.UID(r.Pod), r.Container)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answer, stop := awake(answer, longestReply, cancel)
	defer stop()
	if err := answer.Send(ctx, wire.Reply{}); err != nil { // it has begun: the hub may send input
		return 0, err
	}
	p := newPipe(ctx)
	in, typed := io.Pipe()
	defer in.Close()
	sizes := make(chan engine.Size, 1)
	exec := ""
	s := engine.Streams{Stdout: p.stdout(), Stderr: p.stderr(), TTY: r.TTY, Resize: sizes, Began: func(id string) {
		exec = id
		a.noteExec(id)
	}}
	if r.Stdin {
		s.Stdin = in
	} else {
		_ = in.Close()
	}
	go func() {
		// First this: a command must not take the end of a broken input for the end of its input.
		err := feed(ctx, answer, typed, sizes)
		cancel(err)
		_ = typed.CloseWithError(err)
	}()
	var code int
	a.answers.work.Go(func() { // it may take a moment to end a command that the hub waits for no longer
		var err error
		if r.Type == wire.RequestAttach {
			err = e.Attach(ctx, id, s)
		} else {
			code, err = e.Exec(ctx, id, r.Command, s)
		}
		if exec != "" && !errors.Is(err, engine.ErrUnavailable) { // else nobody knows whether it has ended
			a.strikeExec(exec)
		}
		p.close(err)
	})
	if err := p.send(ctx, answer); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, err
	}
	return int32(code), nil
}

// feed passes input on until there is no more; then it says why.
func feed(ctx context.Context, answer Answer, typed *io.PipeWriter, sizes chan engine.Size) error {
	for {
		r, err := answer.Input(ctx)
		if err != nil {
			return err
		}
		switch r.Type {
		case wire.RequestStdin:
			_, _ = typed.Write(r.Data) // a command that reads no more is no error
		case wire.RequestCloseStdin:
			_ = typed.Close()
		case wire.RequestResize:
			select {
			case <-sizes: // only the latest counts
			default:
			}
			sizes <- engine.Size{Width: r.Width, Height: r.Height}
		}
	}
}

// forward carries one connection to a port of a pod. It ends when the pod's side does.
func (a *Agent) forward(ctx context.Context, r wire.Request, answer Answer) error {
	const dialTime = 10 * time.Second // with what it waits for room
	dialling, done := context.WithTimeout(ctx, dialTime)
	defer done()
	leave, err := a.answers.connections.take(dialling)
	if err != nil {
		return err
	}
	defer leave()
	e, id, err := a.running(ctx, types.UID(r.Pod), anyContainer)
	if err != nil {
		return err
	}
	conn, err := e.Dial(dialling, id, int(r.Port))
	done()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answer, stop := awake(answer, longestReply, cancel)
	defer stop()
	if err := answer.Send(ctx, wire.Reply{}); err != nil {
		return err
	}
	closing := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer closing()
	go func() {
		for {
			r, err := answer.Input(ctx)
			switch {
			case err != nil:
				cancel(err)
				return
			case r.Type == wire.RequestCloseStdin:
				if half, ok := conn.(interface{ CloseWrite() error }); ok {
					_ = half.CloseWrite()
				}
			case r.Type == wire.RequestStdin:
				_, _ = conn.Write(r.Data) // reading says what is wrong
			}
		}
	}()
	buf := make([]byte, chunkSize)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := answer.Send(ctx, wire.Reply{Data: buf[:n]}); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("port %d of the pod: %w", r.Port, err)
		}
	}
}

// awake cancels what has had neither input nor output for long: somebody has
// forgotten it.
func awake(answer Answer, most time.Duration, cancel context.CancelCauseFunc) (Answer, func() bool) {
	timer := time.AfterFunc(most, func() { cancel(fmt.Errorf("ended, because nothing was said for %s", most)) })
	return attended{answer, timer, most}, timer.Stop
}

type attended struct {
	Answer
	timer *time.Timer
	most  time.Duration
}

func (a attended) Send(ctx context.Context, r wire.Reply) error {
	a.timer.Reset(a.most)
	return a.Answer.Send(ctx, r)
}

func (a attended) Input(ctx context.Context) (wire.Request, error) {
	r, err := a.Answer.Input(ctx)
	if err == nil {
		a.timer.Reset(a.most)
	}
	return r, err
}

// anyContainer stands for whichever container of a pod runs: they share a network.
const anyContainer = "*"

// running finds a container that runs. No name is the one that the pod calls its
// default, or its first.
func (a *Agent) running(ctx context.Context, uid types.UID, name string) (e engine.Engine, id string, err error) {
	err = a.inLoop(ctx, func(l *loop) (err error) {
		e, id, err = l.running(uid, name)
		return err
	})
	return e, id, err
}

// inLoop asks the loop something.
func (a *Agent) inLoop(ctx context.Context, ask func(*loop) error) error {
	out := make(chan error, 1)
	a.post(func() { out <- ask(&a.loop) })
	select {
	case err := <-out:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.ended:
		return errStopping
	}
}

var errStopping = errors.New("the agent of the device is stopping")

func (l *loop) running(uid types.UID, name string) (engine.Engine, string, error) {
	if l.engine == nil {
		return nil, "", fmt.Errorf("the device's container engine does not answer: %w", l.engineErr)
	}
	pod := l.pod(uid)
	if pod == nil {
		return nil, "", fmt.Errorf("pod %s is not on this device", uid)
	}
	if name == "" {
		name = pod.Annotations["kubectl.kubernetes.io/default-container"]
	}
	if name == "" && len(pod.Spec.Containers) > 0 {
		name = pod.Spec.Containers[0].Name
	}
	if name != anyContainer && podspec.Find(pod, name) == nil {
		return nil, "", fmt.Errorf("container %s is not valid for pod %s", name, pod.Name)
	}
	for _, in := range l.o.Containers {
		if in.Place.Pod == uid && (in.Place.Container == name || name == anyContainer) && in.State == engine.Running {
			return l.engine, in.ID, nil
		}
	}
	for place, c := range l.o.RecordOf(uid).Container {
		if c.State == engine.Paused && (place == name || name == anyContainer) {
			return nil, "", fmt.Errorf(
				"container %s of pod %s is paused; unpause it on the device with its container engine, such as docker unpause",
				place, pod.Name)
		}
	}
	if name == anyContainer {
		return nil, "", fmt.Errorf("no container of pod %s is running", pod.Name)
	}
	why := "it has not been started yet"
	switch c := l.o.RecordOf(uid).Peek(name); {
	case c.Failure != nil:
		why = c.Failure.Reason + ": " + c.Failure.Message
	case c.Ended != nil:
		why = fmt.Sprintf("it has ended with exit code %d", c.Ended.ExitCode)
	}
	return nil, "", fmt.Errorf("container %s of pod %s is not running: %s", name, pod.Name, why)
}

// pod finds a pod that is desired, nil if it is not.
func (l *loop) pod(uid types.UID) *corev1.Pod {
	for i := range l.desired.Pods {
		if l.desired.Pods[i].UID == uid {
			return &l.desired.Pods[i]
		}
	}
	return nil
}
