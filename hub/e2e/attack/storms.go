package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

const stormSize = 1000 // number of devices

// storms use many good devices at once. The hub must keep its promised limits.
func storms() []attack {
	return []attack{
		{name: "joins", slow: true, by: "1,000 good devices", does: "join at once behind one address, then connect at " +
			"once, twice", run: joins, heavy: true, storm: true},
	}
}

// joins lets many devices join, connect, lose their links at once, and reconnect.
func joins(ctx context.Context, a *harness.Hub) (string, error) {
	token, err := a.Token(ctx, "--site", "oslo", "--uses", fmt.Sprint(stormSize))
	if err != nil {
		return "", err
	}
	devices := make([]*harness.Device, stormSize)
	var first atomic.Pointer[error]
	before, start := a.CPU(), time.Now()
	harness.Each(ctx, stormSize, 200, func(i int) {
		// Like the agent, a device tries again after a refusal because of too many joins.
		err := harness.Until(ctx, time.Minute, "join", func() (bool, error) {
			d, err := a.Join(ctx, token, fmt.Sprintf("pi-%04d", i), fmt.Sprintf("%016x", 0x1000+i))
			devices[i] = d
			return err == nil, err
		})
		if err != nil {
			first.CompareAndSwap(nil, &err)
		}
	})
	if err := first.Load(); err != nil {
		return "", fmt.Errorf("a good device cannot join: %w", *err)
	}
	each1 := (a.CPU() - before) / stormSize
	joined := time.Since(start)
	if _, _, err := reconnect(ctx, a, devices); err != nil {
		return "", err
	}
	p99, all, err := reconnect(ctx, a, devices)
	seen := fmt.Sprintf("joined in %s, %s of hub CPU each; back: p99 CONNACK %s, all leased after %s",
		joined.Round(100*time.Millisecond), each1.Round(100*time.Microsecond), p99.Round(time.Millisecond),
		all.Round(time.Millisecond))
	switch {
	case err != nil:
		return seen, err
	case each1 > 20*time.Millisecond:
		return seen, errors.New("a join costs more than 20 ms")
	case p99 > 5*time.Second:
		return seen, errors.New("a CONNACK takes more than 5 s")
	case all > 20*time.Second:
		return seen, errors.New("not all have their lease after 20 s")
	}
	return seen, nil
}

// reconnect connects all devices at once, with the protocol's back-off, and then closes their
// links. all is the time until the hub had every lease.
func reconnect(ctx context.Context, a *harness.Hub, devices []*harness.Device) (p99, all time.Duration, err error) {
	start := time.Now()
	took := make([]time.Duration, len(devices))
	links := make([]*harness.Link, len(devices))
	var wg sync.WaitGroup
	var first atomic.Pointer[error]
	for i, d := range devices {
		wg.Go(func() {
			wait := 200 * time.Millisecond
			for {
				at := time.Now()
				l, err := d.Online(ctx)
				if err == nil {
					err = l.Ping(20 * time.Second)
				}
				if err == nil {
					took[i], links[i] = time.Since(at), l
					return
				}
				if time.Since(start) > time.Minute || ctx.Err() != nil {
					first.CompareAndSwap(nil, &err)
					return
				}
				harness.Pause(ctx, wait)
				wait = min(2*wait, 7*time.Second)
			}
		})
	}
	wg.Wait()
	all = time.Since(start)
	for _, l := range links {
		if l != nil {
			_ = l.Close()
		}
	}
	if err := first.Load(); err != nil {
		return 0, all, fmt.Errorf("a good device does not connect: %w", *err)
	}
	slices.Sort(took)
	return took[len(took)*99/100], all, nil
}
