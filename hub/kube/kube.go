// Package kube is the hub's Kubernetes-compatible API: what kubectl, k9s,
// Headlamp and client-go speak.
//
// One handler answers everything below /api, /apis, /openapi and /version, another
// whether the hub is well. Reads
// are answered from a snapshot of package state. Writes are news: a pure function
// from the newest snapshot to changes, which the control loop runs, remembers and
// only then reports back. Watchers follow the loop's bounded feed of changes.
//
// The package decides nothing about the fleet and keeps nothing but encodings of
// the newest changes. Package resource is the table of what is served, body reads what is sent,
// write says what a request to change something comes to, watch streams changes. What an object's
// fields may be is package admission's rule, the columns of tables are package table's, the schemas
// package openapi's, the protocols of exec, attach and port-forward package remote's.
package kube

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/openapi"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/kube/watch"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// A Fleet is the control loop as this package sees it.
type Fleet interface {
	watch.Fleet
	// Do has the only writer run the news, and returns what it did once that is
	// durable. An error of the news itself comes back as it is.
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
}

// Logs copies a container's log to w until its end, or, with opts.Follow, until
// the container ends or ctx does. An error before the first byte is told to the client.
type Logs interface {
	Logs(ctx context.Context, pod *corev1.Pod, opts corev1.PodLogOptions, w io.Writer) error
	// NodeLogs copies the log of a node's own agent; it takes the options that do not
	// name a container.
	NodeLogs(ctx context.Context, node string, opts corev1.PodLogOptions, w io.Writer) error
}

// Metrics asks a device what it and its pods use now. That may take seconds; many
// devices may be asked at once.
type Metrics interface {
	Usage(ctx context.Context, node string) (wire.Usage, error)
}

// Access knows people.
type Access interface {
	// Authenticate tells who asks; an error that is none of access's is the hub's fault.
	Authenticate(r *http.Request) (access.User, error)
	// CheckForm refuses what the session of a page sends and was not sent from there.
	CheckForm(r *http.Request, u access.User) error
}

// An Audit keeps what people have changed, which secrets they have read, what they
// have entered, and what was refused to them.
type Audit interface {
	Record(ctx context.Context, a store.Audit) // before it is answered
	Note(a store.Audit)                        // within a second
}

// A Config is what a Server needs. Logs, Streams, Metrics and Audit may be nil: what
// depends on them is then not served.
type Config struct {
	Fleet  Fleet
	Leases resource.Leases
	Access Access
	Allow  func(role access.Role, verb, resource string) bool // nil: access.Allow
	// RoleOf is the role of the person of a name, "" for nobody; nil: no names are known.
	RoleOf   func(ctx context.Context, user string) (access.Role, error)
	Logs     Logs
	Streams  Streams
	Online   func(node string) bool // whether a node's device is connected; nil: that shows when it is asked
	Metrics  Metrics
	Audit    Audit
	Settings admission.Settings
	Version  string           // of the hub, such as "1.0.0"; stands behind Kubernetes' version
	Others   []Other          // what else is served at the hub's address, to be told by /
	OpenAPI  http.Handler     // serves /openapi; nil: the documents of package openapi
	Log      *slog.Logger     // nil: slog.Default()
	Now      func() time.Time // the hub's time, which objects carry; nil: the machine's
}

// An Other is a path of the hub that is not the API's, and who may read it.
type Other struct{ Path, Verb, Resource string }

// A Server answers the API. It is an http.Handler.
type Server struct {
	Config
	view      *resource.View
	resources []*resource.Resource
	encodings *watch.Encodings
	managers  *write.Managers
	sessions  *semaphore.Weighted
	shares    listen.Shares // of sessions
	answers   *answers
	sifting   *sifting
	health    *health
	load      *body.Load
}

// New returns the API of a fleet.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Allow == nil {
		c.Allow = access.Allow
	}
	if c.OpenAPI == nil {
		c.OpenAPI = openapi.Handler()
	}
	return &Server{Config: c, view: &resource.View{Leases: c.Leases, Now: c.Now}, resources: resource.Served(c.has),
		encodings: watch.NewEncodings(), managers: write.NewManagers(c.Settings),
		sessions: semaphore.NewWeighted(maxSessions), shares: listen.Shares{Most: userSessions}, answers: newAnswers(),
		sifting: newSifting(), health: newHealth(c.Fleet), load: body.NewLoad()}
}

// The paths that are mounted.
var (
	apiPaths    = []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version", "/version/"}
	healthPaths = []string{"/healthz", "/livez", "/readyz"}
)

// Register mounts the API on the paths that it answers. What browsers see of / is others' matter.
func (s *Server) Register(e *echo.Echo) {
	h := echo.WrapHandler(s)
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if asksForIndex(c.Request()) {
				return h(c)
			}
			return next(c)
		}
	})
	for _, path := range apiPaths {
		e.Any(path, h)
	}
	alive := echo.WrapHandler(s.health)
	for _, path := range healthPaths {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, alive)
		e.Match([]string{http.MethodGet, http.MethodHead}, path+"/*", alive)
	}
}

// guarded tells browsers, which come with a session, that an answer is nothing but what it
// says, a container's log no page, and that it is no other site's.
func guarded(h http.Header) {
	h.Set("Cache-Control", "no-cache, private")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// foreign tells browsers that an answer's content comes from a pod or a device: no script, no form,
// and an origin that is not the hub's.
func foreign(h http.Header) { h.Set("Content-Security-Policy", "sandbox") }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	guarded(w.Header())
	if strings.TrimSuffix(r.URL.Path, "/") == "/version" {
		s.version(w, r)
		return
	}
	c := &call{Server: s, w: w, r: r}
	defer func() {
		if c.reader != nil {
			c.reader.Release()
		}
	}()
	serve := c.serve
	if r.URL.Path == "/" {
		serve = c.index
	}
	if err := serve(); err != nil {
		c.auditRefusal(err)
		c.fail(err)
	}
}

// has tells whether the hub has what a resource needs.
func (c Config) has(p state.Feature) bool {
	switch p {
	case state.Logs:
		return c.Logs != nil
	case state.Streams:
		return c.Streams != nil
	case state.Metrics:
		return c.Metrics != nil
	}
	return true
}
