package main

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
	"flotilla.dev/shared/resident"
)

// GOGC values: how much garbage may accumulate, in percent of the live heap. A gateway has little
// memory, so the steady value is small. While the hub starts, nearly all that it allocates stays,
// and collecting more often only costs time. While many devices return or fall silent, each leaves
// up to 100 kB of garbage, and the steady value would cost a quarter of the time. The environment's
// GOGC wins.
const (
	gcPercent      = 20
	gcPercentHurry = 50
	gcPercentStart = 200
	returnTime     = 40 * time.Second // devices that return do so within a grace period
	burstTime      = 10 * time.Second // devices that fall silent together do so within a lease interval
)

// A collector tunes the garbage collector to what the hub does.
type collector struct {
	mu    sync.Mutex
	up    bool      // the fleet is in memory
	until time.Time // when the burst ends
	timer *time.Timer
}

var garbage collector

// begin sets the values for the start, and a memory limit of nine tenths of the control group's
// limit or the machine's memory. The environment's GOMEMLIMIT wins.
func (c *collector) begin() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercentStart)
	}
	if allowed := resident.Allowed(os.DirFS("/")); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(allowed / 10 * 9)
	}
}

// settle begins once the fleet is in memory. It returns when the devices should be back.
func (c *collector) settle(ctx context.Context, fleet int) {
	c.mu.Lock()
	c.up = true
	c.mu.Unlock()
	if fleet == 0 {
		c.hurry(0)
		return
	}
	c.hurry(returnTime)
	select {
	case <-time.After(returnTime):
	case <-ctx.Done():
	}
}

// hurry trades memory for speed for a while, because a user waits for the burst to end.
func (c *collector) hurry(long time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.Now().Add(long)
	if os.Getenv("GOGC") != "" || !c.up || end.Before(c.until) {
		return
	}
	c.until = end
	if c.timer != nil {
		c.timer.Stop()
	}
	if long == 0 {
		debug.SetGCPercent(gcPercent)
		return
	}
	debug.SetGCPercent(gcPercentHurry)
	c.timer = time.AfterFunc(long, func() {
		defer panics.Catch("memory")
		c.hurry(0)
	})
}
