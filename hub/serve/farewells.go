package serve

import (
	"maps"
	"sync"
	"time"
)

// farewellLines is how often the log says that a device was told that it is its node no
// more: one that does not listen comes back every few seconds, for ever.
const farewellLines = time.Minute

// farewells are the devices of whose farewell the log has said something lately. Each
// has a certificate of ours, so there are not many.
type farewells struct {
	mu sync.Mutex
	by map[string]*farewell // by node
}

type farewell struct {
	at     time.Time // of the line
	unsaid int       // since then
}

// say tells whether there is to be a line, and how many there were not.
func (f *farewells) say(node string, now time.Time) (unsaid int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.by[node]
	if last != nil && now.Sub(last.at) < farewellLines {
		last.unsaid++
		return 0, false
	}
	if last != nil {
		unsaid = last.unsaid
	}
	maps.DeleteFunc(f.by, func(_ string, l *farewell) bool { return now.Sub(l.at) >= 10*farewellLines })
	if f.by == nil {
		f.by = map[string]*farewell{}
	}
	f.by[node] = &farewell{at: now}
	return unsaid, true
}
