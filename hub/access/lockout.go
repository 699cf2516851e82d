package access

import (
	"fmt"
	"sync"
	"time"
)

// A lockout counts failed attempts by key. Ten within a quarter of an hour close
// the door to that key for a quarter of an hour, to right secrets too.
type lockout struct {
	mu   sync.Mutex
	keys map[string]strikes
}

type strikes struct {
	n     int
	since time.Time // of the first; of the lock, once there are ten
}

const (
	maxStrikes    = 10
	strikeWindow  = 15 * time.Minute
	maxStrikeKeys = 10_000
)

// locked says whether one of the keys is locked out.
func (l *lockout) locked(now time.Time, keys ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		if s := l.keys[k]; s.n >= maxStrikes {
			if left := s.since.Add(strikeWindow).Sub(now); left > 0 {
				return fmt.Errorf("%w: try again in %s", ErrTooMany, left.Round(time.Second))
			}
		}
	}
	return nil
}

// strike counts a failure for each key.
func (l *lockout) strike(now time.Time, keys ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[string]strikes{}
	}
	if len(l.keys)+len(keys) > maxStrikeKeys {
		l.forget(now)
	}
	for _, k := range keys {
		s := l.keys[k]
		if s.n == 0 || now.Sub(s.since) > strikeWindow {
			s = strikes{since: now}
		}
		if s.n++; s.n == maxStrikes {
			s.since = now
		}
		l.keys[k] = s
	}
}

// forget makes room: what has ended goes, and when that is too little,
// everything: a flood from thousands of addresses must not cost the hub its memory.
func (l *lockout) forget(now time.Time) {
	for k, s := range l.keys {
		if now.Sub(s.since) > strikeWindow {
			delete(l.keys, k)
		}
	}
	if len(l.keys) > maxStrikeKeys/2 {
		clear(l.keys)
	}
}

// forgive forgets the failures of a key that has shown the right secret.
func (l *lockout) forgive(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, key)
}
