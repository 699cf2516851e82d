package cluster

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/store"
)

// slowly is a database that takes longer to read than a lease lasts.
type slowly struct{}

func (slowly) Follow(ctx context.Context, _ uint64) (store.Delta, error) {
	select {
	case <-ctx.Done():
		return store.Delta{}, ctx.Err()
	case <-time.After(2 * leader.Lease):
		return store.Delta{Rev: 1, All: true}, nil
	}
}

// A standby that has not read the fleet when it takes the lead reads it while it writes heartbeats.
// Otherwise the others would take the lead from it, and have as much to read.
func TestANewLeaderReadsTheFleetWhileItBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Member{log: slog.New(slog.DiscardHandler)}
		began := time.Now()
		if f := m.caughtUp(t.Context(), newFollower("the-hub", slowly{})); f != nil {
			t.Error("an unread fleet is taken for complete")
		}
		if took := time.Since(began); took > leader.Lease/2 {
			t.Errorf("no heartbeat for %s; others wait for %s", took, leader.Lease)
		}
	})
}
