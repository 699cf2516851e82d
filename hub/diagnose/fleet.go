package diagnose

import (
	"time"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Fleet returns what is wrong with the fleet as a whole: the hub's disk is full, or all sites are
// dark at once, which is one cause, the hub's own link. A fleet of one site has that site's.
func Fleet(s state.Snapshot) (all []Finding) {
	about := fleet.IncidentObject{Kind: KindFleet}
	if s.OutOfRoom() {
		all = append(all, Finding{Cause: HubDiskFull, About: about})
	}
	if sites := s.Sites(); sites.Master != 0 && sites.Counting >= 2 {
		var since time.Time
		for name, c := range s.Counts() {
			if site := s.Site(name); c.Full() && site != nil && site.Status.Since != nil && site.Status.Since.After(since) {
				since = site.Status.Since.UTC()
			}
		}
		all = append(all, Finding{Cause: FleetDark, About: about, Since: since})
	}
	return all
}

// Site returns whether a site is dark: no node of it is ready.
func Site(s state.Snapshot, name string) Finding {
	if !s.Count(name).Full() {
		return Finding{}
	}
	return Finding{Cause: SiteDark, About: fleet.IncidentObject{Kind: state.Sites.Row().Name, Name: name}}
}
