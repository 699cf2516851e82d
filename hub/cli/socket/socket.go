// Package socket is how a command asks something of the hub that runs on its
// machine: a line over a Unix socket in the data directory, and the text that comes
// back. Who may write into that directory may ask.
//
// It knows no order and carries out none: package serve does, package cli asks.
package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/listen"
)

// Name is the socket's in the data directory.
const Name = "hub.sock"

// ErrNoDirectory: another directory was meant.
var ErrNoDirectory = errors.New("data directory not found")

// failed begins the answer to an order that was not carried out.
const failed = "failed: "

// How long a command has to say what it wants, and the hub to do it: keys under a
// passphrase take their time.
const (
	asking    = 10 * time.Second
	answering = time.Minute
)

// short is the same path in a few bytes until done is called: the kernel takes no
// socket's path beyond 107, however deep the data directory lies.
func short(path string) (s string, done func(), err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

// looking is how long a hub has to answer what it knows: one that works does so at once.
const looking = 10 * time.Second

// Ask has the hub of a data directory carry out an order, and returns what it says. Orders are
// carried out one after the other: it may be behind another.
func Ask(dir, order string) (string, error) { return ask(dir, order, 2*(asking+answering)) }

// Look is Ask for what the hub knows. It is asked of hubs that hang, too, and waits no longer than
// it has to.
func Look(dir, what string) (string, error) { return ask(dir, what, looking) }

func ask(dir, order string, patience time.Duration) (string, error) {
	path, done, err := short(filepath.Join(dir, Name))
	if err != nil {
		return "", noDirectory{err}
	}
	defer done()
	until := time.Now().Add(patience)
	conn, err := (&net.Dialer{Deadline: until}).Dial("unix", path)
	if err != nil {
		return "", fmt.Errorf("reach the hub of %s: %w; is it running?", dir, listen.Cause(err))
	}
	defer conn.Close()
	_ = conn.SetDeadline(until)
	if _, err := fmt.Fprintln(conn, order); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "", fmt.Errorf("the hub of %s runs and has not answered for %s, and may carry it out still: see its log, "+
			"and start it again if it hangs", dir, patience)
	}
	if err != nil {
		return "", err
	}
	if why, bad := strings.CutPrefix(strings.TrimSpace(string(answer)), failed); bad {
		return "", errors.New(why)
	}
	return string(answer), nil
}

// noDirectory is ErrNoDirectory in the words of the machine.
type noDirectory struct{ error }

func (e noDirectory) Error() string {
	return fmt.Sprintf("reach the hub: %v; name its directory with --data-dir", e.error)
}

func (noDirectory) Is(target error) bool { return target == ErrNoDirectory }

// A Handler carries out an order; by is the user of this machine whose process gave it.
type Handler func(ctx context.Context, by, order string) (answer string, err error)

// Serve takes orders at the path of a data directory's socket until ctx ends, one
// after the other.
func Serve(ctx context.Context, path string, handle Handler) error {
	path, done, err := short(path)
	if err != nil {
		return fmt.Errorf("listen in the data directory: %w", err)
	}
	defer done()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier hub: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, listen.Cause(err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept on %s: %w", path, err)
		}
		serve(ctx, conn, handle)
	}
}

func serve(ctx context.Context, conn net.Conn, handle Handler) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(asking))
	line, err := bufio.NewReader(io.LimitReader(conn, 4096)).ReadString('\n')
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(answering))
	answer, err := handle(ctx, peer(conn), strings.TrimSpace(line))
	if err != nil {
		answer = failed + err.Error()
	}
	fmt.Fprintln(conn, answer)
}

// peer is whose process is at the other end: the kernel says it.
func peer(conn net.Conn) string {
	who := "somebody who may write into the data directory"
	if c, ok := conn.(*net.UnixConn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					who = UserName(int(cred.Uid))
				}
			})
		}
	}
	return who
}

// UserName is the name of a user of this machine.
func UserName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return "uid " + strconv.Itoa(uid)
	}
	return u.Username
}
