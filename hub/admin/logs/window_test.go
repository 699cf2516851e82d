package logs

import (
	"testing"
	"time"
	"unsafe"
)

// stepped returns t as if the wall clock had been set since; the monotonic reading is unchanged.
func stepped(t time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // a time with a monotonic reading has its seconds from bit 30 on
	*wall -= uint64(by/time.Second) << 30
	return t
}

// Setting the clock by NTP does not count as half an hour without input.
func TestAClockStepDoesNotCloseATerminal(t *testing.T) {
	w := newWindow(nil)
	w.opened = stepped(w.opened, 2*time.Hour)
	if wall := time.Since(w.opened.Round(0)); wall < 2*time.Hour {
		t.Fatalf("the clock has stepped by %s", wall)
	}
	if idle := w.idle(); idle < 0 || idle > untouched {
		t.Errorf("the time without input is %s", idle)
	}
	w.touch()
	w.opened = stepped(w.opened, -4*time.Hour)
	if idle := w.idle(); idle < 0 || idle > untouched {
		t.Errorf("the clock was set back, and the time without input is %s", idle)
	}
}
