package enginetest

import (
	"context"
	"fmt"
	"io"
	"time"

	"flotilla.dev/device/engine"
)

// Logs implements engine.Engine.
func (t *Twin) Logs(ctx context.Context, id string, o engine.LogOptions, stdout, stderr io.Writer) error {
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
			return nil // that is how following ends
		}
	}
}

type datedLine struct {
	Line
	at time.Time
}

// log is what a container has printed until now without the first seen lines, and when it will print next (zero: not
// known).
func (c *instance) log(seen int, now time.Time) (lines []datedLine, next time.Time) {
	number := c.dropped
	for _, r := range c.runs {
		for _, l := range r.lines {
			at := r.started.Add(l.After)
			if !r.ended.IsZero() && at.After(r.ended) {
				break // it did not live to say so
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
func (t *Twin) Exec(ctx context.Context, id string, command []string, stdout, stderr io.Writer) (int, error) {
	if err := t.enter(ctx, "Exec", id); err != nil {
		return 0, err
	}
	c := t.find(id)
	if c == nil {
		t.mu.Unlock()
		return 0, fmt.Errorf("run a command in container %s: %w", id, engine.ErrNotFound)
	}
	if c.state != engine.Running {
		t.mu.Unlock()
		return 0, fmt.Errorf("run a command in container %s: it does not run", id)
	}
	life, script := c.starts, c.play.Exec
	t.mu.Unlock()
	var result ExecResult
	if script != nil {
		result = script(command)
	}
	if result.Err != nil {
		return 0, result.Err
	}
	if result.After > 0 {
		running, cancel := context.WithTimeout(ctx, result.After)
		defer cancel()
		ended := t.await(running, "Exec", id, func() bool { return c.state != engine.Running || c.starts != life }) == nil
		switch {
		case ctx.Err() != nil:
			return 0, fmt.Errorf("run %s in container %s: %w", command[0], id, ctx.Err())
		case ended:
			return 137, nil // it dies with its container
		}
	}
	if _, err := io.WriteString(stdout, result.Stdout); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(stderr, result.Stderr); err != nil {
		return 0, err
	}
	return result.Code, nil
}

// Events implements engine.Engine.
func (t *Twin) Events(ctx context.Context, label string, changed func()) error {
	if err := t.enter(ctx, "Events", label); err != nil {
		return err
	}
	heard := make(chan struct{}, 1)
	heard <- struct{}{} // what happened before was not heard
	t.listeners[heard] = label
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.listeners, heard)
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
		case <-heard:
			changed()
		case <-anything:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
