// Package kube is the hub's Kubernetes-compatible API: what kubectl, k9s,
// Headlamp and client-go speak.
//
// One handler answers everything below /api, /apis, /openapi and /version, another
// whether the hub is well. Reads
// are answered from a snapshot of package state. Writes are news: a pure function
// from the newest snapshot to changes, which the control loop runs, remembers and
// only then reports back. Watchers follow the loop's bounded feed of changes.
//
// The room decides nothing about the fleet and keeps nothing but encodings of
// the newest changes. What an object's fields may be is package admission's
// rule, the columns of tables are package table's, the schemas package openapi's, the
// protocols of exec, attach and port-forward package remote's.
package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/kube/openapi"
	"flotilla.dev/hub/state"
)

// News asks for changes to the snapshot that it is given. It is pure; an error
// means that nothing is to change.
type News = func(s state.Snapshot, now time.Time) ([]state.Change, error)

// A Fleet is the control loop as this room sees it.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() state.Snapshot
	// Do has the only writer run the news, and returns what it did once that is
	// durable. An error of the news itself comes back as it is; ErrFull says that
	// there is no room to remember it.
	Do(ctx context.Context, news News) ([]state.Applied, error)
	// Since returns every change after the revision, in order, and a channel that
	// is closed when there is more. It fails only when the history does not reach
	// back that far.
	Since(rev uint64) ([]state.Applied, <-chan struct{}, error)
}

// ErrFull is what a Fleet wraps that has no room to remember anything more.
var ErrFull = errors.New("no room on the hub's disk")

// Leases tells when nodes were last heard of, as objects of namespace kube-node-lease.
type Leases interface {
	Seen(node string) time.Time       // zero: not since the hub started
	Lease(node string) *coordv1.Lease // nil: no such node
	Leases() []*coordv1.Lease
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
	Usage(ctx context.Context, node string) (Usage, error)
}

// A Usage is what a device measured over a short while. It is only read.
type Usage struct {
	Time   time.Time // the end of the while
	Window time.Duration
	Node   corev1.ResourceList
	Pods   []PodUsage // what the device says, of whatever pods
}

// A PodUsage is one pod of a Usage.
type PodUsage struct {
	Namespace, Name string
	UID             types.UID
	Containers      []ContainerUsage
}

// A ContainerUsage is one container of a PodUsage.
type ContainerUsage struct {
	Name  string
	Usage corev1.ResourceList
}

// Access knows people and their roles.
type Access interface {
	// Authenticate tells who asks, by client certificate or bearer token.
	Authenticate(r *http.Request) (user string, groups []string, role string, err error)
	// Allow tells whether a role may do a verb to a resource, such as "pods" or "pods/log".
	Allow(role, verb, resource string) bool
}

// An Audit keeps what people have changed. err is nil where it succeeded.
type Audit interface {
	Audit(r *http.Request, user, verb, object string, err error)
}

// A Config is what a Server needs. Logs, Streams, Metrics and Audit may be nil: what
// depends on them is then not served.
type Config struct {
	Fleet    Fleet
	Leases   Leases
	Access   Access
	Logs     Logs
	Streams  Streams
	Online   func(node string) bool // whether a node's device is connected; nil: that shows when it is asked
	Metrics  Metrics
	Audit    Audit
	Settings admission.Settings
	Version  string       // of the hub, such as "1.0.0"; stands behind Kubernetes' version
	OpenAPI  http.Handler // serves /openapi; nil: the documents of package openapi
	Log      *slog.Logger // nil: slog.Default()
}

// A Server answers the API. It is an http.Handler.
type Server struct {
	Config
	resources []*resource
	frames    *frames
	apply     *applier
	sessions  *semaphore.Weighted
}

// New returns the API of a fleet.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.OpenAPI == nil {
		c.OpenAPI = openapi.Handler()
	}
	return &Server{Config: c, resources: served(c), frames: newFrames(), apply: newApplier(c.Settings), sessions: semaphore.NewWeighted(maxSessions)}
}

// Register mounts the API on the paths that it answers.
func (s *Server) Register(e *echo.Echo) {
	h := echo.WrapHandler(s)
	for _, path := range []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version", "/version/"} {
		e.Any(path, h)
	}
	alive := echo.WrapHandler(newHealth(s.Fleet))
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, alive)
		e.Match([]string{http.MethodGet, http.MethodHead}, path+"/*", alive)
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, private")
	if strings.TrimSuffix(r.URL.Path, "/") == "/version" {
		s.version(w, r)
		return
	}
	c := &call{Server: s, w: w, r: r}
	if err := c.serve(); err != nil {
		c.fail(err)
	}
}
