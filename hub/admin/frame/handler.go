package frame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/store"
)

// Tell returns an error's HTTP status and its text in whole sentences.
func (c *Call) Tell(err error) (code int, text string) {
	var told UserError
	if errors.As(err, &told) {
		return http.StatusConflict, told.Error()
	}
	code, text = c.Explain(err)
	return code, format.Capital(strings.TrimSuffix(text, ".")) + "."
}

const (
	// policy allows the page to load from and connect to this hub only. It forbids inline scripts
	// and styles, and frames.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	maxForm  = 64 << 10 // bytes
	maxLarge = 4 << 20  // bytes, of a form with YAML documents
)

// A Call is one HTTP request and its response.
type Call struct {
	*Server
	echo.Context
	User access.User // zero: not logged in
}

// handler checks each request of a route: login, role, and the CSRF token of a form. It also sets
// the security headers.
func (s *Server) handler(rt Route) echo.HandlerFunc {
	return func(ec echo.Context) error {
		c := &Call{Server: s, Context: ec}
		r, h := ec.Request(), ec.Response().Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		limit := int64(maxForm)
		if rt.Large {
			limit = maxLarge
		}
		r.Body = http.MaxBytesReader(ec.Response(), r.Body, limit)

		if !rt.Open {
			u, err := s.Sessions.Authenticate(r)
			if err != nil {
				c.refused(rt, u, http.StatusUnauthorized, err)
				return c.toLogin(err)
			}
			c.User = u
			if rt.Verb != "" && !s.Allow(u.Role, rt.Verb, rt.Resource) {
				c.refused(rt, u, http.StatusForbidden, fmt.Errorf("role %q does not allow it", u.Role))
				return c.Message(http.StatusForbidden, "Not for your role",
					"Your role “"+string(u.Role)+"” may not "+rt.Verb+" "+rt.Resource+". Ask an administrator.")
			}
		}
		if r.Method != http.MethodGet {
			var large *http.MaxBytesError
			if errors.As(r.ParseForm(), &large) {
				return c.Message(http.StatusRequestEntityTooLarge, "Too long",
					fmt.Sprintf("The form has more than %d KiB: shorten it, and send it again.", limit>>10))
			}
			if err := s.Sessions.CheckForm(r, c.User); err != nil {
				c.refused(rt, c.User, http.StatusForbidden, err)
				return c.Refuse("Not accepted", err)
			}
		}
		return rt.Serve(c)
	}
}

// refused writes a refusal to the audit, except of a GET that is redirected to the login.
func (c *Call) refused(rt Route, u access.User, code int, err error) {
	r := c.Request()
	if code == http.StatusUnauthorized && r.Method == http.MethodGet {
		return
	}
	a := store.Audit{Who: u.Name, Via: access.ViaPage, Source: cmp.Or(u.Source, c.RealIP()), Verb: rt.Verb,
		Resource: rt.Resource, Code: code, Message: err.Error()}
	if a.Verb == "" {
		a.Verb, a.Resource = map[bool]string{true: "get", false: "create"}[r.Method == http.MethodGet], r.URL.Path
	}
	c.Audit(r.Context(), a)
}

// Record writes what the user did to the audit.
func (c *Call) Record(a store.Audit) {
	a.Who, a.Via, a.Source = c.User.Name, access.ViaPage, c.User.Source
	c.Audit(c.Request().Context(), a)
}

// toLogin redirects an unauthenticated request to the login, which leads back afterwards.
func (c *Call) toLogin(err error) error {
	code, why := c.Explain(err)
	r := c.Request()
	switch {
	case code >= 500:
		return c.Message(code, "Out of order", why)
	case r.Method != http.MethodGet || r.Header.Get("Accept") == eventStream ||
		strings.HasSuffix(r.URL.Path, "/stream"):
		return c.Message(http.StatusUnauthorized, "Not logged in", "Your session has ended. Log in and do it again.")
	}
	to := "/login"
	if r.URL.Path != "/" {
		to += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	return c.Redirect(http.StatusSeeOther, to)
}

// notFound answers an unknown path.
func (c *Call) notFound() error {
	if !strings.Contains(c.Request().Header.Get("Accept"), "text/html") {
		return echo.ErrNotFound
	}
	return c.Message(http.StatusNotFound, "Nothing here", "There is no page "+c.Request().URL.Path+".")
}

// A MissingError says which object does not exist.
type MissingError string

func (e MissingError) Error() string { return string(e) }

// An InputError says what is wrong with an address, and what to use instead.
type InputError string

func (e InputError) Error() string { return string(e) }

// Explain returns an error's HTTP status and a sentence. It logs errors that are the hub's own
// fault.
func (c *Call) Explain(err error) (code int, sentence string) {
	return c.explainOf(c.Request().URL.Path, err)
}

func (s *Server) explainOf(path string, err error) (code int, sentence string) {
	var missing MissingError
	if errors.As(err, &missing) {
		return http.StatusNotFound, missing.Error()
	}
	var input InputError
	if errors.As(err, &input) {
		return http.StatusBadRequest, input.Error()
	}
	var no *APIRefusal
	if errors.As(err, &no) {
		return no.Code, no.Error()
	}
	for _, known := range explained {
		if errors.Is(err, known.sentinel) {
			return known.code, cmp.Or(known.sentence, strings.ReplaceAll(err.Error(), known.sentinel.Error()+": ", ""))
		}
	}
	s.Log.Error("page failed", "path", path, "err", err)
	return http.StatusInternalServerError, "the hub cannot answer now; see its log"
}

// explained are the errors that are not the hub's fault. Without a sentence here, the error's own
// text is shown.
var explained = []struct {
	sentinel error
	code     int
	sentence string
}{
	{access.ErrTooMany, http.StatusTooManyRequests, ""}, {access.ErrInvalid, http.StatusBadRequest, ""},
	{access.ErrUnauthenticated, http.StatusUnauthorized, ""},
	{access.ErrForbidden, http.StatusForbidden, ""}, {access.ErrConflict, http.StatusConflict, ""},
	{store.ErrNotFound, http.StatusNotFound, ""}, {store.ErrExists, http.StatusConflict, ""},
	{store.ErrFull, http.StatusInsufficientStorage, "the hub's disk is full: free space on it, and try again"},
	{store.ErrUnavailable, http.StatusServiceUnavailable,
		"the hub's database does not answer: try again in a moment, and see the hub's log"},
	{control.ErrUnavailable, http.StatusServiceUnavailable,
		"the hub's database does not answer: try again in a moment, and see the hub's log"},
	{control.ErrStopped, http.StatusServiceUnavailable, ""},
	// the hub stops, or the client has disconnected
	{context.Canceled, http.StatusServiceUnavailable,
		"the hub is stopping: check in a moment whether the change was made, and try again if not"},
}

// Refuse answers with an error's sentence.
func (c *Call) Refuse(title string, err error) error {
	code, sentence := c.Explain(err)
	return c.Message(code, title, sentence)
}

// LocalPath returns next if it is a path of this page, otherwise the overview.
func LocalPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" ||
		!strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return next
}

// A UserError is an error whose text is shown to users as it is.
type UserError string

func (s UserError) Error() string { return string(s) }
