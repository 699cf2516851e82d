package listen

import "sync"

// Shares limits each user to a part of a bounded resource, so that one user cannot use all of it.
type Shares struct {
	Most int // the most that one user may hold

	mu sync.Mutex
	by map[string]int
}

// Enter takes one unit for a user until leave is called. If the user already holds Most, ok is
// false.
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
