package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/serve"
	"flotilla.dev/hub/store"
)

// A simHub is one run of the hub.
type simHub struct {
	*serve.Hub
	cancel context.CancelFunc
	over   chan error
	began  time.Time
}

// A disk is the hub's store. If it is full, it accepts changes and deletions, but no new objects.
type disk struct {
	control.Store
	w *world
}

func (d disk) Commit(ctx context.Context, rows []control.Row, rev uint64) error {
	if d.w.full.Load() && slices.ContainsFunc(rows, d.w.isNew) {
		return fmt.Errorf("commit: %w: %w", control.ErrFull, store.ErrFull)
	}
	if sick := d.w.sick.Load(); sick != nil {
		if err := (*sick)(rows); err != nil {
			d.w.sickened.Add(1)
			if errors.Is(err, store.ErrFull) {
				err = fmt.Errorf("%w: %w", control.ErrFull, err)
			}
			return fmt.Errorf("commit: %w", err)
		}
	}
	return d.Store.Commit(ctx, rows, rev)
}

// Room implements control.SpaceProber.
func (d disk) Room(context.Context) bool { return !d.w.full.Load() }

// A listener is in memory, but has the address of a real one.
type listener struct {
	*pipe.Net
	port int
}

func (l listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: l.port} }

// startHub starts the hub like the program, but without sockets.
func (w *world) startHub() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var web *pipe.Net
	network, at := pipe.New(), serve.Listeners{}
	if at.Dev = network; w.tls {
		web = pipe.New()
		at = serve.Listeners{HTTPS: listener{web, 8443}, MQTT: listener{network, 8883}}
	}
	hub, err := serve.New(ctx, serve.Options{
		Config: w.cfg, Version: "test", Log: w.log, Listeners: at,
		Disk: func(s control.Store) control.Store { return disk{s, w} },
		Net:  func(b node.Broker) node.Broker { return switchboard{b, w} },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	h := &simHub{Hub: hub, cancel: cancel, over: make(chan error, 1), began: time.Now()}
	w.look.follow(ctx, h, h.Loop.Snapshot())
	go func() { h.over <- h.Run(ctx) }()
	select {
	case <-h.Up():
	case err := <-h.over:
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.hub, w.net, w.web = h, network, web
	for key, is := range w.links {
		w.apply(key, is)
	}
	w.mu.Unlock()
}

func (w *world) stopHub() {
	h := w.hub
	if h == nil {
		return
	}
	w.mu.Lock()
	w.hub, w.net, w.web = nil, nil, nil
	w.mu.Unlock()
	h.cancel()
	if err := <-h.over; err != nil {
		w.t.Error(err)
	}
	w.look.unfollow()
}

// crashHub ends the hub like a power cut: nothing that it does meanwhile reaches the disk.
func (w *world) crashHub() {
	w.t.Helper()
	synctest.Wait()
	saved := w.saveDisk("at-the-power-cut")
	w.stopHub()
	w.loadDisk(saved)
}

// saveDisk copies the hub's data directory in its present state.
func (w *world) saveDisk(name string) string {
	w.t.Helper()
	to := filepath.Join(w.dir, name)
	if err := os.RemoveAll(to); err != nil {
		w.t.Fatal(err)
	}
	copyDir(w.t, to, w.cfg.DataDir)
	return to
}

// loadDisk replaces the hub's data directory by a saved one.
func (w *world) loadDisk(from string) {
	w.t.Helper()
	if err := os.RemoveAll(w.cfg.DataDir); err != nil {
		w.t.Fatal(err)
	}
	copyDir(w.t, w.cfg.DataDir, from)
}

// copyDir copies a directory with files that only the owner may read.
func copyDir(t *testing.T, to, from string) {
	t.Helper()
	files, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	for _, f := range files {
		if f.IsDir() {
			copyDir(t, filepath.Join(to, f.Name()), filepath.Join(from, f.Name()))
			continue
		}
		if err != nil {
			break
		}
		var data []byte
		if data, err = os.ReadFile(filepath.Join(from, f.Name())); err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), data, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
