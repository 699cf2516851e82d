package frame

import (
	"sync/atomic"

	"flotilla.dev/hub/listen"
)

// maxLogs is how many logs are followed or downloaded at one time.
const maxLogs = 32

// maxTerminals is how many terminals are open at one time.
const maxTerminals = 16

// tools counts what is open of each tool that holds a device's or the hub's means.
type tools struct {
	Logs      seats
	Terminals seats
	pages     listen.Shares // of the open pages; live counts them all
}

func newTools() tools {
	return tools{
		Logs:      seats{most: maxLogs, shares: listen.Shares{Most: maxLogs / 2}},
		Terminals: seats{most: maxTerminals, shares: listen.Shares{Most: maxTerminals / 2}},
		pages:     listen.Shares{Most: maxStreams / 4},
	}
}

// seats are so many for all, of which one person has half at most.
type seats struct {
	most   int64
	taken  atomic.Int64
	shares listen.Shares
}

// Enter takes a seat; leave gives it back. ok is false when none is left for this person.
func (s *seats) Enter(user string) (leave func(), ok bool) {
	mine, ok := s.shares.Enter(user)
	if !ok {
		return nil, false
	}
	if s.taken.Add(1) > s.most {
		s.taken.Add(-1)
		mine()
		return nil, false
	}
	return func() { s.taken.Add(-1); mine() }, true
}
