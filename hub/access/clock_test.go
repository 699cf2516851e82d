package access

import (
	"net/http/httptest"
	"testing"
	"time"
)

// Sessions and tokens expire by the hub's time, even if the machine's clock is set by months.
func TestExpiryUsesTheHubsTime(t *testing.T) {
	for name, off := range map[string]time.Duration{"the hub's time is months behind": -200 * 24 * time.Hour,
		"months ahead": 200 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			g := guard(t, t.TempDir())
			var later time.Duration
			g.Now = func() time.Time { return time.Now().Add(off + later) }
			cookie := anna(t, g)
			if !cookie.Expires.IsZero() && cookie.MaxAge == 0 {
				t.Errorf("the cookie has the expiry %s, which a browser checks with its own clock", cookie.Expires)
			}
			text, err := g.CreateAPIToken(t.Context(), NewAPIToken{User: "anna", Note: "n", Life: time.Hour})
			must(t, err)
			made := token(t, g, NewJoinToken{Site: "oslo", Uses: 1, Life: time.Hour, By: "anna"})
			believed := func() (session, api bool) {
				with := httptest.NewRequest("GET", "/", nil)
				with.AddCookie(cookie)
				_, serr := g.Authenticate(with)
				bearer := httptest.NewRequest("GET", "/", nil)
				bearer.TLS = from(nil).TLS
				bearer.Header.Set("Authorization", "Bearer "+text)
				_, aerr := g.Authenticate(bearer)
				return serr == nil, aerr == nil
			}
			if s, a := believed(); !s || !a {
				t.Errorf("a new session or token is expired: session %v, token %v", s, a)
			}
			list, err := g.JoinTokens(t.Context())
			must(t, err)
			if left := list[0].Expires.Sub(g.Now()); left < 59*time.Minute || left > time.Hour {
				t.Errorf("the join token %v expires in %s in the hub's time", made, left)
			}
			later = 2 * time.Hour
			if _, a := believed(); a {
				t.Error("a token of one hour is accepted after two")
			}
		})
	}
}
