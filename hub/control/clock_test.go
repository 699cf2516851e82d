package control

import (
	"testing"
	"time"
	"unsafe"
)

// NTP may set the clock by an hour while the hub runs. The hub decides by Age, and computes its
// time from Age. A synctest bubble has no monotonic clock, so this test runs without one.
func TestSettingTheClockMovesNoDeadline(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		l := New(Config{})
		before, now := l.Age(), l.Now()
		setClock(&l.began, step)
		if moved := l.Age() - before; moved < 0 || moved > 30*time.Minute {
			t.Errorf("a clock that is set by %s moves the loop's age by %s", step, moved)
		}
		if moved := l.Now().Sub(now); moved < 0 || moved > 30*time.Minute {
			t.Errorf("a clock that is set by %s moves the hub's time by %s", step, moved)
		}
	}
}

// setClock changes a moment as if the clock had been set by step since: another wall clock, the
// same monotonic clock. In a time.Time with both, the seconds start at the 31st bit of the first
// word.
func setClock(noted *time.Time, step time.Duration) {
	*(*uint64)(unsafe.Pointer(noted)) -= uint64(step/time.Second) << 30
}
