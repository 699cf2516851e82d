// Package admin is the page: what an operator opens in the morning, and at 3 a.m.
//
// Every view is a function from a snapshot to what a template shows; what people
// want changed goes the same way as the API's writes. An open page is sent
// what it shows anew, by server-sent events, whenever that has changed.
//
// The room keeps no truth of its own, decides nothing about the fleet and knows
// no password: package access does, behind the interfaces declared here. The words
// for pods are those of package kube/table; templates and scripts are package web's.
package admin

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/history"
	devices "flotilla.dev/hub/node"
	"flotilla.dev/hub/preview"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
	"flotilla.dev/web/manual"
)

// A Fleet is the control loop as the page sees it.
type Fleet interface {
	// Snapshot returns the newest snapshot.
	Snapshot() state.Snapshot
	// Do has the only writer run the news, and returns once that is durable.
	Do(ctx context.Context, news control.News) ([]state.Applied, error)
	// Since returns every change after the revision, and a channel that is closed
	// when there is more; an error when the history does not reach back that far.
	Since(rev uint64) ([]state.Applied, <-chan struct{}, error)
}

// Sessions knows who is logged in.
type Sessions interface {
	// Authenticate tells who sends a request; an error: nobody that is known.
	Authenticate(r *http.Request) (access.User, error)
	// CheckForm refuses a request that changes something and was not sent from our
	// own page, with the session's CSRF token in the form field csrf. The zero User
	// has no session: then only where the request comes from is checked.
	CheckForm(r *http.Request, u access.User) error
	// Logout ends the request's session, and returns the cookie that says so.
	Logout(ctx context.Context, r *http.Request) (*http.Cookie, error)
}

// Logins lets people in.
type Logins interface {
	// Login returns the cookie of a new session.
	Login(ctx context.Context, name, password, source string) (*http.Cookie, error)
	// Setup makes the first administrator, for whoever has the setup link's secret.
	Setup(ctx context.Context, secret string, u access.NewUser, source string) error
}

// People are those who may come in.
type People interface {
	Users(ctx context.Context) ([]store.User, error)
	CreateUser(ctx context.Context, u access.NewUser) error
	SetRole(ctx context.Context, name string, role access.Role) error
	SetPassword(ctx context.Context, name, password string) error
	DeleteUser(ctx context.Context, name string) error
}

// Tokens are how devices and programs come in. Those that are made are shown once.
type Tokens interface {
	JoinTokens(ctx context.Context) ([]store.JoinToken, error)
	CreateJoinToken(ctx context.Context, n access.NewJoinToken) (wire.JoinToken, error)
	RevokeJoinToken(ctx context.Context, id string) error
	APITokens(ctx context.Context) ([]store.APIToken, error)
	CreateAPIToken(ctx context.Context, n access.NewAPIToken) (string, error)
	RevokeAPIToken(ctx context.Context, id string) error
}

// Accounts are what people change of themselves.
type Accounts interface {
	// ChangePassword gives a person who knows the old password a new one. Every
	// session of theirs ends; the cookie is that of a new one.
	ChangePassword(ctx context.Context, p access.PasswordChange) (*http.Cookie, error)
	APITokensOf(ctx context.Context, user string) ([]store.APIToken, error)
	// RevokeAPITokenOf ends a token of that person, and of nobody else.
	RevokeAPITokenOf(ctx context.Context, user, id string) error
}

// An Archive has the audit and the backups.
type Archive interface {
	// FindAudits lists who changed what, newest first.
	FindAudits(ctx context.Context, q store.AuditQuery) ([]store.Audit, error)
	// Copies lists the backups, newest first, and tells when the next one is due.
	Copies() ([]store.Copy, time.Time, error)
	// BackUpNow writes a backup and returns its file.
	BackUpNow(ctx context.Context) (file string, err error)
}

// An About is what the hub tells of itself.
type About struct {
	Certificates []Certificate
	Facts        []Fact // addresses and versions
	Kept         []Fact // how long what is kept
	Settings     []config.Shown
}

// A Certificate ends some day.
type Certificate struct {
	Of, Renewal string
	Until       time.Time
}

// A Told is told of incidents: a webhook, or people by mail. To holds no secret.
type Told struct{ Name, To string }

// A Fact is something that is so.
type Fact struct{ Name, Value string }

// A Liveness is what is known of a node's link.
type Liveness = devices.Liveness

// A Config is what a Server needs. All of it but Allow, Now, Audit, Log and the
// addresses must be set.
type Config struct {
	Fleet Fleet
	Now   func() time.Time // the hub's time, which everything that is shown carries; nil: the machine's
	// Allow tells whether a role may do a verb to a resource; nil: access.Allow.
	Allow    func(role access.Role, verb, resource string) bool
	Liveness func(node string) Liveness
	// Usage is what a device used when it last measured, false where that is not known.
	// It does not wait; heard is called when the device has measured anew.
	Usage func(node string, heard func()) (wire.Usage, bool)
	// Audit keeps what somebody did.
	Audit func(ctx context.Context, a store.Audit)
	// API is the hub's Kubernetes-compatible API. It finds who asks in the request,
	// as Sessions does: what people write in the page goes through the same checks.
	API      http.Handler
	Logs     Logs
	Shells   Shells
	Sessions Sessions
	Logins   Logins
	People   People
	Tokens   Tokens
	Accounts Accounts
	Views    Views // nil: nobody can save any
	Archive  Archive
	About    func() (About, error)
	// Members are the hubs of the same database, as the request of ctx finds them; nil, or none: this one is alone.
	Members func(ctx context.Context) []Member
	// Told are those outside who are told of incidents, and TestTold sends one of them a message
	// that is about nothing. nil: nobody is.
	Told     func() []Told
	TestTold func(ctx context.Context, name string) error
	// CA is the hub's authority, for kubeconfigs, as PEM.
	CA func() []byte
	// Agents lists the processors that the hub has agents for; nil: none.
	Agents func() []string
	// HubURLs are what devices join through, such as https://gateway:8443, of every hub of the
	// database, this one's first; nil is the address by which the page was reached.
	HubURLs func() []string
	Version string
	// Pauses are when no hub ran, oldest first: then nothing is known of any node.
	Pauses []store.Pause
	// History is how a node fared: n samples from a moment on; nil: nobody remembers it.
	History func(uid types.UID, from time.Time, n int) []history.Word
	// Foresight are the rules by which it is told beforehand what would become of pods; zero: it
	// is not told.
	Foresight preview.Rules
	Log       *slog.Logger
}

// A Server serves the page.
type Server struct {
	Config
	look  *look
	cache *cache
	live  *live
	tools tools

	actions  []*action
	jobs     *jobs
	listings map[state.Kind]listing
	routes   []Route
}

// New returns the page of a fleet. It panics when a template is wrong, which no
// setting can cause.
func New(c Config) *Server {
	s := newServer(c, actions, listings())
	s.add(routes())
	return s
}

// newServer returns a page that has the routes of its actions only: what can be done, and what the
// lists show of each kind, is of the packages beside this one.
func newServer(c Config, does func(now func() time.Time) []*action, listings map[state.Kind]listing) *Server {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Audit == nil {
		c.Audit = func(context.Context, store.Audit) {}
	}
	if c.Allow == nil {
		c.Allow = access.Allow
	}
	if c.Members == nil {
		c.Members = func(context.Context) []Member { return nil }
	}
	if c.Agents == nil {
		c.Agents = func() []string { return nil }
	}
	l := newLive(c.Fleet, c.Now)
	s := &Server{Config: c, look: newLook(), tools: newTools(), cache: newCache(c.Now), live: l, actions: does(c.Now), jobs: newJobs(l, c.Now), listings: listings}
	s.routes = s.actionRoutes()
	return s
}

// Run keeps the open pages up to date until ctx is done; then it ends their
// streams, and the actions that are still being done.
func (s *Server) Run(ctx context.Context) error {
	defer s.jobs.end()
	return s.live.Run(ctx)
}

// Stop has the actions end that are still being done. It does not wait for them; Run does.
func (s *Server) Stop() { s.jobs.stop() }

// A Route is one path of the page, and who may ask for it.
type Route struct {
	Method, Path string
	// Open routes need no login. Of the others, the role must be allowed Verb on
	// Resource; without a Verb, being logged in is enough.
	Open           bool
	Verb, Resource string
	Large          bool // its form may hold documents

	serve func(*call) error
}

// Routes lists all of them.
func (s *Server) Routes() []Route { return s.routes }

// add has the page serve routes beside those of the actions.
func (s *Server) add(routes []Route) { s.routes = append(s.routes, routes...) }

// routes are those of the page but for the actions'.
func routes() []Route {
	ends, made := &ends{}, &shown{}
	get := func(path, verb, resource string, v view) Route {
		return Route{Method: http.MethodGet, Path: path, Verb: verb, Resource: resource, serve: func(c *call) error { return c.show(v) }}
	}
	return []Route{
		{Method: http.MethodGet, Path: "/static/*", Open: true, serve: (*call).static},
		{Method: http.MethodGet, Path: "/setup", Open: true, serve: (*call).setupForm},
		{Method: http.MethodPost, Path: "/setup", Open: true, serve: (*call).setup},
		{Method: http.MethodGet, Path: "/login", Open: true, serve: (*call).loginForm},
		{Method: http.MethodPost, Path: "/login", Open: true, serve: (*call).login},
		{Method: http.MethodGet, Path: "/session", Open: true, serve: (*call).session},
		{Method: http.MethodPost, Path: "/logout", serve: (*call).logout},

		get("/", "list", "nodes", overview),
		{Method: http.MethodGet, Path: "/mark", Verb: "list", Resource: "nodes", serve: (*call).mark},
		get("/nodes", "list", "nodes", nodes),
		get("/nodes/:name", "get", "nodes", node),
		get("/sites", "list", "sites", sites),
		get("/sites/:name", "get", "sites", site),
		get("/workloads", "list", "deployments", workloads),
		get("/workloads/:kind/:namespace/:name", "get", "deployments", workload),
		get("/pods", "list", "pods", pods),
		get("/pods/:namespace/:name", "get", "pods", pod),
		get("/events", "list", "events", events),
		{Method: http.MethodGet, Path: "/find", serve: (*call).find},
		{Method: http.MethodGet, Path: "/find/complete", serve: (*call).complete},
		{Method: http.MethodPost, Path: "/views", Verb: "update", Resource: "account", serve: (*call).changeViews},
		get("/devices/add", "create", "jointokens", addDevice),
		{Method: http.MethodPost, Path: "/devices/add", Verb: "create", Resource: "jointokens", serve: func(c *call) error { return c.token(made) }},
		{Method: http.MethodGet, Path: "/devices/tokens/:id", Verb: "create", Resource: "jointokens", serve: func(c *call) error { return c.madeToken(made) }},
		get("/devices/waiting", "list", "certificatesigningrequests", waiting),
		get("/devices/joined", "create", "jointokens", joined),

		{Method: http.MethodGet, Path: "/nodes/:name/logs", Verb: "get", Resource: "nodes/proxy", serve: (*call).logs},
		{Method: http.MethodGet, Path: "/nodes/:name/logs/stream", Verb: "get", Resource: "nodes/proxy", serve: (*call).logStream},
		{Method: http.MethodGet, Path: "/nodes/:name/logs/download", Verb: "get", Resource: "nodes/proxy", serve: (*call).logFile},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs", Verb: "get", Resource: "pods/log", serve: (*call).logs},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/stream", Verb: "get", Resource: "pods/log", serve: (*call).logStream},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/download", Verb: "get", Resource: "pods/log", serve: (*call).logFile},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/end", Verb: "get", Resource: "pods/log", serve: func(c *call) error { return c.crashLog(ends) }},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/terminal", Verb: "create", Resource: "pods/exec", serve: (*call).terminal},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/terminal/socket", Verb: "create", Resource: "pods/exec", serve: (*call).terminalSocket},
		{Method: http.MethodGet, Path: "/yaml", Verb: "update", Resource: "deployments", serve: (*call).pasteForm},
		{Method: http.MethodPost, Path: "/yaml", Verb: "update", Resource: "deployments", Large: true, serve: (*call).paste},
		{Method: http.MethodGet, Path: "/yaml/*", Verb: "list", Resource: "nodes", serve: (*call).editForm},
		{Method: http.MethodPost, Path: "/yaml/*", Verb: "update", Resource: "deployments", Large: true, serve: (*call).edit},
		get("/boards", "list", "boardprofiles", boards),
		get("/actions", "list", "nodes", jobList),
		get(rolloutsPath, "list", "firmwarerollouts", rollouts),
		get(rolloutsPath+"/_new", "create", "firmwarerollouts", startRollout), // no rollout can have that name
		get(rolloutsPath+"/:name", "get", "firmwarerollouts", rollout),
		{Method: http.MethodGet, Path: manual.Root, serve: (*call).help},
		{Method: http.MethodGet, Path: manual.Root + "/:page", serve: (*call).help},
		{Method: http.MethodGet, Path: "/audit", Verb: "list", Resource: "audit", serve: (*call).auditView},
		{Method: http.MethodGet, Path: "/account", Verb: "get", Resource: "account", serve: (*call).account},
		{Method: http.MethodPost, Path: "/account", Verb: "update", Resource: "account", serve: (*call).accountAction},
		{Method: http.MethodGet, Path: "/settings", Verb: "get", Resource: "settings", serve: (*call).settings},
		{Method: http.MethodPost, Path: "/settings", Verb: "update", Resource: "settings", serve: (*call).settingsAction},
	}
}

// Register mounts the page on its routes.
func (s *Server) Register(e *echo.Echo) {
	for _, r := range s.Routes() {
		e.Add(r.Method, r.Path, s.handler(r))
	}
	e.RouteNotFound("/*", s.handler(Route{Open: true, serve: (*call).nowhere}))
}
