package control

import (
	"errors"
	"slices"
	"sync"
	"time"

	"flotilla.dev/hub/state"
)

// ErrExpired means that the requested changes are no longer in memory: list again.
var ErrExpired = errors.New("the changes since that revision are no longer in memory")

// A Feed holds the newest changes in the order of their revisions, for watchers. It is bounded: a
// slow watcher gets ErrExpired and does not delay other watchers.
type Feed struct {
	mu    sync.Mutex
	size  int
	from  uint64 // every change after this revision is in ring
	ring  []state.Applied
	bytes int // size of the changes in ring
	more  chan struct{}
	marks []mark // when the changes arrived
}

// A mark says that every change up to rev had arrived at its time.
type mark struct {
	rev uint64
	at  time.Time
}

// historyAge is how long changes stay in memory, so that a client can reconnect.
const historyAge = 5 * time.Minute

// historyBytes limits the changes in memory by their size in the database. Their size in memory is
// a few times larger.
const historyBytes = 32 << 20

// minChangeBytes is counted for a change that is smaller.
const minChangeBytes = 512

// NewFeed returns a feed of the newest size changes after revision from.
func NewFeed(size int, from uint64) *Feed {
	return &Feed{size: size, from: from, more: make(chan struct{})}
}

// Since returns the changes after a revision, and a channel that is closed when more arrive. A
// future revision has no changes yet.
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

// append adds changes. Slices that were returned earlier stay valid: the ring is only appended to
// or replaced.
func (f *Feed) append(changes []state.Applied, now time.Time) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring = append(f.ring, changes...)
	for _, a := range changes {
		f.bytes += max(a.Bytes, minChangeBytes)
	}
	f.marks = append(f.marks, mark{changes[len(changes)-1].Rev, now})
	if len(f.ring) > 2*f.size {
		f.drop(f.ring[len(f.ring)-f.size-1].Rev)
	}
	if f.bytes > historyBytes {
		left := f.bytes
		for _, a := range f.ring {
			if left -= max(a.Bytes, minChangeBytes); left <= historyBytes*3/4 {
				f.drop(a.Rev)
				break
			}
		}
	}
	close(f.more)
	f.more = make(chan struct{})
}

// forget drops the changes that are older than historyAge.
func (f *Feed) forget(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := uint64(0)
	for _, m := range f.marks {
		if now.Sub(m.at) < historyAge {
			break
		}
		old = m.rev
	}
	if old > f.from {
		f.drop(old)
	}
}

// drop drops the changes up to a revision.
func (f *Feed) drop(rev uint64) {
	f.from = rev
	i := slices.IndexFunc(f.ring, func(a state.Applied) bool { return a.Rev > rev })
	if i < 0 {
		i = len(f.ring)
	}
	for _, a := range f.ring[:i] {
		f.bytes -= max(a.Bytes, minChangeBytes)
	}
	f.ring = slices.Clone(f.ring[i:])
	f.marks = slices.DeleteFunc(f.marks, func(m mark) bool { return m.rev <= rev })
}
