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

// While the database's server is away nobody can be looked up there, and just then people
// look at the page. So callers who were found good lately stay who they were: for
// rememberFor after that, never beyond the end of what they show. Nothing that they want
// changed is carried out then, for that has to be remembered first; and nothing is
// revoked either, for that has to be, too. With each right that is taken before, here or by
// another hub or a command, all have to be found good once more.
const (
	rememberFor = time.Hour
	mostKnown   = 4096
	askAgain    = 2 * time.Second // while the database does not answer
	askTaken    = 2 * time.Second // whether a right was taken elsewhere
)

// known are the callers who were found good lately.
type known struct {
	mu     sync.Mutex
	of     map[[sha256.Size]byte]caller
	turn   int       // how often a right was taken
	seen   string    // what the database has said of that
	silent bool      // the database did not answer
	asked  time.Time // when it was asked last, since then
}

type caller struct {
	user User
	ends time.Time // from then on nobody believes it; as Options.Now says
}

// get is who was found by a credential, if that counts still. While the database is silent
// nobody who is known waits for it: one of them asks beside, now and then.
// turn is for put.
func (k *known) get(key [sha256.Size]byte, now time.Time) (u User, ok, silent, ask bool, turn int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.of[key]
	ok = ok && now.Before(c.ends)
	if ask = ok && k.silent && now.Sub(k.asked) >= askAgain; ask {
		k.asked = now
	}
	return c.user, ok, k.silent, ask, k.turn
}

// put notes who was found by a credential that ends then; the zero time: never. What was looked
// up in an earlier turn may be no more.
func (k *known) put(key [sha256.Size]byte, u User, ends, now time.Time, turn int) {
	if most := now.Add(rememberFor); ends.IsZero() || ends.After(most) {
		ends = most
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if turn != k.turn {
		return
	}
	if k.of == nil {
		k.of = map[[sha256.Size]byte]caller{}
	}
	if _, has := k.of[key]; !has && len(k.of) >= mostKnown {
		k.forgetEnded(now)
		for other := range k.of { // any one: who comes often is soon known again
			if len(k.of) < mostKnown {
				break
			}
			delete(k.of, other)
		}
	}
	k.of[key] = caller{u, ends}
}

func (k *known) forgetEnded(now time.Time) {
	for key, c := range k.of {
		if !now.Before(c.ends) {
			delete(k.of, key)
		}
	}
}

func (k *known) forget(key [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.of, key)
}

// taken forgets everybody once the database has taken a right from somebody.
func (k *known) taken(err error) error {
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.of = nil
		k.turn++
	}
	return err
}

// takenBy is how often the database says that rights were taken, as seen now. Those who were looked
// up before it was known to be another one are forgotten.
func (k *known) takenBy(seen string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen != seen {
		k.seen, k.of = seen, nil
		k.turn++
	}
}

// remembers tells whether anybody is known still.
func (k *known) remembers(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetEnded(now)
	return len(k.of) > 0
}

// RunRights forgets who was known when a right is taken elsewhere, for the database may be away
// when they come. It returns when ctx ends.
func (g *Guard) RunRights(ctx context.Context) error {
	for {
		g.lookForTaken(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askTaken):
		}
	}
}

func (g *Guard) lookForTaken(ctx context.Context) {
	if !g.known.remembers(g.Now()) {
		return
	}
	if seen, err := g.Store.RightsTaken(ctx); err == nil { // else nobody knows
		g.known.takenBy(seen)
	}
}

// heard notes whether the database has answered.
func (k *known) heard(answered bool, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.silent = !answered; k.silent {
		k.asked = now
	}
}

// lookUp asks the database whose a credential is, or, while that does not answer, says whose
// it was lately.
func (g *Guard) lookUp(ctx context.Context, c credential,
	ask func(context.Context) (u User, ends time.Time, err error)) (User, error) {
	key := c.key()
	was, had, silent, again, turn := g.known.get(key, g.Now())
	look := func(ctx context.Context) (User, error) {
		u, ends, err := ask(ctx)
		switch {
		case err == nil:
			g.known.put(key, u, ends, g.Now(), turn)
		case errors.Is(err, ErrUnauthenticated):
			g.known.forget(key)
		}
		if err == nil || errors.Is(err, ErrUnauthenticated) || errors.Is(err, store.ErrUnavailable) {
			g.known.heard(!errors.Is(err, store.ErrUnavailable), g.Now())
		}
		return u, err
	}
	if had && silent {
		if again {
			go func() {
				defer panics.Catch("look up who asks")
				_, _ = look(context.WithoutCancel(ctx))
			}()
		}
		return was, nil
	}
	u, err := look(ctx)
	if had && errors.Is(err, store.ErrUnavailable) {
		return was, nil
	}
	return u, err
}
