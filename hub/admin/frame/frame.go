// Package frame has what all parts of the page share: the checks of every route, templates and
// static files, live updates, lists with their search, and actions with their progress.
//
// The packages beside it are the page's parts; package admin registers their routes. The frame
// imports none of them and decides nothing about the fleet. Logins and roles are package access's,
// behind the interfaces declared here.
package frame

import (
	"context"
	"log/slog"
	"time"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A Server serves the page.
type Server struct {
	Config
	look  *look
	cache *cache
	live  *live
	Tools tools

	actions  []*Action
	jobs     *jobs
	audits   *audits
	listings map[state.Kind]Listing
	routes   []Route
}

// New returns a page with the routes of its actions. The packages beside this one give it the
// actions and the lists.
func New(c Config, does func(now func() time.Time) []*Action, listings map[state.Kind]Listing) *Server {
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
	s := &Server{Config: c, look: newLook(), Tools: newTools(), cache: newCache(c.Now), live: l, actions: does(c.Now),
		jobs: newJobs(l, c.Now), audits: &audits{archive: c.Archive}, listings: listings}
	s.routes = s.actionRoutes()
	return s
}

// Run keeps the open pages up to date until ctx is done. Then it ends their streams and the running
// actions.
func (s *Server) Run(ctx context.Context) error {
	defer s.jobs.end()
	return s.live.Run(ctx)
}

// Stop ends the running actions without waiting for them; Run waits.
func (s *Server) Stop() { s.jobs.stop() }

// A Route is one path of the page, and the permission that it needs.
type Route struct {
	Method, Path string
	// Open routes need no login. For others the role must be allowed Verb on Resource; without a
	// Verb a login is enough.
	Open           bool
	Verb, Resource string
	Large          bool // its form may hold YAML documents

	Serve func(*Call) error
}

// Routes lists the routes.
func (s *Server) Routes() []Route { return s.routes }

// Add adds routes.
func (s *Server) Add(routes []Route) { s.routes = append(s.routes, routes...) }

// Register adds the routes to an Echo server.
func (s *Server) Register(e *echo.Echo) {
	for _, r := range s.Routes() {
		e.Add(r.Method, r.Path, s.handler(r))
	}
	e.RouteNotFound("/*", s.handler(Route{Open: true, Serve: (*Call).notFound}))
}
