package access

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// A lockout counts attempts by key, each before it is looked at: of any number that
// come at once, no more are looked at than may fail. So many within a quarter of an hour
// shut that key out for a quarter of an hour.
type lockout struct {
	mu   sync.Mutex
	keys map[string]failureCount
}

type failureCount struct {
	n     int
	most  int
	since time.Time // of the first; of the lock, once there are as many as may be
}

const (
	maxStrikes    = 10
	strikeWindow  = 15 * time.Minute
	maxStrikeKeys = 10_000
	// siteStrikes is how many attempts a /48 of IPv6 has, which is what a provider gives
	// to one customer who asks: 65,536 networks with ten attempts each.
	siteStrikes = 10 * maxStrikes
)

// tries is what an attempt from an address counts against.
func tries(what, source string) []allowance {
	keys := []allowance{{what + " " + network(source), maxStrikes}}
	if a, err := netip.ParseAddr(source); err == nil && a.Unmap().Is6() {
		site, _ := a.WithZone("").Prefix(48)
		keys = append(keys, allowance{what + " " + site.String(), siteStrikes})
	}
	return keys
}

// An allowance is how many attempts a key has.
type allowance struct {
	key  string
	most int
}

// try counts an attempt for each key, if each may have one more. giveBack takes the
// attempt back, for one that was right, or was not looked at after all; those before it
// stay: who has a secret of their own could go on guessing others'.
func (l *lockout) try(now time.Time, keys ...allowance) (giveBack func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		s := l.keys[k.key]
		if left := s.since.Add(strikeWindow).Sub(now); s.n >= k.most && left > 0 {
			return nil, fmt.Errorf("%w: try again in %s", ErrTooMany, left.Round(time.Second))
		}
	}
	if l.keys == nil {
		l.keys = map[string]failureCount{}
	}
	if len(l.keys)+len(keys) > maxStrikeKeys {
		l.forget(now)
	}
	for _, k := range keys {
		s := l.keys[k.key]
		if s.n == 0 || now.Sub(s.since) > strikeWindow || s.n >= k.most {
			s = failureCount{since: now, most: k.most}
		}
		if s.n++; s.n == k.most {
			s.since = now
		}
		l.keys[k.key] = s
	}
	return func() { l.giveBack(keys) }, nil
}

func (l *lockout) giveBack(keys []allowance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		if s, ok := l.keys[k.key]; ok && s.n > 0 {
			s.n--
			l.keys[k.key] = s
		}
	}
}

// forget makes room: what has ended goes, and when that is too little, some of what is
// tried most: those with attempts left first, then the oldest. A flood of one kind, from
// thousands of addresses, costs the hub no memory, and frees nobody who is locked out of
// another.
func (l *lockout) forget(now time.Time) {
	for k, s := range l.keys {
		if now.Sub(s.since) > strikeWindow {
			delete(l.keys, k)
		}
	}
	if len(l.keys) <= maxStrikeKeys*3/4 {
		return
	}
	kind := func(key string) string { what, _, _ := strings.Cut(key, " "); return what }
	of := map[string]int{}
	keys := slices.Collect(maps.Keys(l.keys))
	for _, k := range keys {
		of[kind(k)]++
	}
	locked := func(s failureCount) int {
		if s.n >= s.most {
			return 1
		}
		return 0
	}
	slices.SortFunc(keys, func(a, b string) int {
		x, y := l.keys[a], l.keys[b]
		return cmp.Or(cmp.Compare(of[kind(b)], of[kind(a)]), cmp.Compare(locked(x), locked(y)), x.since.Compare(y.since))
	})
	for _, k := range keys[:len(keys)-maxStrikeKeys*3/4] {
		delete(l.keys, k)
	}
}
