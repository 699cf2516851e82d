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

// How much may be garbage, in percent of what lives. A gateway box has less memory than
// processor, so it is a fifth once the hub is up; while it reads its fleet nearly all that
// it allocates lives, and to look for garbage each time that it has grown by a fifth would
// take longer than reading: it may grow threefold, which takes a tenth more memory than twofold
// and a twentieth less time. While the devices of a fleet that it knows come back, and while
// many of them fall silent at once, which is waited for too, it is a half: each leaves up to
// 100 kB of garbage, and to look for it each time was a quarter of what a return costs. GOGC
// in the environment wins.
const (
	gcPercent      = 20
	gcPercentHurry = 50
	gcPercentStart = 200
	returning      = 40 * time.Second // a grace: who is not back by then is not ready
	storming       = 10 * time.Second // what falls silent at once does so within a lease interval
)

// A collector is the process's garbage collector, as it is told what there is to do.
type collector struct {
	mu    sync.Mutex
	up    bool      // the fleet is in memory
	until time.Time // there is no hurry any more
	calm  *time.Timer
}

var garbage collector

// begin tells the garbage collector what there is: from nine tenths of what the control
// group allows, or of what the machine has, it works as hard as it has to. GOMEMLIMIT in
// the environment wins.
func (c *collector) begin() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercentStart)
	}
	if allowed := resident.Allowed(os.DirFS("/")); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(allowed / 10 * 9)
	}
}

// settle is for a hub that has its fleet in memory. It returns when the fleet is back, or should
// be.
func (c *collector) settle(ctx context.Context, fleet int) {
	c.mu.Lock()
	c.up = true
	c.mu.Unlock()
	if fleet == 0 {
		c.hurry(0)
		return
	}
	c.hurry(returning)
	select {
	case <-time.After(returning):
	case <-ctx.Done():
	}
}

// hurry says that for so long something is done that is waited for.
func (c *collector) hurry(long time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.Now().Add(long)
	if os.Getenv("GOGC") != "" || !c.up || end.Before(c.until) {
		return
	}
	c.until = end
	if c.calm != nil {
		c.calm.Stop()
	}
	if long == 0 {
		debug.SetGCPercent(gcPercent)
		return
	}
	debug.SetGCPercent(gcPercentHurry)
	c.calm = time.AfterFunc(long, func() {
		defer panics.Catch("memory")
		c.hurry(0)
	})
}
