package cluster

import (
	"cmp"
	"sort"
	"sync"
	"time"

	"flotilla.dev/hub/leader"
)

const (
	// silentStandby is after how long without a word a standby counts as gone: five of its announcements.
	silentStandby = 5 * leader.Beat
	maxStandbys   = 16
)

// standbys are the hubs that stand by, as the one that leads has heard of them. They are not remembered:
// the next leader hears of them within seconds.
type standbys struct {
	mu  sync.Mutex
	all map[string]heardStandby // by address: two hubs of one machine have one name
}

type heardStandby struct {
	leader.Status
	at time.Time
}

// hear takes what a standby says of itself.
func (s *standbys) hear(st leader.Status) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now)
	if _, known := s.all[st.Address]; !known && len(s.all) >= maxStandbys {
		return
	}
	if s.all == nil {
		s.all = map[string]heardStandby{}
	}
	s.all[st.Address] = heardStandby{st, now}
}

// forget drops those that are gone.
func (s *standbys) forget(now time.Time) {
	for address, h := range s.all {
		if now.Sub(h.at) > silentStandby {
			delete(s.all, address)
		}
	}
}

// list are those that are there, by name and address.
func (s *standbys) list() (all []leader.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(time.Now())
	for _, h := range s.all {
		all = append(all, h.Status)
	}
	sort.Slice(all, func(i, j int) bool {
		return cmp.Or(cmp.Compare(all[i].Name, all[j].Name), cmp.Compare(all[i].Address, all[j].Address)) < 0
	})
	return all
}
