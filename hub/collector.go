package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"flotilla.dev/shared/resident"
)

// How much may be garbage, in percent of what lives. A gateway box has less memory than
// processor, so it is a fifth once the hub is up; while it reads its fleet nearly all that
// it allocates lives, and to look for garbage each time that it has grown by a fifth would
// take longer than reading. While the devices of a fleet that it knows come back, which is
// waited for too, it is a half: each leaves 100 kB of garbage, and to look for it each time
// was a quarter of what a return costs. GOGC in the environment wins.
const (
	gcPercent       = 20
	gcPercentReturn = 50
	gcPercentStart  = 100
	returning       = 40 * time.Second // a grace: who is not back by then is not ready
)

// tellCollector tells the garbage collector what there is: from nine tenths of what the
// control group allows, or of what the machine has, it works as hard as it has to.
// GOMEMLIMIT in the environment wins.
func tellCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercentStart)
	}
	if allowed := resident.Allowed(os.DirFS("/")); allowed > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(allowed / 10 * 9)
	}
}

// settleCollector is for a hub that has its fleet in memory. It returns when nothing is
// left that it is in a hurry with.
func settleCollector(ctx context.Context, fleet int) {
	own := os.Getenv("GOGC") == ""
	if fleet > 0 {
		if own {
			debug.SetGCPercent(gcPercentReturn)
		}
		select {
		case <-time.After(returning):
		case <-ctx.Done():
			return
		}
	}
	if own {
		debug.SetGCPercent(gcPercent)
	}
}
