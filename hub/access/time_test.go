package access

import (
	"testing"
	"time"
)

func TestAnUnsynchronizedClockLocksNoDeviceOut(t *testing.T) {
	last := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return last.Add(d) }
	far := time.Date(2040, 2, 29, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		machine, last time.Time
		kept          bool
		want          time.Time
	}{
		"a restart": {at(time.Minute), last, false, at(time.Minute)},
		"ahead by the certificates' life and grace": {at(tooLong), last, false, at(tooLong)},
		"further ahead, not synchronized":           {at(tooLong + time.Hour), last, false, last},
		"further ahead, synchronized":               {at(tooLong + time.Hour), last, true, at(tooLong + time.Hour)},
		"in 2040":                                   {far, last, false, last},
		"in 2040, synchronized":                     {far, last, true, far},
		"in 2040, without a stored time":            {far, time.Time{}, false, far},
		"behind":                                    {at(-time.Hour), last, false, last},
		"in 1970":                                   {time.Unix(600, 0), last, false, last},
		"behind, and synchronized":                  {at(-time.Hour), last, true, last},
	} {
		if got := believed(c.machine, c.last, c.kept); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if now := time.Now(); believed(now, now.Add(-2*tooLong), false).String() == now.Add(-2*tooLong).Round(0).String() {
		t.Error("the time has no monotonic clock, so setting the clock would move deadlines")
	}
}
