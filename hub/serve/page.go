package serve

import (
	"context"
	"net/http"

	"flotilla.dev/hub/admin"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/peer"
)

func (h *Hub) newPage(api http.Handler) *frame.Server {
	c := frame.Config{
		Fleet: h.Loop, Liveness: h.Loop.Liveness, Usage: h.Ask.LastUsage, Logs: h.Ask, Shells: h.Ask, API: api,
		Audit:    h.Guard.Record,
		Sessions: h.Guard, Logins: h.Guard, People: h.Guard, Tokens: h.Guard, Accounts: h.Guard, Views: h.Guard,
		Archive: h.Store, About: h.about, Members: h.members, Told: h.recipients, TestTold: h.notifier.TestTarget,
		CA: h.authority.RootPEM, Agents: h.depot.Arches,
		HubURLs: h.urls, Version: h.o.Version, Pauses: h.pauses, Log: h.log, Now: h.Loop.Now, Foresight: Foresight(h.cfg),
	}
	if h.history != nil {
		c.History = h.history.Window
	}
	return admin.New(c)
}

// members lists the hubs of this database, the leader first; none if this hub is alone. The hub
// that received the request of ctx is marked Here.
func (h *Hub) members(ctx context.Context) (all []frame.Member) {
	l := h.o.lead
	if l == nil {
		return nil
	}
	by := peer.Announcement(ctx)
	all = append(all, frame.Member{
		Name: l.Member.Name, Address: l.Address(), Version: h.o.Version, Since: h.Loop.Snapshot().Started, Leads: true,
		Here: by.Name == "",
	})
	for _, s := range l.Standbys() {
		all = append(all, frame.Member{
			Name: s.Name, Address: s.Address, Version: s.Version, Since: s.Since, Behind: s.Behind,
			Late: s.Behind > leader.MaxBehind,
			Here: by.Address == s.Address,
		})
	}
	return all
}
