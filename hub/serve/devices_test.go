package serve

import (
	"fmt"
	"testing"
	"time"
)

func TestADismissalIsLoggedOnceAMinuteForEachNode(t *testing.T) {
	var f dismissals
	now, lines, suppressed := time.Unix(1e9, 0), 0, 0
	for range 1200 { // ten minutes, twice a second
		if n, ok := f.shouldLog("pi-1", now); ok {
			lines++
			suppressed += n
		}
		now = now.Add(time.Second / 2)
	}
	if lines != 10 || suppressed != 9*119 {
		t.Errorf("%d lines, with %d suppressed; want 10 and %d", lines, suppressed, 9*119)
	}
	if _, ok := f.shouldLog("pi-2", now); !ok {
		t.Error("another node's dismissal is not logged")
	}
	for i := range 1000 {
		now = now.Add(time.Minute)
		f.shouldLog(fmt.Sprint("pi-", i), now)
	}
	if len(f.by) > 11 {
		t.Errorf("%d devices are stored", len(f.by))
	}
}
