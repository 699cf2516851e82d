package nodes

import (
	"sync"
	"time"

	"flotilla.dev/hub/access"
)

const (
	shownLife  = time.Hour // how long a new join token can be shown again
	shownCount = 200       // number of tokens, of all users
)

// MadeTokens keeps new join tokens in memory, for the sessions that made them. Loading the page again
// shows the same token instead of making another.
type MadeTokens struct {
	mu  sync.Mutex
	all []shownToken // oldest first
}

type shownToken struct {
	id          string
	name, proof string // name and proof of the session
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

// of returns a token to the session that made it, as long as it may be shown.
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
