package control

import (
	"testing"
	"time"
	"unsafe"
)

// NTP sets the clock of a gateway box by an hour while the hub runs. A synctest bubble has no
// monotonic clock, so this is held outside one: all that the hub decides by is Age, and its time
// is made of that.
func TestAClockThatIsSetWhileTheHubRunsMovesNoDeadline(t *testing.T) {
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

// setClock makes a moment that was noted what it is for a clock that is then set by a step: its
// wall clock was another, its monotonic clock the same. A moment of Go's with both holds seconds
// from the 31st bit of its first word on.
func setClock(noted *time.Time, step time.Duration) {
	*(*uint64)(unsafe.Pointer(noted)) -= uint64(step/time.Second) << 30
}
