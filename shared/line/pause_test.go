package line

import (
	"testing"
	"time"
)

func TestPauseGrowsToItsMaximum(t *testing.T) {
	for _, c := range []struct {
		try           int
		most          time.Duration
		shortest, top time.Duration // the longest pause stays below top
	}{
		{-1, time.Hour, 0, 200 * time.Millisecond},
		{0, time.Hour, 0, 200 * time.Millisecond},
		{1, time.Hour, 0, 400 * time.Millisecond},
		{4, time.Hour, 0, 3200 * time.Millisecond},
		{5, time.Hour, 2500 * time.Millisecond, 5 * time.Second},
		{1 << 40, time.Hour, 2500 * time.Millisecond, 5 * time.Second},
		{3, time.Second, 500 * time.Millisecond, time.Second},
		{2, time.Second, 0, 800 * time.Millisecond},
		{9, 0, 100 * time.Millisecond, 200 * time.Millisecond},
		{9, -time.Second, 100 * time.Millisecond, 200 * time.Millisecond},
	} {
		least, longest := time.Hour, time.Duration(0)
		for range 2000 {
			p := Pause(c.try, c.most)
			least, longest = min(least, p), max(longest, p)
		}
		reach := (c.top - c.shortest) / 50
		if least < c.shortest || least > c.shortest+reach || longest >= c.top || longest < c.top-reach {
			t.Errorf("try %d, at most %s: pauses of %s to %s, want %s to %s", c.try, c.most, least, longest,
				c.shortest, c.top)
		}
	}
}

// A link that is alternately up and down for five seconds is found in every period.
func TestAnAlternatingLinkIsFoundInEveryPeriod(t *testing.T) {
	const up = MaxPause
	for range 100 {
		at, found := time.Duration(0), map[int]bool{}
		for try := 5; at < time.Hour; try++ {
			at += Pause(try, time.Hour)
			if at%(2*up) >= up {
				found[int(at/(2*up))] = true
			}
		}
		for i := range int(time.Hour / (2 * up)) {
			if !found[i] {
				t.Fatalf("the link is not found in period %d", i)
			}
		}
	}
}
