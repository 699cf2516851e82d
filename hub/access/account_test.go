package access

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/store"
)

func TestTheOldPasswordAllowsANewOne(t *testing.T) {
	g := guard(t, t.TempDir())
	ctx := t.Context()
	mine := anna(t, g)
	const better = "another horse battery"
	in := func(c *http.Cookie) bool {
		r := httptest.NewRequest(http.MethodGet, "https://hub/", nil)
		r.AddCookie(c)
		u, err := g.Authenticate(r)
		return err == nil && u.Name == "anna"
	}
	for _, c := range []struct {
		name, user, old, new string
		want                 error
	}{
		{"a wrong old password changes nothing", "anna", "wrong wrong wrong", better, ErrForbidden},
		{"an unknown user has no password", "nobody", goodPassword, better, ErrForbidden},
		{"a weak new password is refused", "anna", goodPassword, "short", ErrInvalid},
		{"the new password must differ from the old one", "anna", goodPassword, goodPassword, ErrInvalid},
	} {
		if _, err := g.ChangePassword(ctx, PasswordChange{c.user, c.old, c.new, "10.0.0.1"}); !errors.Is(err, c.want) ||
			!in(mine) {
			t.Errorf("%s: %v, want %v; the session is valid: %v", c.name, err, c.want, in(mine))
		}
	}
	token, err := g.CreateAPIToken(ctx, NewAPIToken{"anna", "laptop", time.Hour})
	must(t, err)
	fresh, err := g.ChangePassword(ctx, PasswordChange{"anna", goodPassword, better, "10.0.0.1"})
	must(t, err)
	if in(mine) || !in(fresh) {
		t.Errorf("the former session is valid: %v, the new one: %v", in(mine), in(fresh))
	}
	if _, _, err := g.byToken(ctx, token); err != nil {
		t.Error("after a changed password the API token is refused:", err)
	}
	if _, err := g.Login(ctx, "anna", goodPassword, "10.0.0.1"); !errors.Is(err, ErrUnauthenticated) {
		t.Error("the old password is accepted, want ErrUnauthenticated:", err)
	}
	_, err = g.Login(ctx, "anna", better, "10.0.0.1")
	must(t, err)
}

// On an unattended screen nobody can use the session to guess the password.
func TestGuessingTheOldPasswordLocksTheUserOut(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		anna(t, g)
		change := func(old, source string) error {
			_, err := g.ChangePassword(t.Context(), PasswordChange{"anna", old, "another horse battery", source})
			return err
		}
		for i := range maxAttempts {
			if err := change("wrong wrong wrong", []string{"10.0.0.1", "10.0.0.2"}[i%2]); !errors.Is(err, ErrForbidden) {
				t.Fatal(i, err)
			}
		}
		if err := change(goodPassword, "10.0.0.3"); !errors.Is(err, ErrTooMany) {
			t.Fatal("a guess from a third address, want ErrTooMany:", err)
		}
		if _, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.3"); err != nil {
			t.Fatal("the owner cannot log in:", err)
		}
		time.Sleep(attemptWindow)
		must(t, change(goodPassword, "10.0.0.1"))
	})
}

func TestUsersManageTheirAPITokens(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		ctx := t.Context()
		for _, name := range []string{"olav", "vera"} {
			must(t, g.CreateUser(ctx, NewUser{name, goodPassword, Viewer}))
		}
		_, err := g.CreateAPIToken(ctx, NewAPIToken{"vera", "hers", time.Hour})
		must(t, err)
		for range maxAPITokens {
			_, err := g.CreateAPIToken(ctx, NewAPIToken{"olav", "his", time.Hour})
			must(t, err)
		}
		if _, err := g.CreateAPIToken(ctx, NewAPIToken{"olav", "one more", time.Hour}); !errors.Is(err, ErrConflict) {
			t.Error("a token beyond the limit, want ErrConflict:", err)
		}
		hers, err := g.APITokensOf(ctx, "vera")
		if err != nil || len(hers) != 1 || hers[0].Note != "hers" {
			t.Fatalf("vera's tokens are %+v, want the one with the note hers: %v", hers, err)
		}
		if err := g.RevokeAPITokenOf(ctx, "olav", hers[0].ID); !errors.Is(err, store.ErrNotFound) {
			t.Error("revoking another user's token, want store.ErrNotFound:", err)
		}
		must(t, g.RevokeAPITokenOf(ctx, "vera", hers[0].ID))
		if hers, _ := g.APITokensOf(ctx, "vera"); len(hers) != 0 {
			t.Errorf("the tokens are %+v", hers)
		}
		time.Sleep(32 * 24 * time.Hour) // tokens that expired a month ago are deleted
		_, err = g.CreateAPIToken(ctx, NewAPIToken{"vera", "hers", time.Hour})
		must(t, err)
		if his, _ := g.APITokensOf(ctx, "olav"); len(his) != 0 {
			t.Errorf("%d tokens that expired a month ago are stored", len(his))
		}
	})
}

// A password may be replaced while a request with the former password waits for its check. Then the
// former password neither logs in nor sets a new password.
func TestAPasswordReplacedDuringItsCheckIsWrong(t *testing.T) {
	const better = "another horse battery"
	for what, c := range map[string]struct {
		replace func(context.Context, fixture) error
		current string // the password afterwards
	}{
		"an administrator has set another password": {func(ctx context.Context, g fixture) error { return g.SetPassword(ctx, "anna", better) }, better},
		"another user with that name was created": {func(ctx context.Context, g fixture) error {
			if err := g.DeleteUser(ctx, "anna"); err != nil {
				return err
			}
			return g.CreateUser(ctx, NewUser{"anna", better, Viewer})
		}, better},
	} {
		for way, try := range map[string]struct {
			do    func(context.Context, fixture) (*http.Cookie, error)
			slots func(fixture) chan struct{}
			want  error
		}{
			"login": {func(ctx context.Context, g fixture) (*http.Cookie, error) {
				return g.Login(ctx, "anna", goodPassword, "10.0.0.66")
			}, func(g fixture) chan struct{} { return g.hashing }, ErrUnauthenticated},
			"change": {func(ctx context.Context, g fixture) (*http.Cookie, error) {
				return g.ChangePassword(ctx, PasswordChange{"anna", goodPassword, "the words of a thief", "10.0.0.66"})
			}, func(g fixture) chan struct{} { return g.settled }, ErrForbidden},
		} {
			t.Run(what+", "+way, func(t *testing.T) {
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					g := guard(t, dir)
					must(t, g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Admin}))
					slots := try.slots(g)
					for range cap(slots) {
						slots <- struct{}{}
					}
					var cookie *http.Cookie
					over := make(chan error, 1)
					go func() {
						var err error
						cookie, err = try.do(t.Context(), g)
						over <- err
					}()
					synctest.Wait() // the request has read the hash, and waits for a slot
					g.settled = make(chan struct{}, 1)
					must(t, c.replace(t.Context(), g))
					for range cap(slots) {
						<-slots
					}
					if err := <-over; !errors.Is(err, try.want) {
						t.Errorf("%v, want %v", err, try.want)
					}
					if cookie != nil {
						if _, _, err := g.bySession(t.Context(), cookie.Value); err == nil {
							t.Error("the old password created a session")
						}
					}
					if _, err := g.Login(t.Context(), "anna", c.current, "10.0.0.1"); err != nil {
						t.Error("the current password:", err)
					}
				})
			})
		}
	}
}
