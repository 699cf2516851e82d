package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// reconnects comes and goes as fast as it can, with a new boot and a will each time.
func reconnects(ctx context.Context, a *arena) (string, error) {
	d, err := a.newDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	const long = 20 * time.Second
	stop, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	before, wrote := a.cpu(), a.wrote()
	var in, tried atomic.Int64
	each(stop, 100_000, 8, func(i int) {
		tried.Add(1)
		c := &device{a: a, id: d.id, machine: d.machine, boot: fmt.Sprintf("boot-%d", i)}
		l, err := c.connect(stop, c.clientID())
		if err != nil {
			return
		}
		in.Add(1)
		_ = l.publish("status", c.good(nil, nil))
		_ = l.send(packet(0x30, append(text(nil, l.prefix+"lease"), c.renewal()...)))
		_ = l.Close()
	})
	spent, kib := a.cpu()-before, (a.wrote()-wrote)>>10
	seen := fmt.Sprintf("%d tries, %d let in, %s of CPU in %s, %d KiB written", tried.Load(), in.Load(), spent, long, kib)
	if kib > 32<<10 {
		return seen, errors.New("connections wear the disk out")
	}
	return seen, nil
}
