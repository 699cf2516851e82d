package join

import (
	"runtime/debug"
	"sync"
	"time"
)

// built is when this program was made: no clock that is right says less.
var built = sync.OnceValue(func() time.Time {
	floor := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // of a build without version control
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return later(floor, t)
			}
		}
	}
	return floor
})

// Clock is by what time certificates are judged: the device's own, but never
// before the program was built, nor before lastKnown.
func Clock(lastKnown time.Time) func() time.Time {
	floor := later(built(), lastKnown)
	return func() time.Time { return later(time.Now(), floor) }
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
