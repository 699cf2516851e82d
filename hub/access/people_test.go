package access

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

func TestTheSetupLinkCreatesOneAdministrator(t *testing.T) {
	g := guard(t, t.TempDir())
	ctx := t.Context()
	if err := g.Setup(ctx, "", NewUser{Name: "eve", Password: goodPassword}, "10.0.0.66"); !errors.Is(err, ErrForbidden) {
		t.Fatal("a setup before the first link, want ErrForbidden:", err)
	}
	older, err := g.SetupSecret(ctx)
	must(t, err)
	secret, err := g.SetupSecret(ctx)
	must(t, err)
	for name, s := range map[string]string{"a replaced link": older, "a guess": newSecret(), "nothing": ""} {
		if err := g.Setup(ctx, s, NewUser{Name: "eve", Password: goodPassword}, "10.0.0.66"); !errors.Is(err, ErrForbidden) {
			t.Fatal(name, err)
		}
	}
	if err := g.Setup(ctx, secret, NewUser{Name: "anna", Password: "short"}, "10.0.0.1"); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	// Of two concurrent requests one succeeds.
	var wg sync.WaitGroup
	results := make([]error, 4)
	for i := range results {
		wg.Go(func() {
			results[i] = g.Setup(ctx, secret, NewUser{Name: "anna" + string(rune('a'+i)), Password: goodPassword, Role: Viewer},
				"10.0.0.1")
		})
	}
	wg.Wait()
	in := 0
	for _, err := range results {
		if err == nil {
			in++
		} else if !errors.Is(err, ErrForbidden) {
			t.Error(err)
		}
	}
	users, err := g.Users(ctx)
	if in != 1 || err != nil || len(users) != 1 || users[0].Role != string(Admin) || users[0].Password != "" {
		t.Fatalf("%d of two concurrent setups succeed: %+v %v", in, users, err)
	}
	if again, err := g.SetupSecret(ctx); again != "" || err != nil {
		t.Fatalf("there is a setup link after the setup: %q %v", again, err)
	}
}

func TestASetupLinkExpiresAfterHalfAnHour(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		secret, err := g.SetupSecret(t.Context())
		must(t, err)
		time.Sleep(setupLife + time.Second)
		if err := g.Setup(t.Context(), secret, NewUser{Name: "anna", Password: goodPassword}, "10.0.0.1"); !errors.Is(err,
			ErrForbidden) {
			t.Fatal(err)
		}
	})
}

func TestGuessingTheSetupLinkLocksTheSourceOut(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		secret, err := g.SetupSecret(t.Context())
		must(t, err)
		setup := func(secret, source string) error {
			return g.Setup(t.Context(), secret, NewUser{Name: "eve", Password: goodPassword}, source)
		}
		checked := 0
		for range 3 * maxAttempts {
			if err := setup(newSecret(), "10.0.0.66"); errors.Is(err, ErrForbidden) {
				checked++
			} else if !errors.Is(err, ErrTooMany) {
				t.Fatal(err)
			}
		}
		if checked != maxAttempts {
			t.Errorf("%d guesses were checked, want %d", checked, maxAttempts)
		}
		if err := setup(secret, "10.0.0.66"); !errors.Is(err, ErrTooMany) {
			t.Error("the right password from a locked address, want ErrTooMany:", err)
		}
		if err := setup(secret, "10.0.0.1"); err != nil {
			t.Error("the right password from another address:", err)
		}
	})
}

func TestWeakPasswordsAreRefused(t *testing.T) {
	for _, p := range []string{"", "short", "password", "password123", "Password1!", "1234567890", "9876543210",
		"aaaaaaaaaaaa", "abababababab", "flotilla2026", "anna-anna-a", "raspberry1234", "changeme!!", strings.Repeat("x y z a b ", 30), "bad\xff\xfeutf8 here"} {
		if err := checkStrength(p, "anna"); !errors.Is(err, ErrInvalid) {
			t.Errorf("the weak password %q is accepted", p)
		}
	}
	for _, p := range []string{goodPassword, "tr0ub4dor&3x", "blåbærsyltetøy", "Kaffee um sieben",
		"anna likes green tea"} {
		if err := checkStrength(p, "anna"); err != nil {
			t.Errorf("the password %q is refused: %v", p, err)
		}
	}
}

func TestUserNamesAndRolesAreChecked(t *testing.T) {
	g := guard(t, t.TempDir())
	for _, u := range []NewUser{{"", goodPassword, Admin}, {"Anna", goodPassword, Admin}, {"a b", goodPassword, Admin},
		{"<img>", goodPassword, Admin}, {"anna", goodPassword, ""}, {"anna", goodPassword, Device}, {"anna", goodPassword, "root"}} {
		if err := g.CreateUser(t.Context(), u); !errors.Is(err, ErrInvalid) {
			t.Errorf("the user %+v: %v, want ErrInvalid", u, err)
		}
	}
	must(t, g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Viewer}))
	if err := g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Admin}); !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
}

func TestASessionAuthenticatesItsUserUntilItEnds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		c := anna(t, g)
		if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || !strings.HasPrefix(c.Name, "__Host-") ||
			c.Path != "/" || c.Domain != "" {
			t.Fatalf("the cookie is %+v", c)
		}
		with := func(c *http.Cookie) *http.Request {
			r := httptest.NewRequest(http.MethodGet, "https://hub/", nil)
			r.AddCookie(c)
			return r
		}
		u, err := g.Authenticate(with(c))
		if err != nil || u.Name != "anna" || u.Role != Admin || u.Via != "session" || u.CSRF == "" ||
			u.Source != "192.0.2.1" {
			t.Fatalf("the session's user is %+v, want anna with the role admin: %v", u, err)
		}
		other, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.1")
		must(t, err)
		if _, err := g.Logout(t.Context(), with(other)); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Authenticate(with(other)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("the session after a logout, want ErrUnauthenticated:", err)
		}
		if _, err := g.Authenticate(with(&http.Cookie{Name: Cookie, Value: "x"})); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("an invented session, want ErrUnauthenticated:", err)
		}
		if _, err := g.Authenticate(httptest.NewRequest(http.MethodGet, "https://hub/", nil)); !errors.Is(err,
			ErrUnauthenticated) {
			t.Fatal("nothing:", err)
		}
		time.Sleep(sessionLife + time.Second)
		if _, err := g.Authenticate(with(c)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("the session after a day, want ErrUnauthenticated:", err)
		}
		c, err = g.Login(t.Context(), "anna", goodPassword, "10.0.0.1")
		must(t, err)
		must(t, g.SetPassword(t.Context(), "anna", "another horse battery"))
		if _, err := g.Authenticate(with(c)); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("the session after a new password, want ErrUnauthenticated:", err)
		}
		if _, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.1"); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("the old password is accepted, want ErrUnauthenticated:", err)
		}
	})
}

func TestGuessingPasswordsLocksTheSourceOut(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		anna(t, g)
		guess := func(name, password, source string) error {
			_, err := g.Login(t.Context(), name, password, source)
			return err
		}
		for i := range maxAttempts {
			name := "anna"
			if i%2 == 1 {
				name = "nobody" // an unknown user's attempts count too, with an equal response
			}
			if err := guess(name, "wrong wrong wrong", "2001:db8::1"); !errors.Is(err, ErrUnauthenticated) ||
				err.Error() != "not logged in: wrong name or password" {
				t.Fatal(i, err)
			}
		}
		if err := guess("anna", goodPassword, "2001:db8::2"); !errors.Is(err, ErrTooMany) { // the same /64, so the same customer
			t.Fatal(err)
		}
		if err := guess("anna", goodPassword, "2001:db8:1::1"); err != nil { // the user in another network
			t.Fatal(err)
		}
		time.Sleep(attemptWindow)
		if err := guess("anna", goodPassword, "2001:db8::1"); err != nil {
			t.Fatal(err)
		}
	})
}

// The networks of a deleted user are not known for a new user with the same name.
func TestANewUserHasNoKnownNetworks(t *testing.T) {
	g := guard(t, t.TempDir())
	ctx := t.Context()
	must(t, g.CreateUser(ctx, NewUser{"anna", goodPassword, Admin}))
	_, err := g.Login(ctx, "anna", goodPassword, "192.0.2.1")
	must(t, err)
	if at, err := g.addressesOf(ctx, "anna"); err != nil || len(at) != 1 {
		t.Fatal(at, err)
	}
	must(t, g.DeleteUser(ctx, "anna"))
	must(t, g.CreateUser(ctx, NewUser{"anna", goodPassword, Admin}))
	if at, err := g.addressesOf(ctx, "anna"); err != nil || len(at) > 0 {
		t.Errorf("a new user has the known networks %v: %v", at, err)
	}
}

func TestAFloodOfAddressesCostsNoMemory(t *testing.T) {
	var l lockout
	now := time.Now()
	for i := range 5 * maxLockoutKeys {
		_, _ = l.try(now, allowance{string(rune(i)), maxAttempts})
	}
	if len(l.keys) > maxLockoutKeys+1 {
		t.Fatal(len(l.keys))
	}
}

func TestAnAPITokenAuthenticatesItsUserUntilItEnds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		ctx := t.Context()
		must(t, g.CreateUser(ctx, NewUser{"olav", goodPassword, Operator}))
		token, err := g.CreateAPIToken(ctx, NewAPIToken{"olav", "laptop", time.Hour})
		must(t, err)
		bearer := func(values ...string) error {
			r := httptest.NewRequest(http.MethodGet, "https://hub/api", nil)
			r.Header["Authorization"] = values
			u, err := g.Authenticate(r)
			if err == nil && (u.Name != "olav" || u.Role != Operator || u.Via != "token") {
				t.Fatalf("the user is %+v", u)
			}
			return err
		}
		must(t, bearer("Bearer "+token))
		must(t, bearer("bearer "+token))
		parts := strings.Split(token, ".")
		for name, header := range map[string][]string{
			"a wrong secret":  {"Bearer " + parts[0] + "." + parts[1] + "." + newSecret()},
			"an unknown id":   {"Bearer " + parts[0] + "." + newID() + "." + parts[2]},
			"no secret":       {"Bearer " + parts[0] + "." + parts[1] + "."},
			"a cut token":     {"Bearer " + token[:len(token)-1]},
			"a longer token":  {"Bearer " + token + ".x"},
			"a join token":    {"Bearer FLT1.00112233445566778899aabbccddeeff." + parts[1] + "." + parts[2]},
			"two headers":     {"Bearer " + token, "Bearer " + token},
			"another scheme":  {"Basic " + token},
			"nothing":         {""},
			"only the scheme": {"Bearer "},
		} {
			if err := bearer(header...); !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("%s: %v, want ErrUnauthenticated", name, err)
			}
		}
		// A valid cookie does not replace an invalid token.
		c, err := g.Login(ctx, "olav", goodPassword, "10.0.0.1")
		must(t, err)
		r := httptest.NewRequest(http.MethodGet, "https://hub/", nil)
		r.AddCookie(c)
		r.Header.Set("Authorization", "Bearer nonsense")
		if _, err := g.Authenticate(r); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
		all, err := g.APITokens(ctx)
		if err != nil || len(all) != 1 || all[0].ID != parts[1] {
			t.Fatal(all, err)
		}
		must(t, g.RevokeAPIToken(ctx, parts[1]))
		if err := bearer("Bearer " + token); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("a revoked token, want ErrUnauthenticated:", err)
		}
		token, err = g.CreateAPIToken(ctx, NewAPIToken{"olav", "laptop", time.Hour})
		must(t, err)
		time.Sleep(time.Hour)
		if err := bearer("Bearer " + token); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("an expired token, want ErrUnauthenticated:", err)
		}
		token, err = g.CreateAPIToken(ctx, NewAPIToken{"olav", "laptop", time.Hour})
		must(t, err)
		must(t, g.DeleteUser(ctx, "olav"))
		if err := bearer("Bearer " + token); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("the token of a deleted user, want ErrUnauthenticated:", err)
		}
		if _, err := g.CreateAPIToken(ctx, NewAPIToken{"olav", "", time.Hour}); !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		must(t, g.CreateUser(ctx, NewUser{"olav", goodPassword, Operator}))
		if err := bearer("Bearer " + token); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal("a token of a deleted user after its name was created again, want ErrUnauthenticated:", err)
		}
		if _, err := g.CreateAPIToken(ctx, NewAPIToken{"olav", "", 0}); !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
	})
}

func TestACertificateAuthenticatesUntilItsUserIsDeleted(t *testing.T) {
	g := guard(t, t.TempDir())
	ctx := t.Context()
	must(t, g.CreateUser(ctx, NewUser{"anna", goodPassword, Admin}))
	chain, _, err := g.Authority.IssueClient(pki.Operator, "anna", time.Hour)
	must(t, err)
	certs := certificates(t, string(chain))
	u, err := g.Authenticate(from(certs))
	if err != nil || u.Name != "anna" || u.Role != Operator || u.Via != "certificate" {
		t.Fatalf("the certificate's user is %+v, want anna with the role operator: %v", u, err)
	}
	foreign, err := pki.Open(t.TempDir())
	must(t, err)
	chain, _, err = foreign.IssueClient(pki.Admin, "anna", time.Hour)
	must(t, err)
	if _, err := g.Authenticate(from(certificates(t, string(chain)))); !errors.Is(err, ErrUnauthenticated) {
		t.Fatal("a certificate of another authority, want ErrUnauthenticated:", err)
	}
	must(t, g.DeleteUser(ctx, "anna"))
	if _, err := g.Authenticate(from(certs)); !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(),
		"kubeconfig") {
		t.Fatal("the certificate of a deleted user, want ErrUnauthenticated:", err)
	}
	time.Sleep(2 * time.Millisecond) // issue times have milliseconds
	chain, _, err = g.Authority.IssueClient(pki.Admin, "anna", time.Hour)
	must(t, err)
	if _, err := g.Authenticate(from(certificates(t, string(chain)))); err != nil {
		t.Fatal("a certificate issued after the revocation:", err)
	}
}

// A kubeconfig may have a name that is not a user's. Its revocation does not affect an observer
// with the same name.
func TestAKubeconfigOfAnyNameIsRevoked(t *testing.T) {
	g := guard(t, t.TempDir())
	issue := func(role pki.Role) []*x509.Certificate {
		chain, _, err := g.Authority.IssueClient(role, "kari", time.Hour)
		must(t, err)
		return certificates(t, string(chain))
	}
	lost, observer := issue(pki.Admin), issue(pki.Observer)
	if _, err := g.Authenticate(from(lost)); err != nil {
		t.Fatal(err)
	}
	must(t, g.RevokeKubeconfigs(t.Context(), "kari"))
	if _, err := g.Authenticate(from(lost)); !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(),
		"were revoked") {
		t.Error("a revoked certificate, want ErrUnauthenticated:", err)
	}
	must(t, g.MayObserve(t.Context(), observer))
	time.Sleep(2 * time.Millisecond) // issue times have milliseconds
	if _, err := g.Authenticate(from(issue(pki.Admin))); err != nil {
		t.Error("a certificate issued after the revocation:", err)
	}
	if err := g.RevokeKubeconfigs(t.Context(), ""); !errors.Is(err, ErrInvalid) {
		t.Error("revoking certificates without a name, want ErrInvalid:", err)
	}
}

func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	g := guard(t, t.TempDir())
	session := User{Via: "session", CSRF: "right"}
	for _, c := range []struct {
		name    string
		user    User
		method  string
		headers map[string]string
		form    string
		ok      bool
	}{
		{"a GET from another site", session, "GET", map[string]string{"Sec-Fetch-Site": "cross-site"}, "", true},
		{"the hub's page with the token", session, "POST", map[string]string{"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": "right"}, "", true},
		{"the hub's page with the token in the form", session, "POST", map[string]string{"Origin": "https://hub"}, "right", true},
		{"the hub's page without the token", session, "POST", map[string]string{"Sec-Fetch-Site": "same-origin"}, "", false},
		{"an earlier session's token", session, "DELETE", map[string]string{"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": "wrong"}, "", false},
		{"another site, even with the token", session, "POST", map[string]string{"Sec-Fetch-Site": "cross-site", "X-CSRF-Token": "right"}, "", false},
		{"another site by its origin", session, "POST", map[string]string{"Origin": "https://evil.example"}, "right", false},
		{"a sibling site", session, "POST", map[string]string{"Sec-Fetch-Site": "same-site", "X-CSRF-Token": "right"}, "", false},
		{"a session without a stored token", User{Via: "session"}, "POST", nil, "x", false},
		{"a program with an API token", User{Via: "token"}, "POST", nil, "", true},
		{"kubectl with a certificate", User{Via: "certificate"}, "POST", nil, "", true},
		{"a browser with a certificate from another site", User{Via: "certificate"}, "POST", map[string]string{"Sec-Fetch-Site": "cross-site"}, "", false},
		{"the login form", User{}, "POST", map[string]string{"Sec-Fetch-Site": "same-origin"}, "", true},
		{"a login form on another site", User{}, "POST", map[string]string{"Origin": "null"}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "https://hub/x", strings.NewReader(url.Values{"csrf": {c.form}}.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			if err := g.CheckForm(r, c.user); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrForbidden) {
				t.Fatal(err)
			}
		})
	}
}

func TestRolesHaveTheRightsOfTheTable(t *testing.T) {
	for _, c := range []struct {
		verb, resource          string
		admin, operator, viewer bool
	}{
		{"list", "nodes", true, true, true},
		{"watch", "pods", true, true, true},
		{"get", "pods/log", true, true, true},
		{"get", "metrics", true, true, true},
		{"create", "selfsubjectaccessreviews", true, true, true},
		{"get", "secrets", true, true, false},
		{"list", "secrets", true, true, false},
		{"create", "pods", true, true, false},
		{"patch", "nodes", true, true, false},
		{"delete", "deployments", true, true, false},
		{"create", "pods/exec", true, true, false},
		{"get", "pods/exec", true, true, false},
		{"create", "pods/eviction", true, true, false},
		{"patch", "sites", true, true, false},
		{"delete", "sites", true, false, false},
		{"update", "nodes/status", true, true, false},
		{"get", "nodes/status", true, true, true},
		{"patch", "deployments/status", true, false, false},
		{"create", "leases", true, true, false},
		{"update", "leases", true, true, false},
		{"delete", "events", true, true, false},
		{"create", "pods/binding", true, true, false},
		{"list", "customresourcedefinitions", true, true, true},
		{"create", "services", true, false, false},
		{"create", "boardprofiles", true, false, false},
		{"create", "firmwarerollouts", true, false, false},
		{"list", "users", true, false, false},
		{"list", "jointokens", true, false, false},
		{"create", "apitokens", true, false, false},
		{"update", "account", true, true, true},
		{"delete", "account", true, false, false},
		{"list", "audit", true, false, false},
		{"create", "joinrenewals", true, false, false},
		{"list", "somethingnew", true, false, false},
		{"", "nodes", false, false, false},
		{"list", "", false, false, false},
	} {
		for role, want := range map[Role]bool{Admin: c.admin, Operator: c.operator, Viewer: c.viewer,
			Device: c.resource == "joinrenewals", "": false, "root": false} {
			if got := Allow(role, c.verb, c.resource); got != want {
				t.Errorf("%s may %s %s: %v", role, c.verb, c.resource, got)
			}
		}
	}
	for _, r := range Rules(Viewer) {
		for _, v := range r.Verbs {
			if v != "get" && v != "list" && v != "watch" && !strings.HasPrefix(r.Resources[0], "selfsubject") &&
				r.Resources[0] != "account" {
				t.Errorf("a viewer may %s %v", v, r.Resources)
			}
		}
	}
}

// Secrets are not in the database, in backups or in the log.
func TestNoSecretIsStoredOrLogged(t *testing.T) {
	dir := t.TempDir()
	g := guard(t, dir)
	ctx := t.Context()
	setup, err := g.SetupSecret(ctx)
	must(t, err)
	must(t, g.Setup(ctx, setup, NewUser{Name: "anna", Password: goodPassword}, "10.0.0.1"))
	session, err := g.Login(ctx, "anna", goodPassword, "10.0.0.1")
	must(t, err)
	_, _ = g.Login(ctx, "anna", "wrong-password-typed", "10.0.0.1")
	api, err := g.CreateAPIToken(ctx, NewAPIToken{"anna", "laptop", time.Hour})
	must(t, err)
	token, err := g.CreateJoinToken(ctx, NewJoinToken{Site: "oslo", Uses: 2, Life: time.Hour, By: "anna"})
	must(t, err)
	_, err = g.Join(ctx, joinRequest(t, token.Text(), "pi-1", newMachine(t)), "10.0.0.2")
	must(t, err)
	bad := token
	bad.Secret = newSecret()
	_, err = g.Join(ctx, joinRequest(t, bad.Text(), "pi-2", newMachine(t)), "10.0.0.2")
	if err == nil {
		t.Fatal("joined")
	}
	must(t, g.Store.Backup(ctx, filepath.Join(dir, "copy.db")))
	raw, err := os.ReadFile(filepath.Join(dir, "copy.db"))
	must(t, err)
	wal, err := os.ReadFile(filepath.Join(dir, "hub.db-wal"))
	must(t, err)
	text := string(raw) + string(wal) + g.log.String()
	if !strings.Contains(text, "laptop") || !strings.Contains(g.log.String(), "pi-1") {
		t.Fatal("the database does not contain a known value: the test reads the wrong files")
	}
	for name, s := range map[string]string{"setup secret": setup, "password": goodPassword,
		"a mistyped password": "wrong-password-typed", "session": session.Value,
		"API token": strings.Split(api, ".")[2], "join token": token.Secret, "wrong join token": bad.Secret} {
		if strings.Contains(text, s) {
			t.Errorf("%s is stored in clear text", name)
		}
	}
}
