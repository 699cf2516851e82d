package admin

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// `flotilla-hub kubeconfig --role viewer` issues a certificate in an administrator's name. It does
// not give access to an administrator's tokens.
func TestACertificateHasNoAccount(t *testing.T) {
	c, _ := guarded(t, admintest.New())
	g := c.Sessions.(*access.Guard)
	if err := g.CreateUser(t.Context(), access.NewUser{Name: "admin", Password: "four words are good", Role: access.Admin}); err != nil {
		t.Fatal(err)
	}
	theirs, err := g.CreateAPIToken(t.Context(), access.NewAPIToken{User: "admin", Note: "the script", Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	chain, _, err := g.Authority.IssueClient(pki.Viewer, "admin", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var shown []*x509.Certificate
	for rest := chain; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, cert)
	}
	e := echo.New()
	New(c).Register(e)
	id := strings.Split(theirs, ".")[1]
	mine := store.View{Name: "odd ones", Href: "/nodes?q=odd"}
	if err := g.SaveView(t.Context(), "admin", mine); err != nil {
		t.Fatal(err)
	}
	ask := func(method, path string, form url.Values) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.TLS = &tls.ConnectionState{PeerCertificates: shown}
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		return w
	}
	for _, form := range []url.Values{
		{"action": {"save"}, "name": {mine.Name}, "href": {"/nodes?q=else"}},
		{"action": {"save"}, "name": {"another"}, "href": {"/pods"}},
		{"action": {"delete"}, "name": {mine.Name}, "href": {mine.Href}},
	} {
		if w := ask(http.MethodPost, "/views", form); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "log in with your password") {
			t.Errorf("a certificate may %s a view: %d %s", form["action"], w.Code, w.Header().Get("Location"))
		}
	}
	if w := ask(http.MethodGet, "/nodes", nil); w.Code != http.StatusOK || strings.Contains(w.Body.String(), mine.Name) {
		t.Errorf("a certificate sees the user's views: %d", w.Code)
	}
	if own, err := g.Views(t.Context(), "admin"); err != nil || len(own) != 1 || own[0] != mine {
		t.Errorf("the user has the views %v, %v", own, err)
	}
	for _, form := range []url.Values{
		{"action": {"create"}, "note": {"x"}, "life": {"8760h"}},
		{"action": {"revoke"}, "id": {id}},
		{"action": {"password"}, "old": {"four words are good"}, "password": {"four words are bad"}, "again": {"four words are bad"}},
	} {
		w := ask(http.MethodPost, "/account", form)
		if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "log in with your password") {
			t.Errorf("a certificate may do %s: %d %s", form["action"], w.Code, w.Header().Get("Location"))
		}
		if strings.Contains(w.Body.String(), "FLA1.") {
			t.Error("the certificate has made a token")
		}
	}
	if own, err := g.APITokensOf(t.Context(), "admin"); err != nil || len(own) != 1 {
		t.Errorf("the user has the tokens %v, %v", own, err)
	}
}
