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

// errMoved ends a session because its address is no longer in the list, or changed between hub and
// broker.
var errMoved = errors.New("the hub has other addresses now")

// A route is the list of the hub's addresses in a random order, and the address in use. After a
// failure the devices spread over all other addresses. They do not move back when the address
// returns, which then gets new connections only.
type route struct {
	mu      sync.Mutex
	servers []server
	at      int // index in servers
	failed  int // consecutive failed addresses

	external bool // the addresses are a broker's
}

// set replaces the addresses. It keeps the address in use if the new list has it.
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

// now returns the address in use, and whether the list has others.
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

// has reports whether the list has this address with the same kind of server: a broker may take
// over a hub's own address.
func (r *route) has(s server, external bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.external == external && slices.ContainsFunc(r.servers, func(have server) bool { return have.url == s.url })
}

// keep records that the address in use works, so that it is tried first.
func (r *route) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = 0
}

// next moves to the next address and reports whether all addresses have failed in a row.
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

// pause chooses the address of the next try and returns the wait before it. After a good session it
// keeps the address. The back-off grows only when all addresses have failed.
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

// SetServer replaces the hub's addresses, as in Config.Server and Config.External, from the next
// connection on. It ends a session on an address that is no longer in the list or has changed
// between hub and broker.
func (l *Link) SetServer(list string, external bool) error {
	if err := l.route.set(&l.cfg, list, external); err != nil {
		return fmt.Errorf("link to hub %s: %w", list, err)
	}
	l.ask(func(a *asked) { a.move = true })
	return nil
}
