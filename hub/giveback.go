package main

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

// spare is how much memory may lie idle before it is given back, in bytes.
const spare = 12 << 20

// giveBack returns idle memory to the operating system once a minute: after a
// thousand devices have reconnected at once, much of it lies idle, and a gateway
// box has other uses for it.
func giveBack(ctx context.Context) error {
	idle := []runtimemetrics.Sample{{Name: "/memory/classes/heap/free:bytes"}}
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if runtimemetrics.Read(idle); idle[0].Value.Uint64() > spare {
			debug.FreeOSMemory()
		}
	}
}
