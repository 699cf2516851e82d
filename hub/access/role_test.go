package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"flotilla.dev/hub/pki"
)

func TestANewRoleAppliesAtOnce(t *testing.T) {
	g := guard(t, t.TempDir())
	c := anna(t, g)
	chain, _, err := g.Authority.IssueClient(pki.Admin, "anna", time.Hour)
	must(t, err)
	must(t, g.SetRole(t.Context(), "anna", Viewer))
	r := httptest.NewRequest(http.MethodGet, "https://hub/", nil)
	r.AddCookie(c)
	if u, err := g.Authenticate(r); err != nil || u.Role != Viewer {
		t.Errorf("the session's user after SetRole: %+v %v", u, err)
	}
	if u, err := g.Authenticate(from(certificates(t, string(chain)))); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("the user of an earlier certificate: %+v %v, want ErrUnauthenticated", u, err)
	}
	if err := g.SetRole(t.Context(), "anna", "king"); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := g.SetRole(t.Context(), "nobody", Viewer); err == nil {
		t.Error("an unknown user has a role")
	}
}
