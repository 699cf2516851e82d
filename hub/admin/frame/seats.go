package frame

import (
	"sync/atomic"

	"flotilla.dev/hub/listen"
)

// maxLogs is how many logs may be open at a time.
const maxLogs = 32

// maxTerminals is how many terminals may be open at a time.
const maxTerminals = 16

// tools limits the open tools, because each uses resources of a device or of the hub.
type tools struct {
	Logs      seats
	Terminals seats
	pages     listen.Shares // of open pages per user; live limits their total
}

func newTools() tools {
	return tools{
		Logs:      seats{most: maxLogs, shares: listen.Shares{Most: maxLogs / 2}},
		Terminals: seats{most: maxTerminals, shares: listen.Shares{Most: maxTerminals / 2}},
		pages:     listen.Shares{Most: maxStreams / 4},
	}
}

// seats limits how many are open in total; one user may have half of them.
type seats struct {
	most   int64
	taken  atomic.Int64
	shares listen.Shares
}

// Enter takes a seat; leave returns it. ok is false when none is left for this user.
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
