package access

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

// Attempts count before they are checked, so the limit also applies to concurrent attempts.
func TestTheLimitAppliesToConcurrentGuesses(t *testing.T) {
	g := guard(t, t.TempDir())
	must(t, g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Admin}))
	var checked atomic.Int64
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() {
			_, err := g.Login(t.Context(), "anna", "wrong wrong wrong", "10.0.0.66")
			if errors.Is(err, ErrUnauthenticated) {
				checked.Add(1)
			} else if !errors.Is(err, ErrTooMany) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := checked.Load(); n != maxAttempts {
		t.Errorf("%d of 300 passwords are checked, want %d", n, maxAttempts)
	}
	if _, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.1"); err != nil {
		t.Error("the owner from another address:", err)
	}
}

func TestALoginDoesNotResetTheCountOfGuesses(t *testing.T) {
	g := guard(t, t.TempDir())
	must(t, g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Admin}))
	must(t, g.CreateUser(t.Context(), NewUser{"eve", goodPassword, Viewer}))
	checked := 0
	for range maxAttempts + 2 {
		if _, err := g.Login(t.Context(), "anna", "wrong wrong wrong", "10.0.0.66"); errors.Is(err, ErrUnauthenticated) {
			checked++
		}
		_, _ = g.Login(t.Context(), "eve", goodPassword, "10.0.0.66")
	}
	if checked != maxAttempts {
		t.Errorf("%d guesses are checked between logins, want %d", checked, maxAttempts)
	}
}

func TestOtherNetworksCannotLockAUserOut(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		anna(t, g) // log in from 10.0.0.1
		checked := 0
		for i := range 4 {
			for range maxAttempts + 1 {
				if _, err := g.Login(t.Context(), "anna", "wrong wrong wrong", fmt.Sprintf("10.6.6.%d", i)); errors.Is(err,
					ErrUnauthenticated) {
					checked++
				}
			}
		}
		if checked != maxUnknownAttempts {
			t.Errorf("%d guesses from 4 addresses are checked, want %d", checked, maxUnknownAttempts)
		}
		restarted := guard(t, t.TempDir()) // a restarted hub, which has forgotten the attempts
		restarted.Store = g.Store
		for _, g := range []fixture{g, restarted} {
			if _, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.1"); err != nil {
				t.Error("a login from a known network:", err)
			}
		}
		if _, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.2"); !errors.Is(err, ErrTooMany) {
			t.Error("a login from an unknown network, want ErrTooMany:", err)
		}
		time.Sleep(attemptWindow)
		if _, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.2"); err != nil {
			t.Error("a login after the lock:", err)
		}
	})
}

func TestWrongTokensDoNotLockOutDevices(t *testing.T) {
	g := guard(t, t.TempDir())
	k := token(t, g, NewJoinToken{Uses: 200})
	wrong := k
	wrong.Secret = newSecret()
	unknown := k
	unknown.ID = newID()
	for range 50 {
		for _, bad := range []string{wrong.Text(), unknown.Text(), "nonsense"} {
			if _, err := g.Join(t.Context(), wire.JoinRequest{Token: bad, Node: "eve"}, "10.0.0.2"); err == nil {
				t.Fatal("a bad token is accepted")
			}
		}
	}
	for _, bad := range []string{wrong.Text(), unknown.Text(), "nonsense"} {
		if _, err := g.Join(t.Context(), wire.JoinRequest{Token: bad, Node: "eve"}, "10.0.0.2"); !errors.Is(err, ErrTooMany) {
			t.Error("a bad token beyond the limit, want ErrTooMany:", err)
		}
	}
	before, err := g.Store.Audits(t.Context(), 1000)
	must(t, err)
	if len(before) > 31 { // 30 of one source, and the first record of the audit
		t.Errorf("150 bad tokens cause %d audit records, want at most 31", len(before))
	}
	var wg sync.WaitGroup
	for i := range 100 { // concurrently from one address
		q := joinRequest(t, k.Text(), fmt.Sprintf("pi-%d", i), newMachine(t))
		wg.Go(func() {
			if _, err := g.Join(t.Context(), q, "10.0.0.2"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestABusyHubTellsTheDeviceWhenToRetry(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		q := joinRequest(t, token(t, g, NewJoinToken{}).Text(), "pi-1", newMachine(t))
		g.joining <- struct{}{} // another join that never ends
		_, err := g.Join(t.Context(), q, "10.0.0.2")
		w := httptest.NewRecorder()
		refuse(w, err)
		if !errors.Is(err, ErrBusy) || w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" ||
			strings.Contains(w.Body.String(), "failed") {
			t.Errorf("a join at a busy hub: %v, %d %v %s; want ErrBusy, 429 with Retry-After", err, w.Code, w.Header(), w.Body)
		}
		<-g.joining
		if _, err := g.Join(t.Context(), q, "10.0.0.2"); err != nil {
			t.Error(err)
		}
	})
}

func TestRenewalsOfANodeAreLimited(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, dir)
		m, other := newMachine(t), newMachine(t)
		in := func(name string, m machine) wire.JoinAnswer {
			a, err := g.Join(t.Context(), joinRequest(t, token(t, g, NewJoinToken{}).Text(), name, m), "10.0.0.2")
			must(t, err)
			return a
		}
		a, b := in("pi-1", m), in("pi-2", other)
		renewed := 0
		var last error
		for range 100 {
			_, err := g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, certificates(t, a.Certificate))
			if last = err; err == nil {
				renewed++
			}
		}
		w := httptest.NewRecorder()
		refuse(w, last)
		if renewed != renewBurst || !errors.Is(last, ErrBusy) || w.Code != http.StatusTooManyRequests ||
			w.Header().Get("Retry-After") != "60" {
			t.Errorf("%d of 100 renewals succeed, want %d; the last answer is %v, %d %v", renewed, renewBurst, last, w.Code,
				w.Header())
		}
		if _, err := g.Renew(t.Context(), wire.RenewRequest{CSR: other.csr(t)}, certificates(t, b.Certificate)); err != nil {
			t.Error("a renewal of another node:", err)
		}
		time.Sleep(renewEvery)
		if _, err := g.Renew(t.Context(), wire.RenewRequest{CSR: m.csr(t)}, certificates(t, a.Certificate)); err != nil {
			t.Error("a renewal a minute later:", err)
		}
	})
}
