package cli

import (
	"context"
	"math/rand/v2"
	"time"
)

// A device that cannot reach its hub by MQTT requests a renewal over HTTPS. The answer has the
// hub's present addresses, so a fleet follows its hub to other brokers. If the broker refuses the
// device, the answer says whether the enrolment has ended.
const (
	askAddresses    = time.Minute // the first wait in an outage; each later wait is twice as long
	maxAskAddresses = 32 * time.Minute
	checkOnline     = 5 * time.Second
)

// askForAddresses requests renewals while the link is down. A random part of each wait, up to the
// length of the outage, keeps devices from asking at the same time.
func askForAddresses(ctx context.Context, online func() bool, renew chan<- struct{}) error {
	wait, down := askAddresses, time.Now()
	next := jittered(wait)
	ticker := time.NewTicker(checkOnline)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		switch {
		case online():
			wait, down = askAddresses, time.Now()
			next = jittered(wait)
		case time.Since(down) >= next:
			select {
			case renew <- struct{}{}:
			default: // a renewal is under way
			}
			wait, down = min(2*wait, maxAskAddresses), time.Now()
			next = jittered(wait)
		}
	}
}

func jittered(d time.Duration) time.Duration { return d + rand.N(d) }
