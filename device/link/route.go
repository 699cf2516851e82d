package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"flotilla.dev/shared/line"
)

// errMoved ends a session whose address is none of the hub's any more, or another broker's.
var errMoved = errors.New("the hub has other addresses now")

// A route is the addresses of the hub in an order that each device has for itself, so
// that the devices of one that fails go to all others, and the one that is used. Nobody
// goes back to an address that has returned: it gets the next that come.
type route struct {
	mu      sync.Mutex
	servers []server
	at      int // in servers
	failed  int // addresses in a row

	external bool // they are a broker's
}

// set takes the addresses of a list. One that is in use stays in use if it is among them.
func (r *route) set(c *Config, list string, external bool) error {
	all, err := c.servers(list)
	if err != nil {
		return err
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r.mu.Lock()
	defer r.mu.Unlock()
	at := 0
	if len(r.servers) > 0 {
		at = max(0, slices.IndexFunc(all, func(s server) bool { return s.url == r.servers[r.at].url }))
	}
	r.servers, r.at, r.failed, r.external = all, at, 0, external
	return nil
}

// now is the address to use, and whether there are others.
func (r *route) now() (server, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.servers[r.at], len(r.servers) > 1
}

func (r *route) isExternal() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.external
}

// has tells whether an address is one of them still, and what listens there what it was: a
// hub's own broker makes way for another one under the same address.
func (r *route) has(s server, external bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.external == external && slices.ContainsFunc(r.servers, func(have server) bool { return have.url == s.url })
}

// keep notes that the address was good for a while: it is tried first.
func (r *route) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = 0
}

// next goes on to the next address, and tells whether all of them have failed in a row.
func (r *route) next() (round bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = (r.at + 1) % len(r.servers)
	if r.failed++; r.failed >= len(r.servers) {
		r.failed = 0
		return true
	}
	return false
}

// pause goes on to the address of the next try, and is how long to wait before it. The
// address of a session that was good is the next one again. What is waited for is a hub
// that cannot be reached at all: as long as there is an address that was not tried, it is
// tried soon.
func (l *Link) pause(try *int, good bool) time.Duration {
	if good {
		*try = 1
		l.route.keep()
		return l.backoff(0)
	}
	if !l.route.next() {
		return rand.N(line.MinPause)
	}
	*try++
	return l.backoff(*try - 1)
}

// SetServer takes other addresses of the hub, in the form of Config.Server and
// Config.External, from the next connection on. A session on an address that is none of them
// ends, as does one that took a broker's address for the hub's own or the other way round.
func (l *Link) SetServer(list string, external bool) error {
	if err := l.route.set(&l.cfg, list, external); err != nil {
		return fmt.Errorf("link to hub %s: %w", list, err)
	}
	l.ask(func(a *asked) { a.move = true })
	return nil
}
