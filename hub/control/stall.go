package control

import (
	"context"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

const (
	// stallBeat is how often the loop makes sure that this process runs at all.
	stallBeat = time.Second
	// maxBeatGap is the longest time between two of these checks that can still be
	// called running: what devices sent in a longer one may not have been heard.
	maxBeatGap = 5 * time.Second
)

// stalls detects that the hub itself stood still: its process was stopped, its
// virtual machine paused, its machine starved. While it did, it heard nobody, so
// nobody's silence in that time means anything.
type stalls struct {
	mu    sync.Mutex
	beat  time.Duration // of the newest check; times are since the loop was made
	ended time.Duration // when the newest stall did
	took  time.Duration
}

// begin counts the time until at as one in which nobody could be heard.
func (s *stalls) begin(at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat, s.ended = at, at
}

// check tells at time at when the newest stall has ended, and whether this very check
// has found it.
func (s *stalls) check(at time.Duration) (ended, took time.Duration, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gap := at - s.beat; gap > maxBeatGap {
		s.ended, s.took, found = at, gap, true
	}
	s.beat = max(s.beat, at)
	return s.ended, s.took, found
}

// stalled returns until when the hub could hear nobody.
func (l *Loop) stalled() time.Time {
	ended, took, found := l.stalls.check(l.Age())
	if found {
		l.Log.Warn("the hub itself stood still: every node has its full grace again", "for", took.Round(time.Second))
	}
	return l.started.Add(ended)
}

// watchStalls checks until ctx is done.
func (l *Loop) watchStalls(ctx context.Context) {
	defer panics.Catch("stalls")
	beat := time.NewTicker(stallBeat)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			l.stalled()
		case <-ctx.Done():
			return
		}
	}
}
