// Package admin is the hub's web page. It registers the routes and actions of the packages below
// it, and has the search of everything and the manual.
//
// Every view is a function from a snapshot to template data. Users' changes go through the hub's
// API. The page stores nothing; package diagnose decides what is trouble. hub/serve calls it.
package admin

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/incidents"
	"flotilla.dev/hub/admin/logs"
	"flotilla.dev/hub/admin/manifest"
	"flotilla.dev/hub/admin/nodes"
	"flotilla.dev/hub/admin/overview"
	"flotilla.dev/hub/admin/rollouts"
	"flotilla.dev/hub/admin/settings"
	"flotilla.dev/hub/admin/workloads"
	"flotilla.dev/hub/state"
	"flotilla.dev/web/manual"
)

// actions lists all actions, in the order of menus.
func actions(now func() time.Time) []*frame.Action {
	return slices.Concat(nodes.Actions(), workloads.PodActions(), workloads.Actions(now), workloads.JobActions(),
		nodes.SiteActions(now), nodes.RequestActions(now), rollouts.Actions(), incidents.Actions())
}

// New returns the page of a fleet. It panics when a template is invalid, which no setting can
// cause.
func New(c frame.Config) *frame.Server {
	s := frame.New(c, actions, listings())
	s.Add(routes())
	return s
}

// routes are the routes of the page without those of actions.
func routes() []frame.Route {
	ends, made := &logs.Crashes{}, &nodes.MadeTokens{}
	get := func(path, verb, resource string, v frame.View) frame.Route {
		return frame.Route{Method: http.MethodGet, Path: path, Verb: verb, Resource: resource,
			Serve: func(c *frame.Call) error { return c.Show(v) }}
	}
	return []frame.Route{
		{Method: http.MethodGet, Path: "/static/*", Open: true, Serve: (*frame.Call).ServeStatic},
		{Method: http.MethodGet, Path: "/setup", Open: true, Serve: settings.SetupForm},
		{Method: http.MethodPost, Path: "/setup", Open: true, Serve: settings.Setup},
		{Method: http.MethodGet, Path: "/login", Open: true, Serve: settings.LoginForm},
		{Method: http.MethodPost, Path: "/login", Open: true, Serve: settings.Login},
		{Method: http.MethodGet, Path: "/session", Open: true, Serve: settings.Session},
		{Method: http.MethodPost, Path: "/logout", Serve: settings.Logout},

		get("/", "list", "nodes", overview.Show),
		{Method: http.MethodGet, Path: "/mark", Verb: "list", Resource: "nodes", Serve: overview.GoToMark},
		get("/nodes", "list", "nodes", nodes.List),
		get("/nodes/:name", "get", "nodes", nodes.Node),
		get("/sites", "list", "sites", nodes.Sites),
		get("/sites/:name", "get", "sites", nodes.Site),
		get("/workloads", "list", "deployments", workloads.List),
		get("/workloads/:kind/:namespace/:name", "get", "deployments", workloads.Workload),
		get("/pods", "list", "pods", workloads.Pods),
		get("/pods/:namespace/:name", "get", "pods", workloads.Pod),
		get("/events", "list", "events", overview.Events),
		get(incidents.ListPath, "list", "incidents", incidents.List),
		get(incidents.ListPath+"/:name", "get", "incidents", incidents.Incident),
		{Method: http.MethodGet, Path: "/find", Serve: findPage},
		{Method: http.MethodGet, Path: "/find/complete", Serve: complete},
		{Method: http.MethodPost, Path: "/views", Verb: "update", Resource: "account",
			Serve: (*frame.Call).ChangeViews},
		get("/devices/add", "create", "jointokens", nodes.AddDevice),
		{Method: http.MethodPost, Path: "/devices/add", Verb: "create", Resource: "jointokens", Large: true,
			Serve: func(c *frame.Call) error { return nodes.MakeToken(c, made) }},
		{Method: http.MethodGet, Path: "/devices/tokens/:id", Verb: "create", Resource: "jointokens",
			Serve: func(c *frame.Call) error { return nodes.ShowToken(c, made) }},
		{Method: http.MethodGet, Path: "/devices/tokens/:id/card", Verb: "create", Resource: "jointokens",
			Serve: func(c *frame.Call) error { return nodes.FirstBoot(c, made) }},
		get("/devices/waiting", "list", "certificatesigningrequests", nodes.WaitingDevices),
		get("/devices/joined", "create", "jointokens", nodes.JoinedDevices),

		{Method: http.MethodGet, Path: "/nodes/:name/logs", Verb: "get", Resource: "nodes/proxy", Serve: logs.Show},
		{Method: http.MethodGet, Path: "/nodes/:name/logs/stream", Verb: "get", Resource: "nodes/proxy",
			Serve: logs.Stream},
		{Method: http.MethodGet, Path: "/nodes/:name/logs/download", Verb: "get", Resource: "nodes/proxy",
			Serve: logs.Download},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs", Verb: "get", Resource: "pods/log",
			Serve: logs.Show},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/stream", Verb: "get", Resource: "pods/log",
			Serve: logs.Stream},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/download", Verb: "get", Resource: "pods/log",
			Serve: logs.Download},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/logs/end", Verb: "get", Resource: "pods/log",
			Serve: func(c *frame.Call) error { return logs.LastLines(c, ends) }},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/terminal", Verb: "create", Resource: "pods/exec",
			Serve: logs.Terminal},
		{Method: http.MethodGet, Path: "/pods/:namespace/:name/terminal/socket", Verb: "create", Resource: "pods/exec",
			Serve: logs.TerminalSocket},
		{Method: http.MethodGet, Path: "/yaml", Verb: "update", Resource: "deployments", Serve: manifest.PasteForm},
		{Method: http.MethodPost, Path: "/yaml", Verb: "update", Resource: "deployments", Large: true,
			Serve: manifest.Paste},
		{Method: http.MethodGet, Path: "/yaml/*", Verb: "list", Resource: "nodes", Serve: manifest.EditForm},
		{Method: http.MethodPost, Path: "/yaml/*", Verb: "update", Resource: "deployments", Large: true,
			Serve: manifest.Edit},
		get("/boards", "list", "boardprofiles", nodes.Boards),
		get("/actions", "list", "nodes", overview.Jobs),
		get(frame.RolloutsPath, "list", "firmwarerollouts", rollouts.List),
		get(frame.RolloutsPath+"/_new", "create", "firmwarerollouts", rollouts.Start), // an invalid name for a rollout
		get(frame.RolloutsPath+"/:name", "get", "firmwarerollouts", rollouts.Rollout),
		get(frame.AgentRolloutsPath, "list", "agentrollouts", rollouts.Agents),
		get(frame.AgentRolloutsPath+"/:name", "get", "agentrollouts", rollouts.AgentRollout),
		{Method: http.MethodGet, Path: manual.Root, Serve: help},
		{Method: http.MethodGet, Path: manual.Root + "/:page", Serve: help},
		{Method: http.MethodGet, Path: "/audit", Verb: "list", Resource: "audit", Serve: settings.Audit},
		{Method: http.MethodGet, Path: "/account", Verb: "get", Resource: "account", Serve: settings.Account},
		{Method: http.MethodPost, Path: "/account", Verb: "update", Resource: "account", Serve: settings.ChangeAccount},
		{Method: http.MethodGet, Path: "/settings", Verb: "get", Resource: "settings", Serve: settings.Show},
		{Method: http.MethodPost, Path: "/settings", Verb: "update", Resource: "settings", Serve: settings.Change},
	}
}

// listings are the lists of all kinds that have one.
func listings() map[state.Kind]frame.Listing {
	all := map[state.Kind]frame.Listing{}
	for _, some := range []map[state.Kind]frame.Listing{nodes.Listings, workloads.Listings, rollouts.Listings,
		incidents.Listings} {
		maps.Copy(all, some)
	}
	return all
}
