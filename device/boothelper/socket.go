package boothelper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of the helper's socket.
const (
	maxRequest  = 128 << 10        // bytes: a document of fleet.MaxBootConfig in base64, and the other fields
	maxReply    = 64 << 10         // bytes
	connTime    = 10 * time.Second // time for the whole request
	answerTime  = time.Minute      // time that the client waits, also for earlier requests
	deadmanTime = time.Minute      // longest time between two checks of the deadman
)

// A Server answers requests, one at a time. It loads the stored state for each request, so it may
// exit whenever it is idle.
type Server struct {
	Disk     Disk
	Board    Board
	StateDir string
	Log      *slog.Logger
}

// with loads the helper and calls do under a lock, because the deadman may run in another process.
func (s *Server) with(do func(*Helper) error) error {
	name := filepath.Join(s.StateDir, "lock")
	// Open the lock read-only: on a read-only root a trial must still end.
	lock, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		lock, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	h, err := New(s.Disk, s.Board, s.StateDir)
	if err != nil {
		return err
	}
	return do(h)
}

// Serve answers requests until ctx ends, or until no request has come for the time idle (0: no
// limit).
func (s *Server) Serve(ctx context.Context, ln *net.UnixListener, idle time.Duration) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	for {
		if idle > 0 {
			if err := ln.SetDeadline(time.Now().Add(idle)); err != nil {
				return err
			}
		}
		conn, err := ln.AcceptUnix()
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("listen for the agent: %w", err)
		}
		if err := s.answer(conn); err != nil {
			s.Log.Warn("cannot answer a request", "err", err)
		}
		_ = conn.Close()
	}
}

// answer handles one connection with one request.
func (s *Server) answer(conn *net.UnixConn) error {
	if err := conn.SetDeadline(time.Now().Add(connTime)); err != nil {
		return err
	}
	peer, err := credentials(conn)
	if err != nil {
		return err
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return errors.Join(
			fmt.Errorf("refused process %d of user %d: only root may use the boot helper", peer.Pid, peer.Uid),
			reply(conn, Reply{Error: "only root may use the boot helper"}))
	}
	r, err := readRequest(conn)
	if err != nil {
		return errors.Join(err, reply(conn, Reply{Error: err.Error()}))
	}
	var a Reply
	if err := s.with(func(h *Helper) error { a = h.Do(r); return nil }); err != nil {
		a = Reply{Error: err.Error()}
	}
	if r.Op != OpStatus {
		s.Log.Info("answered the agent", "op", r.Op, "pid", peer.Pid, "err", a.Error)
	}
	if err := conn.SetDeadline(time.Now().Add(connTime)); err != nil {
		return err
	}
	return reply(conn, a)
}

func readRequest(conn io.Reader) (r Request, err error) {
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest+1)).ReadBytes('\n')
	switch {
	case len(line) > maxRequest:
		return r, fmt.Errorf("a request has at most %d bytes", maxRequest)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return r, fmt.Errorf("the request is incomplete after %s", connTime)
	case err != nil:
		return r, errors.New("a request must be one line of JSON")
	}
	if err := unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("read the request: %w", err)
	}
	return r, nil
}

func reply(conn io.Writer, a Reply) error {
	text, err := json.Marshal(a)
	if err == nil {
		_, err = conn.Write(append(text, '\n'))
	}
	return err
}

func credentials(conn *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return peer, err
}

// Listener returns the socket that systemd has opened for this process (sd_listen_fds(3)), or nil.
func Listener() (*net.UnixListener, error) {
	if os.Getenv("LISTEN_PID") != fmt.Sprint(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		return nil, nil
	}
	const first = 3
	unix.CloseOnExec(first)
	f := os.NewFile(first, "LISTEN_FD_3")
	defer func() { _ = f.Close() }() // the listener has its own copy of the file
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use systemd's socket: %w", err)
	}
	u, ok := ln.(*net.UnixListener)
	if !ok {
		return nil, errors.New("systemd's socket is not a Unix socket: see flotilla-boot-helper.socket")
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// Ask sends the agent's request to the helper that listens at path.
func Ask(ctx context.Context, path string, r Request) (a Reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return a, err
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return a, err
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return a, fmt.Errorf("send a request to the boot helper: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxReply)).ReadBytes('\n')
	if err == nil {
		err = unmarshal(line, &a)
	}
	if err != nil {
		return Reply{}, fmt.Errorf("read the boot helper's answer: %w", err)
	}
	if r.Op == OpStatus && a.Error == "" && a.Status == nil {
		return Reply{}, errors.New("the boot helper's answer has no status")
	}
	return a, a.Err()
}

// Deadman waits while a trial runs, and reboots the board out of a trial that is undecided after
// its deadline, even if the root has become read-only. Without a trial it returns at once.
func (s *Server) Deadman(ctx context.Context) error {
	for {
		var trial bool
		var left time.Duration
		err := s.with(func(h *Helper) error {
			err := h.Settle()
			if trial, left = h.Overdue(); !trial || left > 0 {
				return err
			}
			s.Log.Warn("the trial of a boot configuration is undecided after its deadline: restoring the old files")
			if err := h.Restore(); err != nil { // even after an error: the old files may be in place
				return errors.Join(err, s.Board.Reboot(""))
			}
			return nil
		})
		now, _ := s.Board.Tryboot()
		now = now || strings.Contains(s.Board.Cmdline(), grubTrialOf)
		if err != nil && (now || trial) && s.Board.Uptime() > time.Hour+deadmanTime {
			err = errors.Join(err, s.Board.Reboot("")) // every deadline has passed by now, and the reboot boots the kept files
		}
		if err == nil && (!trial || left <= 0) {
			return nil
		}
		if err != nil {
			s.Log.Error("cannot check the trial; trying again", "err", err)
			left = deadmanTime
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(left, deadmanTime)):
		}
	}
}

// Restore runs early in each boot: it completes what a power cut has interrupted, and reboots if
// the board runs files of a trial that has ended.
func (s *Server) Restore() error {
	return s.with(func(h *Helper) error {
		was := h.state.Phase
		if err := h.Settle(); err != nil {
			return fmt.Errorf("restore the boot files: %w", err)
		}
		if now := h.state.Phase; now != was || now != PhaseIdle {
			s.Log.Info("settled the boot files", "was", was, "is", now, "trial", h.inTrial())
		}
		return h.Leave()
	})
}

// Forget removes the pinned node and key, so that Pin accepts new ones.
func (s *Server) Forget() error { return s.with((*Helper).Forget) }
