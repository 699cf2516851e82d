// Package admin is the page: what an operator opens in the morning, and at 3 a.m.
//
// Every view is a function from a snapshot to what a template shows; what people
// want changed goes through the same door as the API's writes. An open page is sent
// what it shows anew, by server-sent events, whenever that has changed.
//
// The room keeps no truth of its own, decides nothing about the fleet and knows
// no password: package access does, behind the interfaces declared here. The words
// for pods are those of package kube/table; templates and scripts are package web's.
package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/state"
)

// News asks for changes to the snapshot that it is given; see package control.
type News = func(s state.Snapshot, now time.Time) ([]state.Change, error)

// A Fleet is the control loop as the page sees it.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() state.Snapshot
	// Do has the only writer run the news, and returns once that is durable.
	Do(ctx context.Context, news News) ([]state.Applied, error)
	// Since returns every change after the revision, and a channel that is closed
	// when there is more; an error when the history does not reach back that far.
	Since(rev uint64) ([]state.Applied, <-chan struct{}, error)
}

// A User is who a request comes from.
type User struct {
	Name   string
	Role   string // admin, operator, viewer, device
	Via    string // session, token, certificate
	Source string // address
	CSRF   string // what the session's forms must carry
}

// Sessions knows who is logged in.
type Sessions interface {
	// Authenticate tells who sends a request; an error: nobody that is known.
	Authenticate(r *http.Request) (User, error)
	// CheckForm refuses a request that changes something and was not sent from our
	// own page, with the session's CSRF token in the form field csrf. The zero User
	// has no session: then only where the request comes from is checked.
	CheckForm(r *http.Request, u User) error
	// Logout ends the request's session, and returns the cookie that says so.
	Logout(ctx context.Context, r *http.Request) (*http.Cookie, error)
}

// A Credential is what somebody types to come in.
type Credential struct {
	Name, Password string
	Source         string // address
}

// An Entrance lets people in.
type Entrance interface {
	// Login returns the cookie of a new session.
	Login(ctx context.Context, c Credential) (*http.Cookie, error)
	// Setup makes the first administrator, for whoever has the setup link's secret.
	Setup(ctx context.Context, secret string, c Credential) error
	// Empty tells whether there is no user yet.
	Empty(ctx context.Context) (bool, error)
}

// A NewToken is asked for to let devices join.
type NewToken struct {
	Site string
	Node string // the one node that it is for; "": any name
	Uses int
	Life time.Duration
	By   string
}

// A Liveness is what is known of a node's link.
type Liveness struct {
	Seen      time.Time // zero: not since the hub started
	Connected bool
	Lease     uint64        // number of the newest lease of this boot
	Skew      time.Duration // the device's clock less ours
	Wanted    int64         // generation of the desired state that the device should have
	Stored    int64         // generation that it has
	Hardware  json.RawMessage
}

// An Act is what somebody did, for the audit.
type Act struct {
	User           User
	Verb, Resource string
	Name           string
	Code           int
	Message        string
}

// A Config is what a Server needs. All of it but Audit, Log and the addresses must be set.
type Config struct {
	Fleet    Fleet
	Sessions Sessions
	Entrance Entrance
	// Allow tells whether a role may do a verb to a resource, in Kubernetes' words.
	Allow func(role, verb, resource string) bool
	// Explain turns an error of Sessions, Entrance or Token into an HTTP code and a
	// sentence for the one who caused it. A code of 500 or more is logged besides.
	Explain  func(err error) (code int, sentence string)
	Liveness func(node string) Liveness
	// Usage asks a device what it uses now. That may take seconds.
	Usage func(ctx context.Context, node string) (Usage, error)
	// Token makes a join token; it is shown this once.
	Token func(ctx context.Context, t NewToken) (string, error)
	Audit func(ctx context.Context, a Act)
	// API is the hub's Kubernetes-compatible API. It finds who asks in the request,
	// as Sessions does: what people write in the page goes through the same checks.
	API      http.Handler
	Logs     Logs
	Shells   Shells
	House    House
	People   People
	Tokens   Tokens
	Accounts Accounts
	// Kubeconfig is the file by which kubectl comes in.
	Kubeconfig func(k Kubeconfig) ([]byte, error)
	// HubURL is what devices join through, such as https://gateway:8443; "" is the
	// address by which the page was reached.
	HubURL  string
	Version string
	// Pauses are when no hub ran, oldest first: then nothing is known of any node.
	Pauses []Pause
	Log    *slog.Logger
}

// A Server serves the page.
type Server struct {
	Config
	look   *look
	cache  *cache
	live   *live
	gauges *gauges
	tools  tools

	actions []*action
	jobs    *jobs
}

// New returns the page of a fleet. It panics when a template is wrong, which no
// setting can cause.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Audit == nil {
		c.Audit = func(context.Context, Act) {}
	}
	l := newLive(c.Fleet)
	gauges := newGauges(c.Usage, func(node string) { l.touch(usageTopic(node)) })
	return &Server{Config: c, look: newLook(), cache: newCache(), live: l, gauges: gauges, actions: actions(), jobs: newJobs(l)}
}

// Run keeps the open pages up to date until ctx is done; then it ends their
// streams, and the actions that are still being done.
func (s *Server) Run(ctx context.Context) error {
	defer s.jobs.end()
	return s.live.Run(ctx)
}

// A Route is one door of the page and what it takes to pass it.
type Route struct {
	Method, Path string
	// Open routes need no login. Of the others, the role must be allowed Verb on
	// Resource; without a Verb, being logged in is enough.
	Open           bool
	Verb, Resource string
	Large          bool // its form may hold documents

	serve func(*call) error
}

// Routes lists every door.
func (s *Server) Routes() []Route {
	get := func(path, verb, resource string, v view) Route {
		return Route{Method: http.MethodGet, Path: path, Verb: verb, Resource: resource, serve: func(c *call) error { return c.show(v) }}
	}
	return append(s.actionRoutes(), []Route{
		{Method: http.MethodGet, Path: "/static/*", Open: true, serve: (*call).static},
		{Method: http.MethodGet, Path: "/setup", Open: true, serve: (*call).setupForm},
		{Method: http.MethodPost, Path: "/setup", Open: true, serve: (*call).setup},
		{Method: http.MethodGet, Path: "/login", Open: true, serve: (*call).loginForm},
		{Method: http.MethodPost, Path: "/login", Open: true, serve: (*call).login},
		{Method: http.MethodGet, Path: "/session", Open: true, serve: (*call).session},
		{Method: http.MethodPost, Path: "/logout", serve: (*call).logout},

		get("/", "list", "nodes", overview),
		get("/nodes", "list", "nodes", nodes),
		get("/nodes/:name", "get", "nodes", node),
		get("/sites", "list", "sites", sites),
		get("/workloads", "list", "deployments", workloads),
		get("/workloads/:kind/:namespace/:name", "get", "deployments", workload),
		get("/pods", "list", "pods", pods),
		get("/pods/:namespace/:name", "get", "pods", pod),
		get("/events", "list", "events", events),
		get("/devices/add", "create", "jointokens", addDevice),
		{Method: http.MethodPost, Path: "/devices/add", Verb: "create", Resource: "jointokens", serve: (*call).token},
		get("/devices/joined", "create", "jointokens", joined),

		{Method: http.MethodGet, Path: "/nodes/:name/logs", Verb: "get", Resource: "nodes/proxy", serve: (*call).logs},
		{Method: http.MethodGet, Path: "/nodes/:name/logs/stream", Verb: "get", Resource: "nodes/proxy", serve: (*call).logStream},
		{Method: http.MethodGet, Path: "/nodes/:name/logs/download", Verb: "get", Resource: "nodes/proxy", serve: (*call).logFile},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs", Verb: "get", Resource: "pods/log", serve: (*call).logs},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/stream", Verb: "get", Resource: "pods/log", serve: (*call).logStream},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/download", Verb: "get", Resource: "pods/log", serve: (*call).logFile},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/terminal", Verb: "create", Resource: "pods/exec", serve: (*call).terminal},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/terminal/socket", Verb: "create", Resource: "pods/exec", serve: (*call).terminalSocket},
		{Method: http.MethodGet, Path: "/yaml", Verb: "update", Resource: "deployments", serve: (*call).pasteForm},
		{Method: http.MethodPost, Path: "/yaml", Verb: "update", Resource: "deployments", Large: true, serve: (*call).paste},
		{Method: http.MethodGet, Path: "/yaml/*", Verb: "list", Resource: "nodes", serve: (*call).editForm},
		{Method: http.MethodPost, Path: "/yaml/*", Verb: "update", Resource: "deployments", Large: true, serve: (*call).edit},
		get("/boards", "list", "boardprofiles", boards),
		{Method: http.MethodGet, Path: "/audit", Verb: "list", Resource: "audit", serve: (*call).auditView},
		{Method: http.MethodGet, Path: "/account", Verb: "get", Resource: "account", serve: (*call).account},
		{Method: http.MethodPost, Path: "/account", Verb: "update", Resource: "account", serve: (*call).accountAction},
		{Method: http.MethodGet, Path: "/settings", Verb: "get", Resource: "settings", serve: (*call).settings},
		{Method: http.MethodPost, Path: "/settings", Verb: "update", Resource: "settings", serve: (*call).settingsAction},
	}...)
}

// Register mounts the page on its routes.
func (s *Server) Register(e *echo.Echo) {
	for _, r := range s.Routes() {
		e.Add(r.Method, r.Path, s.handler(r))
	}
	e.RouteNotFound("/*", s.handler(Route{Open: true, serve: (*call).nowhere}))
}
