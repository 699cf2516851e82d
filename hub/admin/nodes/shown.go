package nodes

import (
	"sync"
	"time"

	"flotilla.dev/hub/access"
)

const (
	shownLife  = time.Hour // how long a new join token can be looked at again
	shownCount = 200       // of all people
)

// MadeTokens keeps the join tokens that were just made, in memory only, for the session that
// made them: whoever loads the page again sees the same token, and makes no other one.
type MadeTokens struct {
	mu  sync.Mutex
	all []shownToken // the oldest first
}

type shownToken struct {
	id          string
	name, proof string // of the session
	until       time.Time
	data        tokenData
}

func (s *MadeTokens) keep(id string, u access.User, d tokenData, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, shownToken{id, u.Name, u.CSRF, now.Add(min(shownLife, d.life)), d})
	if len(s.all) > shownCount {
		s.all = append(s.all[:0:0], s.all[1:]...)
	}
}

// of returns the token for the session that made it, as long as it may be looked at.
func (s *MadeTokens) of(id string, u access.User, now time.Time) (tokenData, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		if t.id == id && t.name == u.Name && t.proof == u.CSRF && now.Before(t.until) {
			return t.data, true
		}
	}
	return tokenData{}, false
}
