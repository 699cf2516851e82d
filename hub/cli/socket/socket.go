// Package socket lets a command send an order to the hub on its machine: one line over a Unix
// socket in the data directory, answered by a text. Write permission on the directory is the
// authorization.
//
// The package does not know the orders: package serve carries them out, package cli sends them.
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

// Name is the name of the socket in the data directory.
const Name = "hub.sock"

// ErrNoDirectory is returned for a data directory that does not exist.
var ErrNoDirectory = errors.New("data directory not found")

// failed begins an answer that is an error.
const failed = "failed: "

// Time limits of a command to send its order, and of the hub to answer. Deriving a key from a
// passphrase is slow.
const (
	asking    = 10 * time.Second
	answering = time.Minute
)

// short returns a path to the same directory of at most 107 bytes, the kernel's limit for a socket.
// Call done after the socket is connected.
func short(path string) (s string, done func(), err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

// looking is the time limit of Look. A working hub answers at once.
const looking = 10 * time.Second

// Ask sends an order to the hub of a data directory and returns the answer. The hub carries out one
// order at a time, so Ask may wait for another order.
func Ask(dir, order string) (string, error) { return ask(dir, order, 2*(asking+answering)) }

// Look sends a question. Its time limit is shorter than Ask's, because doctor also asks hubs that
// hang.
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
		return "", notReached(dir, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(until)
	if _, err := fmt.Fprintln(conn, order); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "", fmt.Errorf("the hub of %s runs but has not answered for %s. It may still carry out the order: see its log, "+
			"and restart it if it hangs", dir, patience)
	}
	if err != nil {
		return "", err
	}
	if why, bad := strings.CutPrefix(strings.TrimSpace(string(answer)), failed); bad {
		return "", errors.New(why)
	}
	return string(answer), nil
}

// noDirectory is ErrNoDirectory with the operating system's error.
type noDirectory struct{ error }

func (e noDirectory) Error() string {
	return fmt.Sprintf("reach the hub: %v; name its directory with --data-dir", e.error)
}

func (noDirectory) Is(target error) bool { return target == ErrNoDirectory }

// Listen listens at path, where only this user may connect; call done after l is closed.
func Listen(path string) (l net.Listener, done func(), err error) {
	path, done, err = short(path)
	if err != nil {
		return nil, nil, fmt.Errorf("listen in the data directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		done()
		return nil, nil, fmt.Errorf("remove the socket of an earlier hub: %w", err)
	}
	if l, err = net.Listen("unix", path); err != nil {
		done()
		return nil, nil, fmt.Errorf("listen on %s: %w", path, listen.Cause(err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		done()
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, done, nil
}

// Dial connects to the socket of that name of a running hub.
func Dial(ctx context.Context, dir, name string) (net.Conn, error) {
	path, done, err := short(filepath.Join(dir, name))
	if err != nil {
		return nil, noDirectory{err}
	}
	defer done()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, notReached(dir, err)
	}
	return conn, nil
}

func notReached(dir string, err error) error {
	return fmt.Errorf("reach the hub of %s: %w; is it running?", dir, listen.Cause(err))
}

// A Handler carries out an order. by is the user that runs the command's process.
type Handler func(ctx context.Context, by, order string) (answer string, err error)

// Serve carries out orders that arrive at the socket at path, one at a time, until ctx ends.
func Serve(ctx context.Context, path string, handle Handler) error {
	l, done, err := Listen(path)
	if err != nil {
		return err
	}
	defer done()
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
	answer, err := handle(ctx, Peer(conn), strings.TrimSpace(line))
	if err != nil {
		answer = failed + err.Error()
	}
	fmt.Fprintln(conn, answer)
}

// Peer returns the user of the process at the other end, as the kernel reports it.
func Peer(conn net.Conn) string {
	who := "a user with write permission on the data directory"
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

// UserName returns the name of a user of this machine.
func UserName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return "uid " + strconv.Itoa(uid)
	}
	return u.Username
}
