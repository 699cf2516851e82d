package serve

import (
	"net/http"

	"flotilla.dev/hub/admin"
)

func (h *Hub) newPage(api http.Handler) *admin.Server {
	c := admin.Config{
		Fleet: h.Loop, Liveness: h.Loop.Liveness, Usage: h.Ask.LastUsage, Logs: h.Ask, Shells: h.Ask, API: api, Audit: h.Guard.Record,
		Sessions: h.Guard, Logins: h.Guard, People: h.Guard, Tokens: h.Guard, Accounts: h.Guard, Views: h.Guard, Archive: h.Store, About: h.about, Members: h.members, Told: h.told, TestTold: h.notifier.TestTarget, CA: h.authority.RootPEM, Agents: h.depot.Arches,
		HubURLs: h.urls, Version: h.o.Version, Pauses: h.pauses, Log: h.log, Now: h.Loop.Now, Foresight: Foresight(h.cfg),
	}
	if h.history != nil {
		c.History = h.history.Window
	}
	return admin.New(c)
}
