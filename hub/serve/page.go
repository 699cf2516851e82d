package serve

import (
	"net/http"

	"flotilla.dev/hub/admin"
)

func (h *Hub) newPage(api http.Handler) *admin.Server {
	return admin.New(admin.Config{
		Fleet: h.Loop, Liveness: h.Loop.Liveness, Usage: h.Ask.LastUsage, Logs: h.Ask, Shells: h.Ask, API: api, Audit: h.Guard.Record,
		Sessions: h.Guard, Logins: h.Guard, People: h.Guard, Tokens: h.Guard, Accounts: h.Guard, Archive: h.Store, About: h.about, CA: h.authority.RootPEM,
		HubURL: h.url(), Version: h.o.Version, Pauses: h.pauses, Log: h.log, Now: h.Loop.Now,
	})
}
