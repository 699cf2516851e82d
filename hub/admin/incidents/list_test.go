package incidents

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/shared/fleet"
)

// past is a closed incident.
func past(name string, ago time.Duration) *fleet.Incident {
	i := opened(name, "Site", "oslo", diagnose.NodeDark, fleet.SeverityCritical, ago+time.Hour)
	i.State, i.Closed, i.Evicted = fleet.IncidentClosed, new(admintest.Ago(ago)), 2
	return i
}

func listed(t *testing.T, m *admintest.Memory, query string) string {
	t.Helper()
	p, err := List(request(m, ListPath, query))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range p.Data.(listData).Rows {
		names = append(names, r.Name)
	}
	return strings.Join(names, " ")
}

func TestTheListHasWhatIsOpenFirst(t *testing.T) {
	disk := opened("disk", "Site", "bergen", "DiskPressure", fleet.SeverityWarning, time.Hour)
	disk.Acknowledged = &fleet.IncidentAcknowledged{By: "kari", Time: admintest.Ago(time.Minute)}
	disk.Note = "a technician is on the way"
	crash := opened("crash", "Deployment", "kiosk", diagnose.CrashLoop, fleet.SeverityCritical, time.Minute)
	crash.About.Namespace = "default"
	m := admintest.New(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	m.Put(t, past("older", 5*time.Hour), past("newer", time.Hour), disk, crash,
		opened("dark", "Site", "oslo", diagnose.SiteDark, fleet.SeverityCritical, time.Second))
	for query, want := range map[string]string{
		"":                             "dark crash disk newer older",
		"status=open":                  "dark crash disk",
		"status=new":                   "dark crash",
		"status=acknowledged":          "disk",
		"status=over":                  "newer older",
		"status=nothing":               "",
		"cause=NodeDark":               "newer older",
		"severity=Warning":             "disk",
		"site=oslo":                    "dark newer older",
		"site=nowhere":                 "",
		"q=TECHNICIAN":                 "disk",
		"q=site:oslo+status:open":      "dark",
		"q=-site:oslo":                 "crash disk",
		"q=namespace:default":          "crash",
		"q=kiosk":                      "crash",
		"status=over&cause=NodeDark":   "newer older",
		"status=open&severity=Warning": "disk",
	} {
		if got := listed(t, m, query); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

func TestALongListHasPages(t *testing.T) {
	m := admintest.New()
	for i := range 150 {
		m.Put(t, opened(fmt.Sprintf("i-%03d", i), "Site", "oslo", diagnose.NodeDark, fleet.SeverityCritical, time.Hour))
	}
	p, err := List(request(m, ListPath, "page=2&cause=NodeDark"))
	if err != nil {
		t.Fatal(err)
	}
	d := p.Data.(listData)
	if len(d.Rows) != 50 || d.Open != 150 || d.Pager.Prev != "/incidents?cause=NodeDark&page=1" || d.Pager.Next != "" {
		t.Errorf("%d rows, %d open, %+v", len(d.Rows), d.Open, d.Pager)
	}
}

// An incident's page has its timeline and the incident that it follows from.
func TestThePageOfAnIncidentTellsItsTimeline(t *testing.T) {
	dark := past("dark", time.Hour)
	dark.Tainted, dark.Moved = new(admintest.Ago(115*time.Minute)), new(admintest.Ago(110*time.Minute))
	follower := opened("follower", "Deployment", "kiosk", diagnose.CannotBePlaced, fleet.SeverityWarning, 100*time.Minute)
	follower.Followed = "dark"
	m := admintest.New()
	m.Put(t, dark, follower)
	page := func(name string) incidentData {
		a := request(m, "/incidents/"+name, "")
		a.Param = func(string) string { return name }
		p, err := Incident(a)
		if err != nil {
			t.Fatal(err)
		}
		return p.Data.(incidentData)
	}
	d := page("dark")
	var lines []string
	for _, l := range d.Timeline {
		lines = append(lines, l.After+" "+l.Text+" "+l.Href)
	}
	got := strings.Join(lines, "\n")
	for _, want := range []string{"+5m Its first node was given up", "+10m The first pod was told to leave",
		"+20m Followed: follower /incidents/follower", "+60m Closed: lasted 60m, 2 pods told to leave"} {
		if !strings.Contains(got, want) {
			t.Errorf("the timeline lacks %q:\n%s", want, got)
		}
	}
	if d.Open || d.Cost != "lasted 60m, 2 pods told to leave" || d.Pill != overPill {
		t.Errorf("%+v", d)
	}
	if of := page("follower"); of.PartOf.Href != "/incidents/dark" || !of.Open {
		t.Errorf("the incident that it follows from is %+v", of.PartOf)
	}
	a := request(m, "/incidents/nothing", "")
	a.Param = func(string) string { return "nothing" }
	_, err := Incident(a)
	if missing := frame.MissingError(""); !errors.As(err, &missing) ||
		!strings.Contains(err.Error(), "There is no incident nothing") {
		t.Errorf("for an unknown name the error is %v", err)
	}
}
