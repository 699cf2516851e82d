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

// Values of GOGC: garbage in percent of the live heap at which a collection starts. The steady
// value is small, because a gateway has little memory. While the hub starts, most allocations stay,
// so collecting often only costs time. While many devices return or fall silent, each makes up to
// 100 kB of garbage, and the steady value would cost a quarter of the time. GOGC in the environment
// overrides all of them.
const (
	gcPercent      = 20
	gcPercentHurry = 50
	gcPercentStart = 200
	returnTime     = 40 * time.Second // returning devices return within a grace period
	burstTime      = 10 * time.Second // devices that fall silent together do so within one lease interval
)

// A collector sets GOGC according to what the hub does.
type collector struct {
	mu    sync.Mutex
	up    bool      // whether the fleet is in memory
	until time.Time // end of the burst
	timer *time.Timer
}

var garbage collector

// begin sets the values for the start, and a memory limit of nine tenths of the control group's
// limit or of the machine's memory. GOMEMLIMIT in the environment overrides the limit.
func (c *collector) begin() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercentStart)
	}
	if allowed := resident.Allowed(os.DirFS("/")); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(allowed / 10 * 9)
	}
}

// settle is called when the fleet is in memory. It returns when the devices should have returned.
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

// hurry uses more memory to be faster for a while, because a user waits for the burst to end.
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
