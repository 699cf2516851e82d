package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"flotilla.dev/hub/store"
)

// A PasswordChange is asked for by the person whose password it is.
type PasswordChange struct {
	Name     string
	Old, New string
	Source   string // address
}

// ChangePassword gives a person who knows the old password a new one, and ends
// all of their sessions; the cookie is that of a new session, for who asked. A
// session alone is not enough: it may be somebody else's at an open screen. Wrong
// old passwords count as failed logins do, for the source and for the person.
func (g *Guard) ChangePassword(ctx context.Context, p PasswordChange) (*http.Cookie, error) {
	now := g.Now()
	if err := checkStrength(p.New, p.Name); err != nil {
		return nil, err
	}
	keys := append(tries("login", p.Source), allowance{"account " + p.Name, maxStrikes})
	giveBack, err := g.failures.try(now, keys...)
	if err != nil {
		return nil, err
	}
	before, known, err := g.knows(ctx, p.Name, p.Old, true)
	if err != nil {
		giveBack()
		return nil, err
	}
	if known {
		giveBack()
	}
	wrong := fmt.Errorf("%w: the old password is wrong", ErrForbidden)
	switch {
	case !known:
		return nil, wrong
	case p.Old == p.New:
		return nil, fmt.Errorf("%w: the new password is the old one; use another", ErrInvalid)
	}
	after, err := g.hashPassword(ctx, p.New)
	if err == nil {
		err = g.known.taken(g.Store.ReplacePassword(ctx, p.Name, before, after))
	}
	var c *http.Cookie
	if err == nil {
		c, err = g.newSession(ctx, store.Session{User: p.Name, Source: p.Source, Created: now}, after)
	}
	if errors.Is(err, store.ErrNotFound) { // somebody has set another one meanwhile
		err = wrong
	}
	return c, err
}

// maxAPITokens is how many API tokens a person may have, ended ones included.
const maxAPITokens = 50

// APITokensOf lists a person's API tokens, oldest first; secrets are not known.
func (g *Guard) APITokensOf(ctx context.Context, user string) (own []store.APIToken, err error) {
	all, err := g.Store.APITokens(ctx)
	for _, t := range all {
		if t.User == user {
			own = append(own, t)
		}
	}
	return own, err
}

// RevokeAPITokenOf ends a person's own API token now. Somebody else's is one that
// is not there.
func (g *Guard) RevokeAPITokenOf(ctx context.Context, user, id string) error {
	t, err := g.Store.APIToken(ctx, id)
	if err == nil && t.User != user {
		err = store.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("API token %.32s: %w", id, err)
	}
	return g.known.taken(g.Store.DeleteAPIToken(ctx, id))
}
