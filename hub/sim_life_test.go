package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/store"
)

// A simHub is one life of the hub.
type simHub struct {
	store  *store.Store
	loop   *control.Loop
	desk   *ask.Desk
	broker *broker.Broker
	cancel context.CancelFunc
	over   chan error
	began  time.Time
}

// A disk is the hub's memory, which may be full.
type disk struct {
	memory
	w *world
}

func (d disk) Commit(ctx context.Context, rows []control.Row, rev uint64) error {
	if d.w.full.Load() {
		return fmt.Errorf("commit: %w", store.ErrFull)
	}
	return d.memory.Commit(ctx, rows, rev)
}

// startHub does what serve does, but for HTTPS and TLS.
func (w *world) startHub() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	st, err := store.Open(ctx, store.Options{Dir: w.cfg.DataDir, Version: "test", Log: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	start, err := recall(ctx, st, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	start = notBefore(start)
	loop, desk := newLoop(w.cfg, start, disk{memory{st}, w}, w.log)
	network := pipe.New()
	c := broker.Config{Door: &door{Loop: loop, desk: desk, log: w.log}, Log: w.log, DevListen: network}
	if w.gate != nil {
		w.gate.prepare(w, st, loop, &c)
	}
	b, err := broker.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	loop.Broker, desk.Broker = switchboard{b, w}, b
	h := &simHub{store: st, loop: loop, desk: desk, broker: b, cancel: cancel, over: make(chan error, 3), began: time.Now()}
	w.look.follow(ctx, h, start)
	go func() { h.over <- loop.Run(ctx) }()
	if _, err := loop.Do(ctx, furnish(w.log)); err != nil {
		w.t.Fatal(err)
	}
	go func() { h.over <- b.Run(ctx) }()
	if w.gate != nil {
		w.gate.open(ctx, h)
	}
	w.mu.Lock()
	w.hub, w.net = h, network
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
	w.hub, w.net = nil, nil
	w.mu.Unlock()
	h.cancel()
	if err := errors.Join(<-h.over, <-h.over); err != nil {
		w.t.Error(err)
	}
	if w.gate != nil {
		w.gate.over.Wait()
	}
	w.look.unfollow()
	if err := h.store.Close(); err != nil {
		w.t.Error(err)
	}
}

// crashHub ends the hub as a power cut does: what it does while it goes down does
// not reach the disk.
func (w *world) crashHub() {
	w.t.Helper()
	synctest.Wait()
	saved := w.saveDisk("at-the-power-cut")
	w.stopHub()
	w.loadDisk(saved)
}

// saveDisk copies the hub's data directory as it is on the disk now.
func (w *world) saveDisk(name string) string {
	w.t.Helper()
	to := filepath.Join(w.dir, name)
	if err := os.RemoveAll(to); err != nil {
		w.t.Fatal(err)
	}
	copyDir(w.t, to, w.cfg.DataDir)
	return to
}

// loadDisk puts a saved data directory into the place of the hub's.
func (w *world) loadDisk(from string) {
	w.t.Helper()
	if err := os.RemoveAll(w.cfg.DataDir); err != nil {
		w.t.Fatal(err)
	}
	copyDir(w.t, w.cfg.DataDir, from)
}

// copyDir copies a directory, all of it fit for nobody else's eyes.
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
