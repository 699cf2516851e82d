package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

// reconnects connects and disconnects as fast as possible, each time with a new boot and a will.
func reconnects(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	const long = 20 * time.Second
	stop, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	before, wrote := a.CPU(), a.Wrote()
	var in, tried atomic.Int64
	harness.Each(stop, 100_000, 8, func(i int) {
		tried.Add(1)
		c := &harness.Device{Hub: a, ID: d.ID, Machine: d.Machine, Boot: fmt.Sprintf("boot-%d", i)}
		l, err := c.Connect(stop, c.ClientID())
		if err != nil {
			return
		}
		in.Add(1)
		_ = l.Publish("status", c.Good(nil, nil))
		_ = l.Send(harness.Packet(0x30, append(harness.Text(nil, l.Prefix+"lease"), c.Renewal()...)))
		_ = l.Close()
	})
	spent, kib := a.CPU()-before, (a.Wrote()-wrote)>>10
	seen := fmt.Sprintf("%d tries, %d connected, %s of CPU in %s, %d KiB written", tried.Load(),
		in.Load(), spent, long, kib)
	if kib > 32<<10 {
		return seen, errors.New("connections write too much to the disk")
	}
	return seen, nil
}
