package frame

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/access"
)

// maxAnswer bounds the API's answer, in bytes.
const maxAnswer = 16 << 20

// An APICall is a request to the hub's API in the name of the logged-in user.
type APICall struct {
	Method, Path string
	Query        url.Values
	Media        string // media type of Body
	Body         []byte
}

// An apiAnswer is the API's answer to an APICall.
type apiAnswer struct {
	Code     int
	Body     []byte // as JSON
	Warnings []string
}

// A caller holds the credentials of a page request, which its API requests reuse.
type caller struct {
	api              http.Handler
	host, remote     string
	tls              *tls.ConnectionState
	cookies, bearers []string
	csrf             string
}

func (c *Call) caller() caller {
	r := c.Request()
	return caller{c.API, r.Host, r.RemoteAddr, r.TLS, slices.Clone(r.Header.Values("Cookie")),
		slices.Clone(r.Header.Values("Authorization")), c.User.CSRF}
}

// AskAPI sends a request to the hub's own API with the credentials of the page's request: its
// roles, checks, defaults and audit apply.
func (c *Call) AskAPI(q APICall) (apiAnswer, error) { return c.caller().ask(c.Request().Context(), q) }

func (who caller) ask(ctx context.Context, q APICall) (apiAnswer, error) {
	ctx = access.Through(ctx, access.ViaPage)
	r, err := http.NewRequestWithContext(ctx, q.Method, (&url.URL{Path: q.Path, RawQuery: q.Query.Encode()}).String(),
		bytes.NewReader(q.Body))
	if err != nil {
		return apiAnswer{}, fmt.Errorf("ask the API for %s: %w", q.Path, err)
	}
	r.Host, r.RemoteAddr, r.TLS = who.host, who.remote, who.tls
	for name, values := range map[string][]string{"Cookie": who.cookies, "Authorization": who.bearers} {
		if len(values) > 0 {
			r.Header[name] = values
		}
	}
	r.Header.Set("X-CSRF-Token", who.csrf) // the form's token was checked before
	r.Header.Set("User-Agent", "flotilla-page")
	r.Header.Set("Accept", "application/json")
	if q.Media != "" {
		r.Header.Set("Content-Type", q.Media)
	}
	w := &recorder{header: http.Header{}, code: http.StatusOK}
	who.api.ServeHTTP(w, r)
	if w.over {
		return apiAnswer{}, fmt.Errorf("ask the API for %s: its response has more than %d bytes", q.Path, maxAnswer)
	}
	a := apiAnswer{Code: w.code, Body: w.body.Bytes()}
	for _, line := range w.header.Values("Warning") {
		a.Warnings = append(a.Warnings, warningText(line))
	}
	return a, nil
}

// Err is the API's refusal; nil: it accepted.
func (a apiAnswer) Err() *APIRefusal {
	if a.Code < 400 {
		return nil
	}
	e := &APIRefusal{Code: a.Code}
	if yaml.Unmarshal(a.Body, &e.Status) != nil || e.Status.Message == "" {
		e.Status.Message = string(bytes.TrimSpace(a.Body))
	}
	return e
}

// An APIRefusal is an error status of the API.
type APIRefusal struct {
	Code   int
	Status metav1.Status
}

func (e *APIRefusal) Error() string { return e.Status.Message }

// warningText returns the text of a Warning header: 299 - "text".
func warningText(line string) string {
	var text []byte
	in := false
	for i := 0; i < len(line); i++ {
		switch b := line[i]; {
		case b == '"':
			in = !in
		case !in:
		case b == '\\' && i+1 < len(line):
			i++
			text = append(text, line[i])
		default:
			text = append(text, b)
		}
	}
	return string(text)
}

// A recorder keeps a handler's answer in memory.
type recorder struct {
	header http.Header
	code   int
	began  bool
	over   bool
	body   bytes.Buffer
}

var errTooLong = errors.New("the answer is too long")

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(code int) {
	if !w.began {
		w.began, w.code = true, code
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.over = w.over || w.body.Len()+len(b) > maxAnswer; w.over {
		return 0, errTooLong
	}
	return w.body.Write(b)
}
