package control

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/state"
)

// A narrow store has no room for Pods, as long as it is narrow.
type narrow struct{ is atomic.Bool }

func (n *narrow) Commit(_ context.Context, rows []Row, _ uint64) error {
	for _, r := range rows {
		if n.is.Load() && r.Key.Kind == state.Pods {
			return fmt.Errorf("write a pod: %w", ErrFull)
		}
	}
	return nil
}

// TestWhatNewsHandsOverIsNotLost where only the news could be remembered: a deadline that ran when a
// node was deleted goes on.
func TestWhatNewsHandsOverIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &narrow{}
		store.is.Store(true)
		l := withAKiosk(time.Now(), store)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		time.Sleep(time.Minute)
		if _, err := l.Do(ctx, func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(s.Node("pi-1"), "delete node pi-1")}, nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		store.is.Store(false)
		time.Sleep(5 * time.Minute)
		if l.Snapshot().Pod("default", "kiosk").DeletionTimestamp == nil {
			t.Error("the deadline that ran when the node was deleted is forgotten")
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
