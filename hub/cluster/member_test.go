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

// slowly is a database whose fleet takes longer to read than a lease lasts.
type slowly struct{}

func (slowly) Follow(ctx context.Context, _ uint64) (store.Delta, error) {
	select {
	case <-ctx.Done():
		return store.Delta{}, ctx.Err()
	case <-time.After(2 * leader.Lease):
		return store.Delta{Rev: 1, All: true}, nil
	}
}

// A standby may take the lead before it has read the fleet. It writes heartbeats while it reads,
// because otherwise another standby takes the lead and has to read as much.
func TestANewLeaderSendsHeartbeatsWhileItReadsTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Member{log: slog.New(slog.DiscardHandler)}
		began := time.Now()
		if f := m.caughtUp(t.Context(), newFollower("the-hub", slowly{})); f != nil {
			t.Error("caughtUp must return nil for an unread fleet")
		}
		if took := time.Since(began); took > leader.Lease/2 {
			t.Errorf("no heartbeat for %s; standbys take over after %s", took, leader.Lease)
		}
	})
}
