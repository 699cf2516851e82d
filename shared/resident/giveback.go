package resident

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

// Limits of idle memory and garbage, and the number of garbage collections that make a burst.
const (
	spare = 4 << 20
	burst = 8
)

// GiveBack returns unused memory to the operating system: after the start of the process, after a
// burst such as a fleet that registers, and otherwise once a minute. One release takes about 30 ms
// with a thousand nodes.
func GiveBack(ctx context.Context) error {
	m := []runtimemetrics.Sample{
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/automatic:gc-cycles"},
	}
	const look = 5 * time.Second
	tick := time.NewTicker(look)
	defer tick.Stop()
	var released, last uint64 // number of collections at the last release, and at the last check
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
		over := cycles == last && cycles >= released+burst
		minute := n%int(time.Minute/look) == 0
		if over || minute && free+objects > live+spare {
			debug.FreeOSMemory() // the call also shrinks stacks
			released = cycles
		}
		if over || minute || n == 2 {
			DropProgram()
		}
		last = cycles
	}
}
