package access

import (
	"context"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/clock"
)

// tooLong is for how long no hub can have been away: every certificate of its devices would
// have ended, and the time in which it renews those that have, too.
const tooLong = pki.LeafLife + pki.RenewalGrace

// believed is what time it is, by the machine's clock and by the hub's own when that was noted
// last: never before that. A clock that nobody keeps is not believed that everybody has been away
// for too long: who does locks every device out, and remembers a time that nobody else will have
// for years.
func believed(machine, last time.Time, kept bool) time.Time {
	if last.IsZero() || !machine.Before(last) && (kept || machine.Sub(last) <= tooLong) {
		return machine
	}
	return machine.Add(last.Sub(machine)) // the machine's monotonic clock goes on
}

// Time is what time it is for a hub that begins with a database, and whether that is the machine's.
func Time(ctx context.Context, s *store.Store) (now time.Time, machines bool, err error) {
	last, err := s.LastTime(ctx)
	if err != nil {
		return time.Time{}, false, err
	}
	machine := time.Now()
	kept, _ := clock.Kept()
	now = believed(machine, last, kept)
	return now, now.Equal(machine), nil
}

// Clock goes on from Time, by the machine's monotonic clock.
func Clock(ctx context.Context, s *store.Store) (func() time.Time, error) {
	began := time.Now()
	now, _, err := Time(ctx, s)
	return func() time.Time { return now.Add(time.Since(began)) }, err
}
