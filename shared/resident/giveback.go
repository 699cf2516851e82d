package resident

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

// What may lie idle or be garbage before it is given back, and how many garbage
// collections make a burst.
const (
	spare = 4 << 20
	burst = 8
)

// GiveBack returns memory that nobody uses to the operating system: a gateway box
// has other uses for it. It begins with what the start of the process has left; after a
// burst, such as a fleet that registers, it does so as soon as that is over; otherwise it
// thinks of it once a minute. With a thousand nodes each time takes some 30 ms.
func GiveBack(ctx context.Context) error {
	m := []runtimemetrics.Sample{
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/automatic:gc-cycles"},
	}
	const look = 5 * time.Second
	tick := time.NewTicker(look)
	defer tick.Stop()
	var then, last uint64 // collections when memory was given back, and at the last look
	SmallPages()
	debug.FreeOSMemory()
	DropProgram()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		runtimemetrics.Read(m)
		free, objects, live, cycles := m[0].Value.Uint64(), m[1].Value.Uint64(), m[2].Value.Uint64(), m[3].Value.Uint64()
		over := cycles == last && cycles >= then+burst
		minute := n%int(time.Minute/look) == 0
		if over || minute && free+objects > live+spare {
			debug.FreeOSMemory() // it also makes stacks small again
			then = cycles
		}
		if over || minute || n == 2 {
			DropProgram()
		}
		last = cycles
	}
}
