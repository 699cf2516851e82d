package access

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/pki"
)

// A request ends with its credential.
func TestARequestEndsWithItsCredential(t *testing.T) {
	type entry struct {
		g    fixture
		give func(*http.Request)
		id   string
	}
	session := func(t *testing.T, g fixture) entry {
		c, err := g.Login(t.Context(), "olav", goodPassword, "10.0.0.1")
		must(t, err)
		return entry{g: g, give: func(r *http.Request) { r.AddCookie(c) }}
	}
	bearer := func(t *testing.T, g fixture) entry {
		k, err := g.CreateAPIToken(t.Context(), NewAPIToken{"olav", "", time.Hour})
		must(t, err)
		all, err := g.APITokens(t.Context())
		must(t, err)
		return entry{g, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+k) }, all[0].ID}
	}
	certificate := func(t *testing.T, g fixture) entry {
		text, _, err := g.Authority.IssueClient(pki.Operator, "olav", time.Hour)
		must(t, err)
		chain := certificates(t, string(text))
		return entry{g: g, give: func(r *http.Request) { r.TLS = &tls.ConnectionState{PeerCertificates: chain} }}
	}
	// old returns a credential that expires soon after its requests begin.
	old := func(by func(*testing.T, fixture) entry, life time.Duration) func(*testing.T, fixture) entry {
		return func(t *testing.T, g fixture) entry {
			e := by(t, g)
			time.Sleep(life - 4*recheck)
			return e
		}
	}
	for _, tt := range []struct {
		name string
		by   func(*testing.T, fixture) entry
		do   func(t *testing.T, e entry)
		ends bool
	}{
		{"nothing happens", session, func(*testing.T, entry) {}, false},
		{"the user is deleted", session, func(t *testing.T, e entry) { must(t, e.g.DeleteUser(t.Context(), "olav")) }, true},
		{"the user with the token is deleted", bearer, func(t *testing.T, e entry) { must(t, e.g.DeleteUser(t.Context(), "olav")) }, true},
		{"the user of the certificate is deleted", certificate, func(t *testing.T, e entry) { must(t, e.g.DeleteUser(t.Context(), "olav")) }, true},
		{"the password is changed", session, func(t *testing.T, e entry) { must(t, e.g.SetPassword(t.Context(), "olav", "another horse battery")) }, true},
		{"a changed password does not affect a token", bearer, func(t *testing.T, e entry) { must(t, e.g.SetPassword(t.Context(), "olav", "another horse battery")) }, false},
		{"the role is changed", session, func(t *testing.T, e entry) { must(t, e.g.SetRole(t.Context(), "olav", Viewer)) }, true},
		{"the role of the token's user is changed", bearer, func(t *testing.T, e entry) { must(t, e.g.SetRole(t.Context(), "olav", Viewer)) }, true},
		{"the role of the certificate's user is changed", certificate, func(t *testing.T, e entry) { must(t, e.g.SetRole(t.Context(), "olav", Viewer)) }, true},
		{"the token is revoked", bearer, func(t *testing.T, e entry) { must(t, e.g.RevokeAPIToken(t.Context(), e.id)) }, true},
		{"the session is logged out", session, func(t *testing.T, e entry) {
			r := httptest.NewRequest(http.MethodPost, "https://hub/logout", nil)
			e.give(r)
			_, err := e.g.Logout(t.Context(), r)
			must(t, err)
		}, true},
		{"the session expires after a day", old(session, sessionLife), func(*testing.T, entry) { time.Sleep(recheck) }, true},
		{"the token expires", old(bearer, time.Hour), func(*testing.T, entry) { time.Sleep(recheck) }, true},
		{"the certificate expires", old(certificate, time.Hour), func(*testing.T, entry) { time.Sleep(recheck) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				g := guard(t, dir)
				must(t, g.CreateUser(t.Context(), NewUser{"olav", goodPassword, Operator}))
				e := tt.by(t, g)
				var open []*http.Request
				for range 3 {
					r, end := g.WatchSession(httptest.NewRequest(http.MethodGet, "https://hub/", nil), func(User) error { return nil })
					defer end()
					e.give(r)
					_, err := g.Authenticate(r)
					must(t, err)
					open = append(open, r)
				}
				if n := len(g.watches.by); n != 1 {
					t.Errorf("one credential of many requests is watched %d times, want once", n)
				}
				time.Sleep(3 * recheck)
				tt.do(t, e)
				time.Sleep(2*time.Second + time.Millisecond)
				synctest.Wait()
				for _, r := range open {
					if ended := r.Context().Err() != nil; ended != tt.ends || ended && !errors.Is(context.Cause(r.Context()),
						ErrEnded) {
						t.Errorf("the context has ended: %t, want %t: %v", ended, tt.ends, context.Cause(r.Context()))
					}
				}
			})
		})
	}
}

func TestAFinishedRequestIsNotBound(t *testing.T) {
	g := guard(t, t.TempDir())
	c := anna(t, g)
	r, end := g.WatchSession(httptest.NewRequest(http.MethodGet, "https://hub/", nil), func(User) error { return nil })
	r.AddCookie(c)
	_, err := g.Authenticate(r)
	must(t, err)
	end()
	if len(g.watches.by) != 0 || !errors.Is(context.Cause(r.Context()), context.Canceled) {
		t.Error("the ended request is still watched")
	}
	r, end = g.WatchSession(httptest.NewRequest(http.MethodGet, "https://hub/", nil),
		func(User) error { return ErrTooMany })
	defer end()
	r.AddCookie(c)
	if _, err := g.Authenticate(r); !errors.Is(err, ErrTooMany) || len(g.watches.by) != 0 {
		t.Error("a refused user is accepted:", err)
	}
}
