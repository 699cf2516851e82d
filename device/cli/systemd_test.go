package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
)

// A hanging is an error that blocks its reader, here the agent's loop, until a channel is closed.
type hanging struct {
	sync.Mutex
	until chan struct{} // nil: it does not block
}

func (h *hanging) Error() string {
	h.Lock()
	until := h.until
	h.Unlock()
	if until != nil {
		<-until
	}
	return "no engine"
}

// systemd listens at the notification socket.
func systemd(t *testing.T, watchdog time.Duration) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	name := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	return conn
}

// fed waits for the watchdog to be fed.
func fed(t *testing.T, conn *net.UnixConn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if string(buf[:n]) == "WATCHDOG=1" {
			return true
		}
	}
}

// With shorter times than in the unit file, the watchdog is fed while the agent's loop runs, and
// not fed while the loop is stuck. The rest of the process runs all the time.
func TestTheAgentsLoopFeedsTheWatchdog(t *testing.T) {
	const every, stuck = 600 * time.Millisecond, 6 * time.Second // without an engine the loop runs every 2 s
	conn := systemd(t, every)
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	m, err := memory.Open(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	hang := &hanging{}
	a, err := agent.New(agent.Config{
		Node: "pi-1", Memory: m, Hardware: &machine{where: hardware.Options{StateDir: dir}, periph: &hardware.Periph{}},
		Policy: plan.DefaultPolicy(), Log: log,
		OpenEngine: func(context.Context) (engine.Engine, error) { return nil, hang },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer watch(ctx, a, stuck, log)()
	for range 40 { // 40 feeds take longer than the loop may be stuck
		if !fed(t, conn, 5*time.Second) {
			t.Fatal("the watchdog is not fed while the loop runs")
		}
	}
	until := make(chan struct{})
	hang.Lock()
	hang.until = until
	hang.Unlock()
	for end := time.Now().Add(stuck + 20*time.Second); fed(t, conn, 5*every); {
		if time.Now().After(end) {
			t.Fatal("the watchdog is still fed while the loop is stuck")
		}
	}
	if elapsed := time.Since(a.LastCycle()); elapsed < stuck {
		t.Errorf("the watchdog is no longer fed %s after the last cycle, want more than %s", elapsed, stuck)
	}
	hang.Lock()
	hang.until = nil
	hang.Unlock()
	close(until)
	if !fed(t, conn, 20*time.Second) {
		t.Error("the watchdog is not fed after the loop continues")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
