// Package history stores samples of each node's figures: one every five minutes, for a week, in
// memory. The hub appends new samples to a file once an hour and when it stops, so kill -9 or a
// power cut loses at most an hour.
//
// A sample takes 8 bytes, a node's week at most 20 kB. The package neither measures nor decides: it
// reads package node's liveness once a minute for all nodes, so that a lease costs nothing here.
// Unknown values are gaps: a silent node, a figure that a board does not have, a time without a
// hub.
package history

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// A Config is what a History needs.
type Config struct {
	Dir  string        // directory of the files
	Life time.Duration // how long samples are stored, at most Longest
	Now  func() time.Time
	// Fleet returns the fleet. Samples of nodes that are not in it are dropped.
	Fleet func() state.Snapshot
	// Measure returns a node's figures since the last call; false: no figures.
	Measure func(node string) (Sample, bool)
	Log     *slog.Logger
}

const (
	lookEvery = time.Minute
	saveEvery = time.Hour
)

// A History is made by Open. The nil History stores nothing.
type History struct {
	Config
	mu    sync.RWMutex
	nodes map[types.UID]*ring

	saved int64 // the newest slot in the files; only Run's goroutine uses it
}

// Window copies n samples of a node, starting with the slot that contains from.
func (h *History) Window(uid types.UID, from time.Time, n int) []Word {
	all := make([]Word, n)
	if h == nil {
		return all
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	r := h.nodes[uid]
	if r == nil {
		return all
	}
	first, oldest := slotOf(from), slotOf(h.Now().Add(-h.Life))
	for i := range all {
		if slot := first + int64(i); slot >= oldest {
			all[i] = r.at(slot)
		}
	}
	return all
}

// Run takes samples and stores them until ctx is done.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	next := h.Now().Add(saveEvery)
	for {
		select {
		case <-ctx.Done():
			h.sample()
			h.keep()
			return nil
		case <-tick.C:
		}
		h.sample()
		if now := h.Now(); !now.Before(next) {
			next = now.Add(saveEvery)
			h.keep()
		}
	}
}

// sample takes a sample of every node with new figures.
func (h *History) sample() {
	now, s := h.Now(), h.Fleet()
	slot := slotOf(now)
	type measured struct {
		uid types.UID
		w   Word
	}
	var news []measured
	there := make(map[types.UID]bool, s.Len(state.Nodes))
	for n := range s.Nodes() {
		there[n.UID] = true
		if of, ok := h.Measure(n.Name); ok {
			of[Pods] = float64(s.Usage(n.Name).Pods)
			news = append(news, measured{n.UID, Pack(of)})
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range news {
		h.ring(n.uid).note(slot, n.w)
	}
	oldest := slotOf(now.Add(-h.Life))
	for uid, r := range h.nodes {
		if r.forget(oldest) || !there[uid] {
			delete(h.nodes, uid)
		}
	}
}

func (h *History) ring(uid types.UID) *ring {
	r := h.nodes[uid]
	if r == nil {
		r = &ring{}
		h.nodes[uid] = r
	}
	return r
}

func (h *History) keep() {
	if err := h.save(); err != nil {
		h.Log.Warn("samples of the last hour cannot be stored; next try in an hour", "err", err)
	}
}
