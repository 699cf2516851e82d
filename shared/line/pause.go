package line

import (
	"math/rand/v2"
	"time"
)

// Pauses before a line is made anew.
const (
	MinPause = 200 * time.Millisecond // at most, before the first try; doubles
	MaxPause = 5 * time.Second
)

// Pause is how long to wait before a try, counted from 0, to make a line anew that was lost: at
// most most, and never more than MaxPause. It is any part of what doubles (full jitter), so that
// those who lost a hub at one moment do not come back at one moment; once it has grown, the second
// half of the longest. So who tries for days tries every four seconds, and a line that comes and
// goes is not missed for long: no time of five seconds in which it is there passes without a try.
func Pause(try int, most time.Duration) time.Duration {
	most = max(min(most, MaxPause), MinPause)
	if p := MinPause << min(max(try, 0), 10); p < most {
		return rand.N(p)
	}
	return most/2 + rand.N(most/2)
}
