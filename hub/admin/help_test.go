package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/store"
)

// people authenticates by a header, for tests of everything except the login.
type people struct{}

const nameHeader, csrf = "Test-User", "token-of-the-form"

func (people) Authenticate(r *http.Request) (access.User, error) {
	role := r.Header.Get(nameHeader)
	if role == "" {
		return access.User{}, errNobody
	}
	return access.User{Name: "test-" + role, Role: access.Role(role), Via: "session", CSRF: csrf}, nil
}

func (people) CheckForm(r *http.Request, u access.User) error {
	if u.Name != "" && r.PostFormValue("csrf") != u.CSRF {
		return errForged
	}
	return nil
}

func (people) Logout(context.Context, *http.Request) (*http.Cookie, error) {
	return &http.Cookie{Name: "x", MaxAge: -1}, nil
}

func (people) Login(_ context.Context, _, password, _ string) (*http.Cookie, error) {
	if password != "right" {
		return nil, errNobody
	}
	return &http.Cookie{Name: "x", Value: "1"}, nil
}

func (people) Setup(context.Context, string, access.NewUser, string) error { return errForged }

var (
	errNobody = fmt.Errorf("%w: wrong name or password", access.ErrUnauthenticated)
	errForged = fmt.Errorf("%w: the form is from an earlier session", access.ErrForbidden)
)

func configOf(m frame.Fleet) frame.Config {
	c := frame.Config{
		Fleet: m, Sessions: people{}, Logins: people{},
		Liveness: func(string) frame.Liveness {
			return frame.Liveness{Seen: time.Now().Add(-3 * time.Second), Connected: true, Wanted: 4, Stored: 4}
		},
		Version: "test", Pauses: []store.Pause{{From: admintest.Now.Add(-4 * time.Hour), To: admintest.Now.Add(-200 * time.Minute)}}, Log: slog.New(slog.DiscardHandler),
	}
	equip(&c)
	return c
}

// A server can be unreachable for a while.
type server struct {
	*httptest.Server
	down  atomic.Bool
	wires *wires
	page  *frame.Server
	end   func() // stops the page, as when the hub ends
}

// start serves a page of the fleet over TLS and HTTP/2.
func start(t testing.TB, c frame.Config) *server {
	t.Helper()
	s := New(c)
	e := echo.New()
	e.IPExtractor = echo.ExtractIPDirect()
	s.Register(e)
	srv := &server{page: s}
	srv.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if srv.down.Load() {
			panic(http.ErrAbortHandler)
		}
		e.ServeHTTP(w, r)
	}))
	srv.wires = &wires{Listener: srv.Listener}
	srv.Listener = srv.wires
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	srv.StartTLS()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Run(ctx)
	}()
	srv.end = sync.OnceFunc(func() {
		cancel()
		<-over
		srv.CloseClientConnections()
		srv.Close()
	})
	t.Cleanup(srv.end)
	return srv
}
