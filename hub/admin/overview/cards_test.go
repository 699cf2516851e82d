package overview

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/shared/fleet"
)

// A card does not say that its trouble is gone as soon as it is: a crash loop runs for some seconds
// after each start, and its card would grow and shrink with every crash.
func TestACardDoesNotCountFromTheLastCrash(t *testing.T) {
	a := pictureRequest(admintest.New(admintest.Night()...))
	for quiet, want := range map[time.Duration]bool{0: false, 5 * time.Second: false, 59 * time.Second: false,
		time.Minute: true, time.Hour: true} {
		i := &fleet.Incident{Since: admintest.Ago(2 * time.Hour), QuietSince: new(admintest.Ago(quiet))}
		if c := cardOf(a, i, nil); (c.Quiet != nil) != want ||
			c.Since.At != format.Time(i.Since.Time, admintest.Now).At {
			t.Errorf("not seen for %s: the card says %v, since %v", quiet, c.Quiet, c.Since)
		}
	}
}

// However many warnings came first, what is critical is shown, and before them.
func TestTheWorstOfTooManyIncidentsIsShown(t *testing.T) {
	m := admintest.New()
	give := func(name string, s fleet.IncidentSeverity, ago time.Duration) {
		m.Put(t, &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: name}, Severity: s, State: fleet.IncidentOpen,
			Opened: admintest.Ago(ago), Since: admintest.Ago(ago), Message: name})
	}
	for i := range 50 {
		give(fmt.Sprintf("warm-%02d", i), fleet.SeverityWarning, time.Hour-time.Duration(i)*time.Minute)
	}
	give("first", fleet.SeverityCritical, 70*time.Minute)
	give("dark", fleet.SeverityCritical, time.Minute)
	d := incidents(pictureRequest(m))
	var names []string
	for _, c := range d.Cards {
		names = append(names, c.Message)
	}
	if len(names) != fewCards || d.More != 52-fewCards || names[0] != "first" || names[1] != "dark" ||
		names[2] != "warm-00" || names[fewCards-1] != "warm-27" || d.Tab.Open != 52 {
		t.Errorf("shown of 52 are %v, and %d more", names, d.More)
	}
}

// What the fleet has stands before a dark site, that before the rest, whichever came first; the more
// severe before the less, and the older before the younger.
func TestCardsComeInTheOrderOfWhatTheyReach(t *testing.T) {
	m := admintest.New()
	give := func(name, kind string, cause fleet.IncidentCause, s fleet.IncidentSeverity, ago time.Duration) {
		m.Put(t, &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: name}, Cause: cause,
			About: fleet.IncidentObject{Kind: kind, Name: "x"}, Severity: s, State: fleet.IncidentOpen,
			Opened: admintest.Ago(ago), Since: admintest.Ago(ago), Message: name})
	}
	give("disk", "Site", "DiskPressure", fleet.SeverityWarning, 5*time.Hour)
	give("held", "Deployment", "PodGated", fleet.SeverityInfo, 6*time.Hour)
	give("crash", "Deployment", "CrashLoop", fleet.SeverityCritical, 4*time.Hour)
	give("node", "Site", "NodeDark", fleet.SeverityCritical, 3*time.Hour)
	give("younger site", "Site", "SiteDark", fleet.SeverityCritical, time.Hour)
	give("older site", "Site", "SiteDark", fleet.SeverityCritical, 2*time.Hour)
	give("fleet", "Fleet", "FleetDark", fleet.SeverityCritical, time.Second)
	var names []string
	for _, c := range incidents(pictureRequest(m)).Cards {
		names = append(names, c.Message)
	}
	if got := strings.Join(names, ", "); got != "fleet, older site, younger site, crash, node, disk, held" {
		t.Errorf("the order is %s", got)
	}
}

// The card of a workload without a place says why in the words of the list; what the scheduler
// says is a detail of it.
func TestACardSaysInAFewWordsWhyThereIsNoPlace(t *testing.T) {
	m := admintest.Stuck(t)
	got := map[string]string{}
	for _, c := range incidents(pictureRequest(m)).Cards {
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
