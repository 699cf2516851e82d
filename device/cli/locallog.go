package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

const (
	// logSocket is the socket from which root on the device reads the agent's own log. A client
	// writes one line, a wire.Request, and receives the log.
	logSocket = "agent-log.sock"

	maxReaders = 16      // readers at the same time; more of them wait
	maxRequest = 4 << 10 // bytes
)

// serveLog answers each connection at logSocket.
func serveLog(ctx context.Context, stateDir string, j *request.Journal, log *slog.Logger) error {
	var readers errgroup.Group
	readers.SetLimit(maxReaders)
	d := localDoor{stateDir, logSocket, "flotilla-device logs", log}
	err := d.serve(ctx, func(conn net.Conn) {
		readers.Go(func() error {
			answerReader(ctx, conn, j)
			return nil
		})
	})
	return errors.Join(err, readers.Wait())
}

func answerReader(ctx context.Context, conn net.Conn, j *request.Journal) {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n')
	_ = conn.SetReadDeadline(time.Time{})
	if err != nil {
		return
	}
	r, err := wire.ParseRequest(line)
	if err != nil || r.Type != wire.RequestNodeLogs {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, conn) // until the reader closes
		cancel()
	}()
	_ = j.Copy(ctx, r, conn) // an error means that the reader has gone
}

// readLog copies the running agent's own log to w.
func readLog(ctx context.Context, stateDir string, r wire.Request, w io.Writer) error {
	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "unix", filepath.Join(stateDir, logSocket))
	if err != nil {
		if _, lives := readStatus(ctx, stateDir); lives == nil {
			return fmt.Errorf("read the agent's log: the agent is older than this command: run systemctl restart "+
				"flotilla-device (%w)", err)
		}
		return notRunning(stateDir, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return fmt.Errorf("read the agent's log: %w", err)
	}
	_, err = io.Copy(w, conn)
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil && r.Follow:
		return errors.New("the agent has ended: see systemctl status flotilla-device")
	}
	return err
}
