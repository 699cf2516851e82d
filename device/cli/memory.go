package cli

import (
	"context"
	"time"

	"flotilla.dev/shared/resident"
)

// releaseMemory releases unused pages of the program once a minute, for the workloads of boards with
// 512 MB. It takes a millisecond.
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
