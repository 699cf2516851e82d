package main

import (
	"os"
	"runtime/debug"

	"flotilla.dev/shared/resident"
)

// How much may be garbage, in percent of what lives. A gateway box has less memory than
// processor, so it is a fifth once the hub is up; while it reads its fleet nearly all that
// it allocates lives, and to look for garbage each time that it has grown by a fifth would
// take longer than reading. GOGC in the environment wins.
const (
	gcPercent      = 20
	gcPercentStart = 100
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

// settleCollector is for a hub that has its fleet in memory.
func settleCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
