package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"flotilla.dev/hub/store"
)

// A PasswordChange is a user's request for a new password.
type PasswordChange struct {
	Name     string
	Old, New string
	Source   string // address
}

// ChangePassword sets a new password and ends all sessions of the user. It returns the cookie of a
// new session. It requires the old password, because a session may be on an unattended screen. A
// wrong old password counts as a failed login.
func (g *Guard) ChangePassword(ctx context.Context, p PasswordChange) (*http.Cookie, error) {
	now := g.Now()
	if err := checkStrength(p.New, p.Name); err != nil {
		return nil, err
	}
	keys := append(tries("login", p.Source), allowance{"account " + p.Name, maxAttempts})
	giveBack, err := g.failures.try(now, keys...)
	if err != nil {
		return nil, err
	}
	before, known, err := g.verifyPassword(ctx, p.Name, p.Old, true)
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
		return nil, fmt.Errorf("%w: the new password equals the old one; use another", ErrInvalid)
	}
	after, err := g.hashPassword(ctx, p.New)
	if err == nil {
		err = g.callers.clearAfter(g.Store.ReplacePassword(ctx, p.Name, before, after))
	}
	var c *http.Cookie
	if err == nil {
		c, err = g.newSession(ctx, store.Session{User: p.Name, Source: p.Source, Created: now}, after)
	}
	if errors.Is(err, store.ErrNotFound) { // another request has changed the password during the check
		err = wrong
	}
	return c, err
}

// maxAPITokens limits the API tokens of a user, including expired ones.
const maxAPITokens = 50

// APITokensOf lists a user's API tokens, oldest first, without secrets.
func (g *Guard) APITokensOf(ctx context.Context, user string) (own []store.APIToken, err error) {
	all, err := g.Store.APITokens(ctx)
	for _, t := range all {
		if t.User == user {
			own = append(own, t)
		}
	}
	return own, err
}

// RevokeAPITokenOf revokes a user's own API token. It does not find tokens of other users.
func (g *Guard) RevokeAPITokenOf(ctx context.Context, user, id string) error {
	t, err := g.Store.APIToken(ctx, id)
	if err == nil && t.User != user {
		err = store.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("API token %.32s: %w", id, err)
	}
	return g.callers.clearAfter(g.Store.DeleteAPIToken(ctx, id))
}
