package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// guard is package access in the page's words, as the hub wires it.
type guard struct{ *access.Guard }

func (g guard) Authenticate(r *http.Request) (User, error) {
	u, err := g.Guard.Authenticate(r)
	return User{Name: u.Name, Role: string(u.Role), Via: u.Via, Source: u.Source, CSRF: u.CSRF}, err
}

func (g guard) CheckForm(r *http.Request, u User) error {
	return g.Guard.CheckForm(r, access.User{Name: u.Name, Role: access.Role(u.Role), Via: u.Via, CSRF: u.CSRF})
}

func (g guard) Login(ctx context.Context, c Credential) (*http.Cookie, error) {
	return g.Guard.Login(ctx, c.Name, c.Password, c.Source)
}

func (g guard) Setup(ctx context.Context, secret string, c Credential) error {
	return g.Guard.Setup(ctx, secret, access.NewUser{Name: c.Name, Password: c.Password, Role: access.Admin}, c.Source)
}

func (g guard) Empty(ctx context.Context) (bool, error) {
	users, err := g.Users(ctx)
	return len(users) == 0, err
}

func (g guard) token(ctx context.Context, t NewToken) (string, error) {
	token, err := g.CreateJoinToken(ctx, access.NewJoinToken{Site: t.Site, Node: t.Node, Uses: t.Uses, Life: t.Life, By: t.By})
	return token.Text(), err
}

func (g guard) ChangePassword(ctx context.Context, p PasswordChange) (*http.Cookie, error) {
	return g.Guard.ChangePassword(ctx, access.PasswordChange{Name: p.Name, Old: p.Old, New: p.New, Source: p.Source})
}

func (g guard) APITokensOf(ctx context.Context, user string) (own []APIToken, err error) {
	tokens, err := g.Guard.APITokensOf(ctx, user)
	for _, t := range tokens {
		own = append(own, APIToken{t.ID, t.User, t.Note, t.Created, t.Expires})
	}
	return own, err
}

func explainAccess(err error) (code int, sentence string) {
	for _, c := range []struct {
		sentinel error
		code     int
	}{
		{access.ErrTooMany, http.StatusTooManyRequests}, {access.ErrInvalid, http.StatusBadRequest}, {access.ErrUnauthenticated, http.StatusUnauthorized},
		{access.ErrForbidden, http.StatusForbidden}, {access.ErrConflict, http.StatusConflict},
	} {
		if errors.Is(err, c.sentinel) {
			return c.code, strings.ReplaceAll(err.Error(), c.sentinel.Error()+": ", "")
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		return http.StatusNotFound, err.Error()
	}
	return http.StatusServiceUnavailable, "The hub could not do that; its log says why."
}

// guarded is a page behind the real guard, and the secret of its setup link.
func guarded(t testing.TB, m Fleet) (c Config, secret string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	authority, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	g := guard{access.New(access.Options{Store: st, Authority: authority, Log: log})}
	if secret, err = g.SetupSecret(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = configOf(m)
	c.Sessions, c.Entrance, c.Token, c.Explain = g, g, g.token, explainAccess
	c.Allow = func(role, verb, resource string) bool { return access.Allow(access.Role(role), verb, resource) }
	return c, secret
}
