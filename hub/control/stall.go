package control

import (
	"context"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

const (
	// stallBeat is the interval of checks that this process runs.
	stallBeat = time.Second
	// maxBeatGap is the longest gap between two checks of a running process. During a longer gap,
	// messages of devices may have been lost.
	maxBeatGap = 5 * time.Second
)

// stalls detects that the process was stopped, its virtual machine paused, or its machine
// overloaded. A node that is silent in that time may be healthy.
type stalls struct {
	mu    sync.Mutex
	beat  time.Duration // age of the loop at the newest check
	ended time.Duration // end of the newest stall
	took  time.Duration
}

// begin counts the time until at as a stall.
func (s *stalls) begin(at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat, s.ended = at, at
}

// check returns the end of the newest stall, and whether this check has found it.
func (s *stalls) check(at time.Duration) (ended, took time.Duration, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gap := at - s.beat; gap > maxBeatGap {
		s.ended, s.took, found = at, gap, true
	}
	s.beat = max(s.beat, at)
	return s.ended, s.took, found
}

// stalled returns the time until which the hub could not receive messages.
func (l *Loop) stalled() time.Time {
	ended, took, found := l.stalls.check(l.Age())
	if found {
		l.Log.Warn("the hub was suspended: every node gets its full grace period again", "for", took.Round(time.Second))
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
