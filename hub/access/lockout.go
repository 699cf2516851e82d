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

// A lockout counts attempts per key. It counts them before they are checked, so that concurrent
// attempts count too. Too many within a quarter of an hour lock the key for a quarter of an hour.
type lockout struct {
	mu   sync.Mutex
	keys map[string]failureCount
}

type failureCount struct {
	n     int
	most  int
	since time.Time // time of the first attempt, or of the lock
}

const (
	maxAttempts    = 10
	attemptWindow  = 15 * time.Minute
	maxLockoutKeys = 10_000
	// maxSiteAttempts is the limit of an IPv6 /48, which a provider may assign to one customer: 65,536
	// networks with ten attempts each.
	maxSiteAttempts = 10 * maxAttempts
)

// tries returns the keys for an attempt from an address.
func tries(what, source string) []allowance {
	keys := []allowance{{what + " " + network(source), maxAttempts}}
	if a, err := netip.ParseAddr(source); err == nil && a.Unmap().Is6() {
		site, _ := a.WithZone("").Prefix(48)
		keys = append(keys, allowance{what + " " + site.String(), maxSiteAttempts})
	}
	return keys
}

// An allowance is a key with its limit.
type allowance struct {
	key  string
	most int
}

// try counts an attempt for each key, if all keys are below their limits. giveBack takes the
// attempt back; call it if the attempt succeeded or was not checked. Earlier attempts stay:
// otherwise a user with one password could reset the count while guessing others.
func (l *lockout) try(now time.Time, keys ...allowance) (giveBack func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		s := l.keys[k.key]
		if left := s.since.Add(attemptWindow).Sub(now); s.n >= k.most && left > 0 {
			return nil, fmt.Errorf("%w: try again in %s", ErrTooMany, left.Round(time.Second))
		}
	}
	if l.keys == nil {
		l.keys = map[string]failureCount{}
	}
	if len(l.keys)+len(keys) > maxLockoutKeys {
		l.forget(now)
	}
	for _, k := range keys {
		s := l.keys[k.key]
		if s.n == 0 || now.Sub(s.since) > attemptWindow || s.n >= k.most {
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

// forget frees memory. It drops expired keys. Then, of the kind with the most keys, it drops keys
// below their limits first, then the oldest. So a flood from thousands of addresses costs no memory
// and unlocks no other key.
func (l *lockout) forget(now time.Time) {
	for k, s := range l.keys {
		if now.Sub(s.since) > attemptWindow {
			delete(l.keys, k)
		}
	}
	if len(l.keys) <= maxLockoutKeys*3/4 {
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
	for _, k := range keys[:len(keys)-maxLockoutKeys*3/4] {
		delete(l.keys, k)
	}
}
