package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/store"
)

// fakeDatabase is a database that may be unreachable.
type fakeDatabase struct {
	mu    sync.Mutex
	err   error
	ends  time.Time
	asked int
}

func (b *fakeDatabase) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *fakeDatabase) ask(context.Context) (User, time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.err != nil {
		return User{}, time.Time{}, b.err
	}
	return User{Name: "kari", Role: Viewer}, b.ends, nil
}

var errAway = fmt.Errorf("read session: %w", store.ErrUnavailable)

func TestCachedCallersStayAuthenticatedWithoutTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := New(Options{}), &fakeDatabase{}
		kari, ola := credential{kind: "session", secret: "kari's"}, credential{kind: "session", secret: "ola's"}
		look := func(c credential) error {
			u, err := g.lookUp(t.Context(), c, b.ask)
			if err == nil && u.Name != "kari" {
				t.Fatalf("the lookup found %+v, want kari", u)
			}
			return err
		}
		if err := look(kari); err != nil {
			t.Fatal(err)
		}
		b.fail(errAway)
		for range 100 {
			if err := look(kari); err != nil {
				t.Fatalf("kari, who is in the cache, is refused: %v", err)
			}
		}
		if b.asked > 3 {
			t.Errorf("an unreachable database is queried %d times within %s", b.asked, retryEvery)
		}
		if err := look(ola); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("ola, who is not in the cache, gets %v, want ErrUnavailable", err)
		}
		time.Sleep(59 * time.Minute)
		if err := look(kari); err != nil {
			t.Fatalf("after 59 min: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if err := look(kari); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("after an hour without a database: %v, want ErrUnavailable", err)
		}
	})
}

func TestACredentialThatExpiredWithoutTheDatabaseIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := New(Options{}), &fakeDatabase{}
		kari := credential{kind: "token", secret: "t"}
		look := func() error { _, err := g.lookUp(t.Context(), kari, b.ask); return err }
		_ = look()
		b.fail(errAway)
		if err := look(); err != nil {
			t.Fatal(err)
		}
		b.fail(fmt.Errorf("%w: revoked by another hub", ErrUnauthenticated))
		time.Sleep(retryEvery)
		_ = look() // tries the database in the background
		synctest.Wait()
		if err := look(); !errors.Is(err, ErrUnauthenticated) {
			t.Fatalf("%s after the database is back: %v", retryEvery, err)
		}
		b.fail(errAway)
		if err := look(); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("a refused caller is in the cache: %v", err)
		}
	})
}

func TestACachedCallerExpiresWithTheCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := New(Options{}), &fakeDatabase{ends: time.Now().Add(time.Minute)}
		c := credential{kind: "token", secret: "t"}
		_, _ = g.lookUp(t.Context(), c, b.ask)
		b.fail(errAway)
		if _, err := g.lookUp(t.Context(), c, b.ask); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := g.lookUp(t.Context(), c, b.ask); err == nil {
			t.Fatal("an expired token is accepted")
		}
	})
}

// Any other error than an unreachable database, such as a damaged row, refuses the caller.
func TestTheCacheIsUsedOnlyWithoutTheDatabase(t *testing.T) {
	g, b := New(Options{}), &fakeDatabase{}
	c := credential{kind: "certificate"}
	_, _ = g.lookUp(t.Context(), c, b.ask)
	b.fail(errors.New("database is corrupt"))
	if _, err := g.lookUp(t.Context(), c, b.ask); err == nil {
		t.Fatal("a caller is accepted despite an error of the database")
	}
}

func TestTheCallerCacheIsBounded(t *testing.T) {
	var k callerCache
	now := time.Now()
	for i := range maxCallers + 100 {
		k.put(credential{secret: fmt.Sprint(i)}.key(), User{}, time.Time{}, now, 0)
	}
	if len(k.entries) > maxCallers {
		t.Fatalf("%d callers in the cache, want at most %d", len(k.entries), maxCallers)
	}
}

// Once the cache is empty the hub does not poll for revocations.
func TestExpiredCallersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := New(Options{}), &fakeDatabase{}
		for _, secret := range []string{"kari's", "ola's"} {
			if _, err := g.lookUp(t.Context(), credential{kind: "session", secret: secret}, b.ask); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(cacheFor - time.Second)
		if !g.callers.hasValid(g.Now()) {
			t.Error("the cache dropped a valid caller")
		}
		time.Sleep(2 * time.Second)
		if g.callers.hasValid(g.Now()) {
			t.Error("the cache has an expired caller")
		}
	})
}

// revocations are the ways to revoke anna's rights.
var revocations = map[string]func(context.Context, fixture, *http.Cookie, string) error{
	"the password is set": func(ctx context.Context, g fixture, _ *http.Cookie, _ string) error {
		return g.SetPassword(ctx, "anna", "another horse battery")
	},
	"the password is changed": func(ctx context.Context, g fixture, _ *http.Cookie, _ string) error {
		_, err := g.ChangePassword(ctx, PasswordChange{"anna", goodPassword, "another horse battery", "10.0.0.1"})
		return err
	},
	"the role is changed": func(ctx context.Context, g fixture, _ *http.Cookie, _ string) error {
		return g.SetRole(ctx, "anna", Viewer)
	},
	"the user is deleted": func(ctx context.Context, g fixture, _ *http.Cookie, _ string) error { return g.DeleteUser(ctx, "anna") },
	"the kubeconfigs are revoked": func(ctx context.Context, g fixture, _ *http.Cookie, _ string) error {
		return g.RevokeKubeconfigs(ctx, "anna")
	},
	"the token is revoked": func(ctx context.Context, g fixture, _ *http.Cookie, id string) error {
		return g.RevokeAPIToken(ctx, id)
	},
	"the token is revoked by its owner": func(ctx context.Context, g fixture, _ *http.Cookie, id string) error {
		return g.RevokeAPITokenOf(ctx, "anna", id)
	},
	"the session is logged out": func(ctx context.Context, g fixture, c *http.Cookie, _ string) error {
		r := httptest.NewRequest(http.MethodPost, "https://hub/logout", nil)
		r.AddCookie(c)
		_, err := g.Logout(ctx, r)
		return err
	},
}

// A revocation clears the cache, also for callers that send no request before the database becomes
// unreachable.
func TestARevocationClearsTheCallerCache(t *testing.T) {
	for what, revoke := range revocations {
		t.Run(what, func(t *testing.T) {
			g, b := guard(t, t.TempDir()), &fakeDatabase{}
			session := anna(t, g)
			token, err := g.CreateAPIToken(t.Context(), NewAPIToken{"anna", "laptop", time.Hour})
			must(t, err)
			c, late := credential{kind: "token", secret: token}, credential{kind: "token", secret: "revoked during a lookup"}
			look := func(c credential) error { _, err := g.lookUp(t.Context(), c, b.ask); return err }
			must(t, look(c))
			_, err = g.lookUp(t.Context(), late, func(ctx context.Context) (User, time.Time, error) {
				u, ends, err := b.ask(ctx)
				must(t, revoke(ctx, g, session, strings.Split(token, ".")[1]))
				return u, ends, err
			})
			must(t, err)
			b.fail(errAway)
			for _, c := range []credential{c, late} {
				if err := look(c); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("the revoked credential %s: %v, want ErrUnavailable", c.secret, err)
				}
			}
		})
	}
}

// A revocation by a command, or by another hub of the database, clears the cache too.
func TestARevocationElsewhereClearsTheCallerCache(t *testing.T) {
	for what, revoke := range revocations {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			g, b := guard(t, dir), &fakeDatabase{}
			session := anna(t, g)
			token, err := g.CreateAPIToken(t.Context(), NewAPIToken{"anna", "laptop", time.Hour})
			must(t, err)
			other, err := store.OpenShared(t.Context(), store.Options{Dir: dir})
			must(t, err)
			defer other.Close()
			elsewhere := g
			elsewhere.Guard = New(Options{Store: other, Authority: g.Authority})
			c := credential{kind: "token", secret: token}
			look := func() error { _, err := g.lookUp(t.Context(), c, b.ask); return err }
			for range 2 { // the first check only stores the mark
				must(t, look())
				g.checkRevocations(t.Context())
			}
			must(t, look())
			g.checkRevocations(t.Context())
			if !g.callers.hasValid(g.Now()) {
				t.Fatal("the cache is empty without a revocation")
			}
			must(t, revoke(t.Context(), elsewhere, session, strings.Split(token, ".")[1]))
			g.checkRevocations(t.Context())
			b.fail(errAway)
			if err := look(); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("the revoked caller is in the cache: %v", err)
			}
		})
	}
}
