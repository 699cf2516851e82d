package line

import (
	"math/rand/v2"
	"time"
)

// Pauses before a reconnection.
const (
	MinPause = 200 * time.Millisecond // upper bound of the first pause; it doubles
	MaxPause = 5 * time.Second
)

// Pause returns the wait before a reconnection; try counts from 0. It is at most most, and at most
// MaxPause. It is a random part of a doubling bound (full jitter), so that devices that lose a hub
// at the same time do not return at the same time. At the maximum it is between half of the bound
// and the bound, so a device does not miss a link that is up for five seconds.
func Pause(try int, most time.Duration) time.Duration {
	most = max(min(most, MaxPause), MinPause)
	if p := MinPause << min(max(try, 0), 10); p < most {
		return rand.N(p)
	}
	return most/2 + rand.N(most/2)
}
