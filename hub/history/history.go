// Package history remembers how nodes fared: a sample of their figures every five
// minutes, for a week, in memory. Once an hour and at its end the hub appends what is new
// to a file; so kill -9 and a power cut lose an hour of it at most.
//
// A sample has 8 bytes, a node's week no more than 20 kB. The package measures nothing
// and decides nothing: what a device said and how its link fared it is told by package
// node's liveness, once a minute and for all nodes, so that a lease costs nothing here.
// What is not known is a gap: a node that was silent, a figure that its board does not
// have, a while in which no hub ran.
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
	Dir  string        // of its files
	Life time.Duration // how long samples are kept, at most Longest
	Now  func() time.Time
	// Fleet returns the nodes that there are: others are forgotten.
	Fleet func() state.Snapshot
	// Measure is what was heard of a node since it was called last; false: nothing.
	Measure func(node string) (Sample, bool)
	Log     *slog.Logger
}

const (
	lookEvery = time.Minute
	saveEvery = time.Hour
)

// A History is made by Open. The nil History remembers nothing.
type History struct {
	Config
	mu    sync.RWMutex
	nodes map[types.UID]*ring

	saved int64 // the newest slot that is in the files; only Run's goroutine looks at it
}

// Window copies n samples of a node, the first of the slot that begins at or before from.
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

// Run takes the samples until ctx is done, and writes them down.
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

// sample takes a sample of every node that was heard.
func (h *History) sample() {
	now, s := h.Now(), h.Fleet()
	slot := slotOf(now)
	type heard struct {
		uid types.UID
		w   Word
	}
	var news []heard
	there := make(map[types.UID]bool, s.Len(state.Nodes))
	for n := range s.Nodes() {
		there[n.UID] = true
		if of, ok := h.Measure(n.Name); ok {
			of[Pods] = float64(s.Usage(n.Name).Pods)
			news = append(news, heard{n.UID, Pack(of)})
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
		h.Log.Warn("what was measured in the last hour is not written down; it is tried again in an hour", "err", err)
	}
}
