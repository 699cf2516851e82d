package incidents

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/nodes"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/shared/fleet"
)

// request is a view's input for a fleet.
func request(m *admintest.Memory, path, query string) *frame.Request {
	c := frame.Config{Fleet: m, Now: func() time.Time { return admintest.Now },
		Liveness: func(string) frame.Liveness { return frame.Liveness{Seen: admintest.Now, Connected: true} }}
	asked, _ := url.ParseQuery(query)
	return frame.New(c, nodes.SiteActions, nil).RequestFor(frame.Question{Role: access.Admin, Path: path, Query: asked})
}

// opened is an open incident that began a while ago.
func opened(name, kind, about string, cause fleet.IncidentCause, s fleet.IncidentSeverity,
	ago time.Duration) *fleet.Incident {
	i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: name}, Cause: cause,
		About: fleet.IncidentObject{Kind: kind, Name: about}, Severity: s, State: fleet.IncidentOpen,
		Opened: admintest.Ago(ago), Since: admintest.Ago(ago), Message: name}
	if kind == "Site" {
		i.Site = about
	}
	return i
}

// A card says only after a minute that its cause is not seen. A crashing container runs for some
// seconds after each start, and its card must not grow and shrink with each crash.
func TestACardSaysThatItsCauseIsGoneAfterAMinute(t *testing.T) {
	a := request(admintest.New(admintest.Night()...), "/", "")
	for quiet, want := range map[time.Duration]bool{0: false, 5 * time.Second: false, 59 * time.Second: false,
		time.Minute: true, time.Hour: true} {
		i := &fleet.Incident{Since: admintest.Ago(2 * time.Hour), QuietSince: new(admintest.Ago(quiet))}
		if c := single(a, i); (c.Quiet != nil) != want || c.Since.At != format.Time(i.Since.Time, admintest.Now).At {
			t.Errorf("the cause is not seen for %s: the card says so: %v; it is open since %v", quiet, c.Quiet, c.Since)
		}
	}
}

// Critical incidents come before older warnings; many warnings share a card that opens into a list.
func TestManyIncidentsOfOneCauseAreOneCard(t *testing.T) {
	m := admintest.New()
	for i := range 50 {
		m.Put(t, opened(fmt.Sprintf("warm-%02d", i), "Site", fmt.Sprintf("site-%02d", i), "TooHot",
			fleet.SeverityWarning, time.Hour-time.Duration(i)*time.Minute))
	}
	m.Put(t, opened("first", "Site", "site-01", diagnose.NodeDark, fleet.SeverityCritical, 70*time.Minute),
		opened("dark", "Site", "site-02", diagnose.SiteDark, fleet.SeverityCritical, time.Minute))
	d := BoardOf(request(m, "/", ""))
	if len(d.Cards) != 3 || d.Tab.Open != 52 || d.Tab.Kind != "bad" || d.Cards[0].Key != "dark" ||
		d.Cards[1].Key != "first" {
		t.Fatalf("the cards of 52 incidents: %+v, %d open", d.Cards, d.Tab.Open)
	}
	many := d.Cards[2]
	if many.Href != "/incidents?cause=TooHot&status=open" || many.All != 50 || len(many.Several) != fewEntries ||
		many.Left != 50-fewEntries || many.Several[0].Href != "/incidents/warm-00" {
		t.Errorf("the card of many: %+v", many)
	}
}

// There are at most seven cards; the last one links the list with the rest.
func TestThereAreFewCards(t *testing.T) {
	m := admintest.New()
	for n, cause := range diagnose.Causes() {
		m.Put(t, opened(fmt.Sprintf("x-%02d", n), "Site", "oslo", cause, fleet.SeverityWarning, time.Hour))
	}
	d := BoardOf(request(m, "/", ""))
	last := d.Cards[len(d.Cards)-1]
	if len(d.Cards) != incident.MostCards || last.Key != incident.RestKey || last.Href != "/incidents?status=open" ||
		last.Help != "" || d.Tab.Open != len(diagnose.Causes()) {
		t.Errorf("%d cards, %d open, the last: %+v", len(d.Cards), d.Tab.Open, last)
	}
}

// When most of the fleet is dark, the first card is provisional and has the dark sites under it.
func TestAStormIsOneProvisionalCard(t *testing.T) {
	a := request(admintest.New(), "/", "")
	storm := opened("storm", "Fleet", "", diagnose.FleetMostlyDark, fleet.SeverityCritical, 10*time.Second)
	all := []*fleet.Incident{storm, opened("other", "Deployment", "kiosk", diagnose.CrashLoop, fleet.SeverityCritical,
		5*time.Hour)}
	for i := range 5 {
		site := opened(fmt.Sprintf("dark-%d", i), "Site", fmt.Sprintf("site-%d", i), diagnose.SiteDark,
			fleet.SeverityCritical, 10*time.Second)
		site.PartOf = "storm"
		all = append(all, site)
	}
	for ago, want := range map[time.Duration]bool{-20 * time.Second: true, time.Second: false} {
		storm.NotifyAfter = new(admintest.Ago(ago))
		cards := incident.Cards(slices.Values(all))
		first := cardOf(a, cards[0])
		if len(cards) != 2 || first.Key != "storm" || first.Provisional != want || first.About != "/sites" ||
			first.Following != 5 || len(first.Parts) != 1 ||
			first.Parts[0].Href != "/incidents?cause=SiteDark&status=open" {
			t.Errorf("notified in %s: the first of %d cards: %+v", -ago, len(cards), first)
		}
	}
}

// Dark sites that share a card share its actions, and each says what happens to its pods.
func TestACardOfSeveralSitesOffersTheirActions(t *testing.T) {
	m := admintest.New()
	for i := range 4 {
		name := fmt.Sprintf("site-%d", i)
		dark := opened("dark-"+name, "Site", name, diagnose.SiteDark, fleet.SeverityCritical, time.Hour)
		dark.Actions = []fleet.IncidentAction{fleet.ActionHold, fleet.ActionMaintenance}
		if i == 1 {
			dark.NextMove = new(admintest.Ago(-5 * time.Minute))
		}
		m.Put(t, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: name}}, dark)
	}
	c := BoardOf(request(m, "/", "")).Cards[0]
	if c.All != 4 || len(c.Menu.First) != 2 || strings.Count(c.Menu.First[0].Href, "item=") != 4 ||
		!strings.HasPrefix(c.Menu.First[0].Href, "/actions/sites/hold?item=") {
		t.Errorf("%+v", c.Menu)
	}
	if c.Next == nil || c.Moving || c.None || c.Several[0].Next != nil || !c.Several[0].None || c.Several[1].Next == nil {
		t.Errorf("the outcome of the card is %+v, of its first incident %+v", c.Outcome, c.Several[0])
	}
}

// The card of a workload that cannot be placed says why in the list's words; the scheduler's text
// is a detail.
func TestACardSaysInAFewWordsWhyNoNodeFits(t *testing.T) {
	m := admintest.Stuck(t)
	got := map[string]string{}
	for _, c := range BoardOf(request(m, "/", "")).Cards {
		if strings.Contains(c.Message, "placed") {
			got[c.Message] = c.Detail
		}
	}
	const raw = "0/9 nodes are available: 9 of us."
	for _, title := range []string{"Deployment vision cannot be placed: needs gpu=true, 1 node is not ready",
		"Deployment ledger cannot be placed: no node has 64Gi of memory free"} {
		if got[title] != raw {
			t.Errorf("there is no card %q with %q: %q", title, raw, got)
		}
	}
}
