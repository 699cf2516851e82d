package cli

import (
	"context"
	"time"

	"flotilla.dev/shared/resident"
)

// releaseMemory returns unused pages to the kernel once a minute, since boards with 512 MB need
// them for workloads. One release takes a millisecond.
func releaseMemory(ctx context.Context) error {
	resident.SmallPages()
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		resident.DropProgram()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
