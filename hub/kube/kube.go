// Package kube is the hub's Kubernetes-compatible API, for kubectl, k9s, Headlamp and client-go.
//
// It answers everything below /api, /apis, /openapi and /version, and the health checks. Reads are
// answered from a snapshot of package state. A write is a pure function from the newest snapshot to
// changes. The control loop runs it, and stores the changes before the answer. The package decides
// nothing about the fleet.
//
// Packages below it: resource (table of resources), body (reading bodies), write (steps of writes),
// watch, table, openapi (documents), remote (exec, attach, port-forward). Package admission has the
// rules for objects' fields. Package serve mounts kube.
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

// A Fleet is the control loop.
type Fleet interface {
	watch.Fleet
	// Do runs the news in the control loop, and returns its changes when they are durable. It
	// returns an error of the news unchanged.
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
}

// Logs copies a container's log to w until the log ends or, with opts.Follow, until the container
// ends. An error before the first byte becomes the answer.
type Logs interface {
	Logs(ctx context.Context, pod *corev1.Pod, opts corev1.PodLogOptions, w io.Writer) error
	// NodeLogs copies the log of a node's agent. It ignores options that name a container.
	NodeLogs(ctx context.Context, node string, opts corev1.PodLogOptions, w io.Writer) error
}

// Metrics asks a device for its own and its pods' current usage. This may take seconds; concurrent
// calls for many devices are fine.
type Metrics interface {
	Usage(ctx context.Context, node string) (wire.Usage, error)
}

// Access authenticates users.
type Access interface {
	// Authenticate returns the sender of a request. An error that is not from package access is a
	// failure of the hub.
	Authenticate(r *http.Request) (access.User, error)
	// CheckForm refuses requests that come from another site but use a page's session.
	CheckForm(r *http.Request, u access.User) error
}

// An Audit records changes, reads of secrets, entered containers and refusals.
type Audit interface {
	Record(ctx context.Context, a store.Audit) // stores before the answer is sent
	Note(a store.Audit)                        // stores within a second
}

// A Config is what a Server needs. Without Logs, Streams, Metrics or Audit, the parts of the API
// that depend on them are not served.
type Config struct {
	Fleet  Fleet
	Leases resource.Leases
	Access Access
	Allow  func(role access.Role, verb, resource string) bool // nil means access.Allow
	// RoleOf returns the role of a user, or "" for an unknown name. If it is nil, all names are
	// unknown.
	RoleOf   func(ctx context.Context, user string) (access.Role, error)
	Logs     Logs
	Streams  Streams
	Online   func(node string) bool // whether a node's device is connected; nil: only a request to the device shows it
	Metrics  Metrics
	Audit    Audit
	Settings admission.Settings
	Version  string           // the hub's version, such as "1.0.0"; /version shows it after Kubernetes' version
	Others   []Other          // other paths of the hub, which / lists
	OpenAPI  http.Handler     // serves /openapi; nil means package openapi
	Log      *slog.Logger     // nil means slog.Default()
	Now      func() time.Time // returns the hub's time for objects; nil means time.Now
}

// An Other is a path of the hub outside of the API, with the right that it needs.
type Other struct{ Path, Verb, Resource string }

// A Server answers the API. It is an http.Handler.
type Server struct {
	Config
	view      *resource.View
	resources []*resource.Resource
	encodings *watch.Encodings
	managers  *write.Managers
	sessions  *semaphore.Weighted
	shares    listen.Shares // limits sessions
	answers   *answers
	filters   *logFilters
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
		filters: newLogFilters(), health: newHealth(c.Fleet), load: body.NewLoad()}
}

// Mounted paths.
var (
	apiPaths    = []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version", "/version/"}
	healthPaths = []string{"/healthz", "/livez", "/readyz"}
)

// Register mounts the API. The page, which another package mounts, answers a browser's request for
// "/".
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

// setGuards sets headers that protect a browser's session: browsers do not take answers for pages,
// and other sites cannot read them.
func setGuards(h http.Header) {
	h.Set("Cache-Control", "no-cache, private")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// isolate sets the headers for content of a pod or device: no scripts, no forms, and an origin
// other than the hub's.
func isolate(h http.Header) { h.Set("Content-Security-Policy", "sandbox") }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setGuards(w.Header())
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

// has reports whether the hub has the part that a resource needs.
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
