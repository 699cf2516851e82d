package cli

import (
	"context"
	"math/rand/v2"
	"time"
)

// A device whose hub is out of reach by MQTT asks it over HTTPS for a renewal, whose answer
// says where it is now: a fleet moves from one broker to others by itself, and hears that its
// enrolment has ended also where a broker does not let it in to be told.
const (
	askAddresses     = time.Minute // out of reach; doubles
	askAddressesMost = 32 * time.Minute
	lookOnline       = 5 * time.Second
)

// askForAddresses asks for renewals while the link is down, at moments that differ from
// device to device by as much as the time that has passed.
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
			default: // one is under way
			}
			wait, down = min(2*wait, askAddressesMost), time.Now()
			next = jittered(wait)
		}
	}
}

func jittered(d time.Duration) time.Duration { return d + rand.N(d) }
