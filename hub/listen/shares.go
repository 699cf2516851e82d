package listen

import "sync"

// Shares limits each user to a part of a bounded resource, so that one user cannot take all of it.
type Shares struct {
	Most int // what one user holds at a time

	mu sync.Mutex
	by map[string]int
}

// Enter takes one for a user until leave is called; not ok: the user has Most already.
func (s *Shares) Enter(user string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[user] >= s.Most {
		return nil, false
	}
	if s.by == nil {
		s.by = map[string]int{}
	}
	s.by[user]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.by[user]--; s.by[user] == 0 {
			delete(s.by, user)
		}
	}, true
}
