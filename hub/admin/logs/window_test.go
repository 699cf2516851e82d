package logs

import (
	"testing"
	"time"
	"unsafe"
)

// stepped is a moment as it would have been noted had the machine's clock been set forward since:
// its monotonic reading is what it was.
func stepped(t time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // of a time with a monotonic reading: its seconds from bit 30 on
	*wall -= uint64(by/time.Second) << 30
	return t
}

// The first thing that a hub without a battery-backed clock hears from NTP is no half an hour in
// which nobody has typed.
func TestATerminalInUseOutlivesAStepOfTheClock(t *testing.T) {
	w := newWindow(nil)
	w.opened = stepped(w.opened, 2*time.Hour)
	if wall := time.Since(w.opened.Round(0)); wall < 2*time.Hour {
		t.Fatalf("the clock has stepped by %s", wall)
	}
	if idle := w.idle(); idle < 0 || idle > untouched {
		t.Errorf("nobody has typed for %s", idle)
	}
	w.touch()
	w.opened = stepped(w.opened, -4*time.Hour)
	if idle := w.idle(); idle < 0 || idle > untouched {
		t.Errorf("the clock was set back, and nobody has typed for %s", idle)
	}
}
