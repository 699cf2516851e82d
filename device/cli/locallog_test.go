package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// servesLog starts an agent's log server in a new directory. stop ends it.
func servesLog(t *testing.T) (dir string, log *slog.Logger, stop func()) {
	t.Helper()
	dir = t.TempDir()
	j := request.NewJournal(request.JournalSize)
	log = slog.New(j.Handler(slog.LevelInfo))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveLog(ctx, dir, j, log) }()
	stop = func() {
		if cancel(); ended == nil {
			return
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended = nil
	}
	t.Cleanup(stop)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("unix", filepath.Join(dir, logSocket))
		if err == nil {
			_ = conn.Close()
			return dir, log, stop
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestRootReadsTheAgentsLog(t *testing.T) {
	dir, log, stop := servesLog(t)
	log.Info("one")
	log.Info("two")
	tail := int64(1)
	var out strings.Builder
	if err := readLog(t.Context(), dir, wire.Request{Type: wire.RequestNodeLogs, TailLines: &tail}, &out); err != nil ||
		out.String() != "level=INFO msg=two\n" {
		t.Errorf("the log is %q, error %v, want the last line", out.String(), err)
	}

	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	follow := func() {
		ended <- readLog(ctx, dir, wire.Request{Type: wire.RequestNodeLogs, TailLines: &tail, Follow: true}, w)
	}
	line := func(want string) {
		t.Helper()
		b := make([]byte, 100)
		if n, err := r.Read(b); string(b[:n]) != want || err != nil {
			t.Errorf("followed %q, %v; want %q", b[:n], err, want)
		}
	}
	go follow()
	line("level=INFO msg=two\n")
	log.Info("three")
	line("level=INFO msg=three\n")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("a cancelled reader gets the error %v, want nil", err)
	}
	ctx = t.Context()
	go follow()
	line("level=INFO msg=three\n")
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the agent has ended") {
		t.Errorf("a reader gets the error %v when the agent ends", err)
	}
}

func TestTheLogSocketRefusesInvalidRequests(t *testing.T) {
	dir, log, _ := servesLog(t)
	log.Info("one")
	for _, q := range []string{"\n", "{}\n", `{"type":"exec","command":["sh"]}` + "\n",
		strings.Repeat("x", 2*maxRequest)} {
		conn, err := net.Dial("unix", filepath.Join(dir, logSocket))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, q)
		if answer, _ := io.ReadAll(conn); len(answer) > 0 {
			t.Errorf("%.40q: the answer is %q, want none", q, answer)
		}
		_ = conn.Close()
	}
}

func TestReadLogExplainsAMissingLog(t *testing.T) {
	dir := t.TempDir()
	q := wire.Request{Type: wire.RequestNodeLogs}
	if err := readLog(t.Context(), dir, q, io.Discard); err == nil || !strings.Contains(err.Error(), "no agent runs") {
		t.Errorf("no agent runs: got %v", err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, localSocket)) // an agent without logSocket
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	go func() {
		for {
			conn, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			_ = json.NewEncoder(conn).Encode(localStatus{Node: "pi-1"})
			_ = conn.Close()
		}
	}()
	if err := readLog(t.Context(), dir, q, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "is older than this command: run systemctl restart flotilla-device") {
		t.Errorf("an older agent runs: got %v", err)
	}
}
