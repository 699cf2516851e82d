package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/store"
)

// While the database is unreachable, callers that were authenticated recently stay authenticated,
// so that users can read the page. This ends after cacheFor, or when the credential expires.
// Changes and revocations need the database, so they are refused. After any revocation, also one by
// another hub or a command, all callers are looked up again.
const (
	cacheFor    = time.Hour
	maxCallers  = 4096
	retryEvery  = 2 * time.Second // interval of attempts while the database is unreachable
	pollRevoked = 2 * time.Second // interval of checks for revocations by other hubs and commands
)

// A callerCache holds the recently authenticated callers.
type callerCache struct {
	mu         sync.Mutex
	entries    map[[sha256.Size]byte]caller
	generation int       // number of revocations seen
	seen       string    // the database's mark of the last revocation
	silent     bool      // the database is unreachable
	asked      time.Time // time of the last attempt while unreachable
}

type caller struct {
	user User
	ends time.Time // expiry, in the hub's time
}

// get returns the cached owner of a credential. While the database is silent, cached callers do not
// wait for it. ask tells the caller to try the database again in the background. generation is an
// argument of put.
func (k *callerCache) get(key [sha256.Size]byte, now time.Time) (u User, ok, silent, ask bool, generation int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.entries[key]
	ok = ok && now.Before(c.ends)
	if ask = ok && k.silent && now.Sub(k.asked) >= retryEvery; ask {
		k.asked = now
	}
	return c.user, ok, k.silent, ask, k.generation
}

// put caches the owner of a credential until ends (zero: no expiry). It drops a result that was
// looked up before the last revocation.
func (k *callerCache) put(key [sha256.Size]byte, u User, ends, now time.Time, generation int) {
	if most := now.Add(cacheFor); ends.IsZero() || ends.After(most) {
		ends = most
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if generation != k.generation {
		return
	}
	if k.entries == nil {
		k.entries = map[[sha256.Size]byte]caller{}
	}
	if _, has := k.entries[key]; !has && len(k.entries) >= maxCallers {
		k.dropExpired(now)
		for other := range k.entries { // drop any entry: an active caller is soon cached again
			if len(k.entries) < maxCallers {
				break
			}
			delete(k.entries, other)
		}
	}
	k.entries[key] = caller{u, ends}
}

func (k *callerCache) dropExpired(now time.Time) {
	for key, c := range k.entries {
		if !now.Before(c.ends) {
			delete(k.entries, key)
		}
	}
}

func (k *callerCache) forget(key [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.entries, key)
}

// clearAfter clears the cache after a revocation, which succeeded if err is nil.
func (k *callerCache) clearAfter(err error) error {
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.entries = nil
		k.generation++
	}
	return err
}

// clearIfRevoked clears the cache if the database's mark of the last revocation has changed.
func (k *callerCache) clearIfRevoked(seen string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen != seen {
		k.seen, k.entries = seen, nil
		k.generation++
	}
}

// hasValid reports whether the cache has a valid entry.
func (k *callerCache) hasValid(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropExpired(now)
	return len(k.entries) > 0
}

// RunRights clears the cache after revocations by other hubs and commands, until ctx ends. It
// polls, because the database may be unreachable when the next caller comes.
func (g *Guard) RunRights(ctx context.Context) error {
	for {
		g.checkRevocations(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollRevoked):
		}
	}
}

func (g *Guard) checkRevocations(ctx context.Context) {
	if !g.callers.hasValid(g.Now()) {
		return
	}
	if seen, err := g.Store.RightsTaken(ctx); err == nil { // keep the cache on an error
		g.callers.clearIfRevoked(seen)
	}
}

// noteAnswer records whether the database has answered.
func (k *callerCache) noteAnswer(answered bool, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.silent = !answered; k.silent {
		k.asked = now
	}
}

// lookUp returns the owner of a credential from the database, or from the cache while the database
// is unreachable.
func (g *Guard) lookUp(ctx context.Context, c credential,
	ask func(context.Context) (u User, ends time.Time, err error)) (User, error) {
	key := c.key()
	was, cached, silent, retry, generation := g.callers.get(key, g.Now())
	look := func(ctx context.Context) (User, error) {
		u, ends, err := ask(ctx)
		switch {
		case err == nil:
			g.callers.put(key, u, ends, g.Now(), generation)
		case errors.Is(err, ErrUnauthenticated):
			g.callers.forget(key)
		}
		if err == nil || errors.Is(err, ErrUnauthenticated) || errors.Is(err, store.ErrUnavailable) {
			g.callers.noteAnswer(!errors.Is(err, store.ErrUnavailable), g.Now())
		}
		return u, err
	}
	if cached && silent {
		if retry {
			go func() {
				defer panics.Catch("look up a caller")
				_, _ = look(context.WithoutCancel(ctx))
			}()
		}
		return was, nil
	}
	u, err := look(ctx)
	if cached && errors.Is(err, store.ErrUnavailable) {
		return was, nil
	}
	return u, err
}
