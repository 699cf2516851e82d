package access

import (
	"context"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/clock"
)

// tooLong is longer than any hub is switched off: by then all certificates of devices have expired,
// and so has the time to renew them.
const tooLong = pki.LeafLife + pki.RenewalGrace

// believed returns the time by the machine's clock and the hub's last stored time. The result is
// never earlier than the stored time. It ignores an unsynchronized clock that is ahead by more than
// tooLong, because that would lock out every device, and the stored time would stay wrong for
// years.
func believed(machine, last time.Time, kept bool) time.Time {
	if last.IsZero() || !machine.Before(last) && (kept || machine.Sub(last) <= tooLong) {
		return machine
	}
	return machine.Add(last.Sub(machine)) // with the machine's monotonic clock
}

// Time returns the time at which a hub with this database starts, and whether it is the machine's
// time.
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

// Clock continues Time by the machine's monotonic clock.
func Clock(ctx context.Context, s *store.Store) (func() time.Time, error) {
	began := time.Now()
	now, _, err := Time(ctx, s)
	return func() time.Time { return now.Add(time.Since(began)) }, err
}
