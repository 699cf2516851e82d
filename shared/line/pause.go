package line

import (
	"math/rand/v2"
	"time"
)

// Pauses before a reconnection.
const (
	MinPause = 200 * time.Millisecond // upper bound before the first try; doubles
	MaxPause = 5 * time.Second
)

// Pause returns the wait before a reconnection; try counts from 0. It is at most most, and at most
// MaxPause. It is a random part of a doubling bound (full jitter), so that devices that lost a hub
// at once do not return at once; at the maximum it is between half and all of it. So a link that is
// up for five seconds is never missed.
func Pause(try int, most time.Duration) time.Duration {
	most = max(min(most, MaxPause), MinPause)
	if p := MinPause << min(max(try, 0), 10); p < most {
		return rand.N(p)
	}
	return most/2 + rand.N(most/2)
}
