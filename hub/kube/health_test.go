package kube

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
)

// stuck is a control loop that does not answer.
type stuck struct{ *fakeFleet }

func (stuck) Do(ctx context.Context, _ control.News) ([]state.Applied, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestHealth(t *testing.T) {
	full := newFake()
	full.fail = errors.New("disk full")
	for _, c := range []struct {
		name, path string
		fleet      Fleet
		code       int
		want       string
	}{
		{"a healthy hub", "/healthz", newFake(), 200, "ok"},
		{"it lives", "/livez", newFake(), 200, "ok"},
		{"verbose lists the checks", "/livez?verbose", newFake(), 200, "[+]ping ok\n[+]control-loop ok\n[+]leader ok\nlivez check passed\n"},
		{"without excluded checks", "/readyz?verbose&exclude=control-loop", newFake(), 200, "[+]ping ok\n[+]control-loop excluded: ok\n[+]disk ok\n[+]leader ok\nreadyz check passed\n"},
		{"the check leader", "/readyz/leader", newFake(), 200, "ok"},
		{"one thing", "/readyz/control-loop", newFake(), 200, "ok"},
		{"an unknown check", "/readyz/etcd", newFake(), 404, "404 page not found\n"},
		{"a full disk does not fail /healthz", "/livez", full, 200, "ok"},
		{"a hub with a full disk is live", "/livez", outOfRoom{newFake()}, 200, "ok"},
		{"a hub with a full disk is not ready", "/readyz/disk", outOfRoom{newFake()}, 500, "internal server error: the hub's disk is full: it stores changes and deletions, but no new objects; free space on it\n"},
		{"a hub with free space is ready", "/readyz/disk", newFake(), 200, "ok"},
		{"a blocked control loop", "/livez", stuck{newFake()}, 500, "[+]ping ok\n[-]control-loop failed: no answer within 10s\n[+]leader ok\nlivez check failed\n"},
		{"the check of a blocked control loop", "/healthz/control-loop", stuck{newFake()}, 500, "internal server error: no answer within 10s\n"},
		{"a blocked control loop, excluded", "/healthz?exclude=control-loop", stuck{newFake()}, 200, "ok"},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := echo.New()
			New(Config{Fleet: c.fleet}).Register(e)
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, nil))
			if w.Code != c.code || w.Body.String() != c.want ||
				!strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
				t.Errorf("%s: %d %s %q, want %d %q", c.name, w.Code, w.Header(), w.Body, c.code, c.want)
			}
		})
	}
}

type outOfRoom struct{ Fleet }

func (f outOfRoom) Snapshot() state.Snapshot { return f.Fleet.Snapshot().WithDiskSpace(false) }
