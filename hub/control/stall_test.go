package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/state"
)

func TestAStallIsATimeInWhichTheLoopDidNotLook(t *testing.T) {
	var s stalls
	s.begin(3 * time.Second)
	for _, c := range []struct {
		says  string
		at    time.Duration
		ended time.Duration
		found bool
	}{
		{"what was before the beginning counts as one", 3 * time.Second, 3 * time.Second, false},
		{"a second later all is well", 4 * time.Second, 3 * time.Second, false},
		{"a late check is none", 9 * time.Second, 3 * time.Second, false},
		{"a very late one is", 9*time.Second + stallMost + 1, 9*time.Second + stallMost + 1, true},
		{"it is found once", 9*time.Second + stallMost + 2, 9*time.Second + stallMost + 1, false},
		{"the next one counts for itself", 300 * time.Second, 300 * time.Second, true},
		{"two checks at one moment may come in any order", 299 * time.Second, 300 * time.Second, false},
	} {
		if ended, _, found := s.check(c.at); ended != c.ended || found != c.found {
			t.Errorf("%s: ended %s, found %v", c.says, ended, found)
		}
	}
}

func TestAfterAStallEverybodyHasTheirFullGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := New(Config{Start: state.Empty("salt", began)})
		time.Sleep(20 * time.Second) // a slow start: nobody could be heard
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		look := func() time.Duration {
			if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			return l.Snapshot().Forgiven().Sub(began)
		}
		if got := look(); got != 20*time.Second {
			t.Errorf("the grace counts from %s after the process began, wants from when devices could be heard", got)
		}
		time.Sleep(10 * time.Minute)
		if got := look(); got != 20*time.Second {
			t.Errorf("ten quiet minutes count as a stall: %s", got)
		}
		time.Sleep(stallBeat / 2)
		l.stalls.mu.Lock()
		l.stalls.beat -= 200 * time.Second // as after SIGSTOP and SIGCONT: it has not looked for so long
		l.stalls.mu.Unlock()
		at := time.Since(began)
		if got := look(); got != at {
			t.Errorf("everybody is forgiven at %s, wants %s", got, at)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
