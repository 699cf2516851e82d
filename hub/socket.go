package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/store"
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

// runSocket takes orders for the loop from commands beside the hub. Who may write
// into the data directory may give them.
func runSocket(ctx context.Context, path string, o orders) error {
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
		return fmt.Errorf("listen on %s: %w", path, reason(err))
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
		o.obey(ctx, conn)
	}
}

// orders is what the socket's orders work on.
type orders struct {
	loop  *control.Loop
	store *store.Store
}

func (o orders) obey(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	switch order := strings.TrimSpace(line); order {
	case "resume":
		n, err := o.loop.Resume(ctx)
		err = errors.Join(err, o.store.Resumed(ctx))
		if err != nil {
			fmt.Fprintf(conn, "nothing was resumed: %v\n", err)
			return
		}
		fmt.Fprintf(conn, "resumed %d devices\n", n)
	default:
		fmt.Fprintf(conn, "unknown order %q\n", order)
	}
}
