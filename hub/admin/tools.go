package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/listen"
)

// tools counts what is open of each tool that holds a device's or the hub's means.
type tools struct {
	logs      seats
	terminals seats
	pages     listen.Shares // of the open pages; live counts them all
}

func newTools() tools {
	return tools{
		logs:      seats{most: maxLogs, shares: listen.Shares{Most: maxLogs / 2}},
		terminals: seats{most: maxTerminals, shares: listen.Shares{Most: maxTerminals / 2}},
		pages:     listen.Shares{Most: maxStreams / 4},
	}
}

// seats are so many for all, of which one person has half at most.
type seats struct {
	most   int64
	taken  atomic.Int64
	shares listen.Shares
}

// enter takes a seat; leave gives it back. ok is false when none is left for this person.
func (s *seats) enter(user string) (leave func(), ok bool) {
	mine, ok := s.shares.Enter(user)
	if !ok {
		return nil, false
	}
	if s.taken.Add(1) > s.most {
		s.taken.Add(-1)
		mine()
		return nil, false
	}
	return func() { s.taken.Add(-1); mine() }, true
}

// maxAnswer bounds what is read of the API's answer, in bytes.
const maxAnswer = 16 << 20

// An apiCall is a request to the hub's API in the name of whoever is logged in.
type apiCall struct {
	method, path string
	query        url.Values
	media        string // of body
	body         []byte
}

// An apiAnswer is what the API said to it.
type apiAnswer struct {
	code     int
	body     []byte // JSON
	warnings []string
}

// A caller is who asks the API: whoever is logged in, as in the request that they sent.
type caller struct {
	api              http.Handler
	host, remote     string
	tls              *tls.ConnectionState
	cookies, bearers []string
	csrf             string
}

func (c *call) caller() caller {
	r := c.Request()
	return caller{c.API, r.Host, r.RemoteAddr, r.TLS, slices.Clone(r.Header.Values("Cookie")), slices.Clone(r.Header.Values("Authorization")), c.user.CSRF}
}

// api asks the hub's own API. It gets the same credentials as the page did, so its
// roles, checks, defaults and audit hold for what is written in the page too.
func (c *call) api(q apiCall) (apiAnswer, error) { return c.caller().ask(c.Request().Context(), q) }

func (who caller) ask(ctx context.Context, q apiCall) (apiAnswer, error) {
	ctx = access.Through(ctx, access.ViaPage)
	r, err := http.NewRequestWithContext(ctx, q.method, (&url.URL{Path: q.path, RawQuery: q.query.Encode()}).String(), bytes.NewReader(q.body))
	if err != nil {
		return apiAnswer{}, fmt.Errorf("ask the API for %s: %w", q.path, err)
	}
	r.Host, r.RemoteAddr, r.TLS = who.host, who.remote, who.tls
	for name, values := range map[string][]string{"Cookie": who.cookies, "Authorization": who.bearers} {
		if len(values) > 0 {
			r.Header[name] = values
		}
	}
	r.Header.Set("X-CSRF-Token", who.csrf) // the form's was checked before
	r.Header.Set("User-Agent", "flotilla-page")
	r.Header.Set("Accept", "application/json")
	if q.media != "" {
		r.Header.Set("Content-Type", q.media)
	}
	w := &recorder{header: http.Header{}, code: http.StatusOK}
	who.api.ServeHTTP(w, r)
	if w.over {
		return apiAnswer{}, fmt.Errorf("ask the API for %s: its answer has more than %d bytes", q.path, maxAnswer)
	}
	a := apiAnswer{code: w.code, body: w.body.Bytes()}
	for _, line := range w.header.Values("Warning") {
		a.warnings = append(a.warnings, warningText(line))
	}
	return a, nil
}

// err is what the API refused; nil: it did not.
func (a apiAnswer) err() *apiRefusal {
	if a.code < 400 {
		return nil
	}
	e := &apiRefusal{code: a.code}
	if yaml.Unmarshal(a.body, &e.status) != nil || e.status.Message == "" {
		e.status.Message = string(bytes.TrimSpace(a.body))
	}
	return e
}

// An apiRefusal is the API's no.
type apiRefusal struct {
	code   int
	status metav1.Status
}

func (e *apiRefusal) Error() string { return e.status.Message }

// warningText takes the text out of a Warning header: 299 - "text".
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

// A recorder is the answer of a handler in memory.
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
