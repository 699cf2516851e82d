package cluster

import (
	"cmp"
	"sort"
	"sync"
	"time"

	"flotilla.dev/hub/leader"
)

const (
	// standbyTimeout is after how long without an announcement a standby counts as gone: five
	// intervals.
	standbyTimeout = 5 * leader.Beat
	maxStandbys    = 16
)

// standbys are the announced standbys. They are not stored: the next leader receives announcements
// within seconds.
type standbys struct {
	mu  sync.Mutex
	all map[string]announcement // by address: two hubs on one machine have the same name
}

type announcement struct {
	leader.Status
	at time.Time
}

// announced handles a standby's announcement.
func (s *standbys) announced(st leader.Status) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeSilent(now)
	if _, known := s.all[st.Address]; !known && len(s.all) >= maxStandbys {
		return
	}
	if s.all == nil {
		s.all = map[string]announcement{}
	}
	s.all[st.Address] = announcement{st, now}
}

// removeSilent removes standbys that are gone.
func (s *standbys) removeSilent(now time.Time) {
	for address, h := range s.all {
		if now.Sub(h.at) > standbyTimeout {
			delete(s.all, address)
		}
	}
}

// list returns the current standbys by name and address.
func (s *standbys) list() (all []leader.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeSilent(time.Now())
	for _, h := range s.all {
		all = append(all, h.Status)
	}
	sort.Slice(all, func(i, j int) bool {
		return cmp.Or(cmp.Compare(all[i].Name, all[j].Name), cmp.Compare(all[i].Address, all[j].Address)) < 0
	})
	return all
}
