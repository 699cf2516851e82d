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

// A podlessStore refuses Pods while refuses is set.
type podlessStore struct{ refuses atomic.Bool }

func (n *podlessStore) Commit(_ context.Context, rows []Row, _ uint64) error {
	for _, r := range rows {
		if n.refuses.Load() && r.Key.Kind == state.Pods {
			return fmt.Errorf("write a pod: %w", ErrFull)
		}
	}
	return nil
}

// If only the news could be committed, the running deadline of a deleted node stays.
func TestSubjectsOfNewsCommittedAloneAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &podlessStore{}
		store.refuses.Store(true)
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
		store.refuses.Store(false)
		time.Sleep(5 * time.Minute)
		if l.Snapshot().Pod("default", "kiosk").DeletionTimestamp == nil {
			t.Error("the deadline of the deleted node is lost")
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
