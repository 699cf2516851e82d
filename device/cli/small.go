package cli

import (
	"context"
	"time"

	"flotilla.dev/shared/resident"
)

// keepSmall lets go, once a minute, of the parts of the program that nobody uses:
// on a board with 512 MB the workloads have a use for them. It takes a millisecond.
func keepSmall(ctx context.Context) error {
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
