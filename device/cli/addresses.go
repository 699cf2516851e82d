package cli

import (
	"context"
	"math/rand/v2"
	"time"
)

// A device that cannot reach its hub by MQTT requests a renewal over HTTPS. The answer has the
// hub's present addresses, so a fleet moves to other brokers by itself; it also says that the
// enrolment has ended if the broker refuses the device.
const (
	askAddresses     = time.Minute // of the outage; doubles
	askAddressesMost = 32 * time.Minute
	lookOnline       = 5 * time.Second
)

// askForAddresses requests renewals while the link is down. The times differ between devices by as
// much as the outage has lasted.
func askForAddresses(ctx context.Context, online func() bool, renew chan<- struct{}) error {
	wait, down := askAddresses, time.Now()
	next := jittered(wait)
	look := time.NewTicker(lookOnline)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
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
			wait, down = min(2*wait, askAddressesMost), time.Now()
			next = jittered(wait)
		}
	}
}

func jittered(d time.Duration) time.Duration { return d + rand.N(d) }
