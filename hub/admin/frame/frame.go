// Package frame is what all parts of the page share: the guard of every route, templates and
// static files, open pages that are kept up to date, lists with their search, and the actions that
// people have done to objects.
//
// The packages beside it fill it: each shows what an operator does, and package admin puts their
// routes together. The frame knows none of them, decides nothing about the fleet and knows no
// password: package access does, behind the interfaces declared here.
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

// New returns a page that has the routes of its actions only: what can be done, and what the
// lists show of each kind, is of the packages beside this one.
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

	Serve func(*Call) error
}

// Routes lists all of them.
func (s *Server) Routes() []Route { return s.routes }

// Add has the page serve routes beside those of the actions.
func (s *Server) Add(routes []Route) { s.routes = append(s.routes, routes...) }

// Register mounts the page on its routes.
func (s *Server) Register(e *echo.Echo) {
	for _, r := range s.Routes() {
		e.Add(r.Method, r.Path, s.handler(r))
	}
	e.RouteNotFound("/*", s.handler(Route{Open: true, Serve: (*Call).nowhere}))
}
