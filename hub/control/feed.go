package control

import (
	"errors"
	"slices"
	"sync"

	"flotilla.dev/hub/state"
)

// ErrExpired means that changes so old are not remembered any more: list again.
var ErrExpired = errors.New("the changes since that revision are no longer in memory")

// A Feed is the newest changes in order of their revisions, for watchers. It is
// bounded: a watcher that falls behind is told so and harms nobody.
type Feed struct {
	mu   sync.Mutex
	size int
	from uint64 // every change after this revision is in ring
	ring []state.Applied
	more chan struct{}
}

// NewFeed returns a feed that remembers the newest size changes after revision from.
func NewFeed(size int, from uint64) *Feed {
	return &Feed{size: size, from: from, more: make(chan struct{})}
}

// Since returns the changes after a revision, and a channel that is closed when
// there are more. A revision of the future simply has none yet.
func (f *Feed) Since(rev uint64) (changes []state.Applied, more <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rev < f.from {
		return nil, nil, ErrExpired
	}
	i, _ := slices.BinarySearchFunc(f.ring, rev+1, func(a state.Applied, rev uint64) int {
		switch {
		case a.Rev < rev:
			return -1
		case a.Rev > rev:
			return 1
		}
		return 0
	})
	return slices.Clip(f.ring[i:]), f.more, nil
}

// append adds changes. Slices that were handed out stay as they were: the ring is
// only ever appended to, or replaced.
func (f *Feed) append(changes []state.Applied) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring = append(f.ring, changes...)
	if len(f.ring) > 2*f.size {
		drop := len(f.ring) - f.size
		f.from = f.ring[drop-1].Rev
		f.ring = slices.Clone(f.ring[drop:])
	}
	close(f.more)
	f.more = make(chan struct{})
}
