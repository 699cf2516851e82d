package hardware

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	keepFound  = 10 * time.Minute // age of a good result before the next run; buses rarely change
	retryFound = time.Minute      // pause after a failure
	maxFound   = 64 << 10         // most bytes of the child's output

	nobody = 65534
)

// busGroups are the groups that may open the buses' devices.
var busGroups = []string{"gpio", "i2c", "spi", "video"}

// A Periph runs periph.io in a child process, as an unprivileged user if the agent may choose one:
// as root, periph would map the chip's registers. It keeps the last good result. The zero value is
// ready to use.
type Periph struct {
	mu    sync.Mutex
	found Found
	err   error
	next  time.Time // earliest time of the next run

	args  []string      // arguments of the child; nil: ChildCommand
	limit time.Duration // time limit of the child; 0: 5 s
}

// Read returns periph's result, at most 10 minutes old. If the child fails, it returns the last
// good result and the error, and runs the child again after a minute.
func (p *Periph) Read(ctx context.Context) (Found, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.next) {
		return p.found, p.err
	}
	found, err := p.run(ctx)
	if ctx.Err() != nil {
		return p.found, ctx.Err()
	}
	if p.err = err; err != nil {
		p.next = time.Now().Add(retryFound)
		return p.found, err
	}
	p.found, p.next = found, time.Now().Add(keepFound)
	return found, nil
}

func (p *Periph) run(ctx context.Context) (f Found, err error) {
	err = p.child(ctx, &f)
	return f, err
}

// child runs the child with one question.
func (p *Periph) child(ctx context.Context, answer any, question ...string) error {
	args, limit := p.args, p.limit
	if args == nil {
		args = append([]string{ChildCommand}, question...)
	}
	if limit == 0 {
		limit = childLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, self(), args...)
	out, errs := &limited{max: maxFound}, &limited{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.Dir = "/"
	cmd.Env = []string{"GOTRACEBACK=none", "PATH=" + os.Getenv("PATH")}
	cmd.WaitDelay = time.Second
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody,
			Groups: groupIDs("/", busGroups)}}
	}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("read the buses with periph: no answer within %v: one of its drivers hangs", limit)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("read the buses with periph: %w: make the program readable and executable for everyone", err)
	case err != nil && errs.Len() > 0:
		return fmt.Errorf("read the buses with periph: %w: %s", err, firstLine(errs.String()))
	case err != nil:
		return fmt.Errorf("read the buses with periph: %w", err)
	}
	if err := json.Unmarshal(out.Bytes(), answer); err != nil {
		return fmt.Errorf("read the buses with periph: parse its answer: %w", err)
	}
	return nil
}

// self returns the path of this program. The link in /proc works even after an upgrade has replaced
// the file, and in directories that the child's user may not enter.
func self() string {
	const link = "/proc/self/exe"
	if _, err := os.Stat(link); err == nil {
		return link
	}
	return os.Args[0]
}

// groupIDs returns the ids of those groups that exist.
func groupIDs(t tree, names []string) []uint32 {
	b, err := t.read("/etc/group")
	if err != nil {
		return nil
	}
	var ids []uint32
	for line := range strings.Lines(string(b)) { // name:password:id:members
		f := strings.Split(line, ":")
		if len(f) < 3 || !slices.Contains(names, f[0]) {
			continue
		}
		if id, err := strconv.ParseUint(f[2], 10, 32); err == nil && id != 0 {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return clean(line)
}

// limited is a buffer that keeps the first max bytes and drops the rest, so that endless output
// costs no memory.
type limited struct {
	bytes.Buffer
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.max - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
