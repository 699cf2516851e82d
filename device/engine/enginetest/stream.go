package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"flotilla.dev/device/engine"
)

// Logs implements engine.Engine.
func (t *Fake) Logs(ctx context.Context, id string, o engine.LogOptions, stdout, stderr io.Writer) error {
	if err := t.enter(ctx, "Logs", id); err != nil {
		return err
	}
	c := t.find(id)
	if c == nil {
		t.mu.Unlock()
		return fmt.Errorf("read the log of container %s: %w", id, engine.ErrNotFound)
	}
	t.mu.Unlock()
	seen := 0
	for first := true; ; first = false {
		t.mu.Lock()
		now := time.Now()
		t.settle(now)
		lines, next := c.log(seen, now)
		seen = max(seen, c.dropped) + len(lines)
		running, down, changed := c.state == engine.Running && t.find(c.id) == c, t.down, t.changed
		t.mu.Unlock()
		if first && o.Tail >= 0 && int64(len(lines)) > o.Tail {
			lines = lines[int64(len(lines))-o.Tail:]
		}
		for _, l := range lines {
			if l.at.Before(o.Since) {
				continue
			}
			text := l.Text + "\n"
			if o.Timestamps {
				text = l.at.Format(time.RFC3339Nano) + " " + text
			}
			to := stdout
			if l.Stderr && !c.spec.TTY {
				to = stderr
			}
			if _, err := io.WriteString(to, text); err != nil {
				return fmt.Errorf("read the log of container %s: %w", id, err)
			}
		}
		if !o.Follow || !running {
			return nil
		}
		if down {
			return fmt.Errorf("read the log of container %s: %w: it was switched off", id, engine.ErrUnavailable)
		}
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(next.Sub(now))
		}
		select {
		case <-due:
		case <-changed:
		case <-ctx.Done():
			return nil // a followed log ends without an error when ctx ends
		}
	}
}

type datedLine struct {
	Line
	at time.Time
}

// log returns the lines that a container has printed so far, without the first seen lines, and the
// time of the next line (zero: unknown).
func (c *instance) log(seen int, now time.Time) (lines []datedLine, next time.Time) {
	number := c.dropped
	for _, r := range c.runs {
		for _, l := range r.lines {
			at := r.started.Add(l.After)
			if !r.ended.IsZero() && at.After(r.ended) {
				break // the run ended before this line was due
			}
			if at.After(now) {
				return lines, at
			}
			if number++; number > seen {
				lines = append(lines, datedLine{Line: l, at: at})
			}
		}
	}
	return lines, time.Time{}
}

// Exec implements engine.Engine.
func (t *Fake) Exec(ctx context.Context, id string, command []string, s engine.Streams) (int, error) {
	what := "run " + strings.Join(command[:1], "") + " in container"
	c, life, err := t.running(ctx, "Exec", what, id)
	if err != nil {
		return 0, err
	}
	var result ExecResult
	if c.play.Exec != nil {
		result = c.play.Exec(command)
	}
	if result.Err != nil {
		return 0, result.Err
	}
	ending, cancel := context.WithCancel(ctx)
	defer cancel()
	exec := t.register(cancel)
	defer t.unregister(exec)
	if s.Began != nil {
		s.Began(exec)
	}
	s, shut := whole(s)
	defer shut()
	if result.Run == nil {
		result.Run = func(ctx context.Context, s engine.Streams) int { return result.play(ctx, s) }
	}
	code := 0
	switch died, err := t.during(ending, c, life, func(ctx context.Context) { code = result.Run(ctx, s) }); {
	case died, ending.Err() != nil && ctx.Err() == nil:
		return 137, nil
	case err != nil:
		return 0, fmt.Errorf("%s %s: %w", what, id, err)
	}
	return code, nil
}

// register stores the function that ends a command and returns the command's id.
func (t *Fake) register(end context.CancelFunc) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun++
	exec := fmt.Sprintf("exec-%d", t.begun)
	t.execs[exec] = end
	return exec
}

func (t *Fake) unregister(exec string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.execs, exec)
}

// EndExec implements engine.Engine.
func (t *Fake) EndExec(ctx context.Context, exec string) error {
	if err := t.enter(ctx, "EndExec", exec); err != nil {
		return err
	}
	defer t.mu.Unlock()
	t.record("EndExec", exec)
	if end := t.execs[exec]; end != nil {
		end()
	}
	return nil
}

// play waits for the command's duration and prints its output.
func (r ExecResult) play(ctx context.Context, s engine.Streams) int {
	if r.After > 0 {
		select {
		case <-time.After(r.After):
		case <-ctx.Done():
			return 137
		}
	}
	_, _ = io.WriteString(s.Stdout, r.Stdout)
	_, _ = io.WriteString(s.Stderr, r.Stderr)
	return r.Code
}

// Attach implements engine.Engine.
func (t *Fake) Attach(ctx context.Context, id string, s engine.Streams) error {
	c, life, err := t.running(ctx, "Attach", "attach to container", id)
	if err != nil {
		return err
	}
	s.TTY = c.spec.TTY
	s, shut := whole(s)
	defer shut()
	if !c.spec.Stdin {
		s.Stdin = nil
	}
	play := c.play.Attached
	if play == nil {
		play = func(ctx context.Context, s engine.Streams) error {
			return t.Logs(ctx, id, engine.LogOptions{Follow: true, Since: time.Now()}, s.Stdout, s.Stderr)
		}
	}
	died, err := t.during(ctx, c, life, func(ctx context.Context) { _ = play(ctx, s) })
	if !died && err == nil && c.spec.StdinOnce {
		t.do(func() { t.end(c, time.Now(), 0, false) }) // the process has read stdin to the end, so it exits
	}
	return err
}

// Dial implements engine.Engine.
func (t *Fake) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	what := fmt.Sprintf("connect to port %d of container", port)
	c, _, err := t.running(ctx, "Dial", what, id)
	if err != nil {
		return nil, err
	}
	if c.play.Dial == nil {
		return nil, fmt.Errorf("connection refused: nothing listens on port %d", port)
	}
	return c.play.Dial(ctx, port)
}

// running returns a running container and the number of its present run.
func (t *Fake) running(ctx context.Context, call, what, id string) (c *instance, life int, err error) {
	if err := t.enter(ctx, call, id); err != nil {
		return nil, 0, err
	}
	defer t.mu.Unlock()
	if c = t.find(id); c == nil {
		return nil, 0, fmt.Errorf("%s %s: %w", what, id, engine.ErrNotFound)
	}
	if c.state != engine.Running {
		return nil, 0, fmt.Errorf("%s %s: it does not run", what, id)
	}
	return c, c.starts, nil
}

// during calls do and cancels it when the container ends; died reports whether that happened.
func (t *Fake) during(ctx context.Context, c *instance, life int, do func(context.Context)) (died bool, err error) {
	inside, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(inside)
	}()
	for {
		t.mu.Lock()
		t.settle(time.Now())
		gone, changed := c.state != engine.Running || c.starts != life, t.changed
		down := t.down
		t.mu.Unlock()
		switch {
		case gone:
			return true, nil
		case down:
			return false, fmt.Errorf("%w: it was switched off", engine.ErrUnavailable)
		}
		select {
		case <-done:
			return false, ctx.Err()
		case <-changed:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// whole replaces the caller's nil streams. A terminal has one output and ends lines with CR LF.
// After shut, the streams accept no more output.
func whole(s engine.Streams) (all engine.Streams, shut func()) {
	v := valve{make(chan struct{}, 1), make(chan struct{})}
	v.turn <- struct{}{}
	writer := func(w io.Writer) io.Writer {
		if w == nil {
			w = io.Discard
		}
		return outlet{v, w, s.TTY}
	}
	s.Stdout, s.Stderr = writer(s.Stdout), writer(s.Stderr)
	if s.TTY {
		s.Stderr = s.Stdout
	}
	return s, func() {
		<-v.turn
		close(v.over)
	}
}

// A valve lets one write pass at a time: the write that holds the token in turn.
type valve struct{ turn, over chan struct{} }

type outlet struct {
	valve
	to       io.Writer
	terminal bool
}

func (o outlet) Write(p []byte) (int, error) {
	select {
	case <-o.turn:
		defer func() { o.turn <- struct{}{} }()
	case <-o.over:
		return 0, io.ErrClosedPipe
	}
	out := p
	if o.terminal {
		out = bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))
	}
	if _, err := o.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Events implements engine.Engine.
func (t *Fake) Events(ctx context.Context, label string, changed func()) error {
	if err := t.enter(ctx, "Events", label); err != nil {
		return err
	}
	events := make(chan struct{}, 1)
	events <- struct{}{} // events before the subscription were missed
	t.listeners[events] = label
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.listeners, events)
		t.mu.Unlock()
	}()
	for {
		t.mu.Lock()
		down, anything := t.down, t.changed
		t.mu.Unlock()
		if down {
			return fmt.Errorf("listen to container events: %w: it was switched off", engine.ErrUnavailable)
		}
		select {
		case <-events:
			changed()
		case <-anything:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
