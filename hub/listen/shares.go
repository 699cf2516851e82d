package listen

import "sync"

// Shares counts what each user holds of something that there is a bounded number of for
// all, so that one who takes all that they can get leaves others some.
type Shares struct {
	Most int // that one user holds at a time

	mu sync.Mutex
	by map[string]int
}

// Enter counts one more for a user until leave is called; not ok: they have their share.
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
