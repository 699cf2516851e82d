package incident_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/incident"
	"flotilla.dev/shared/fleet"
)

// on returns an open incident of a site's nodes.
func on(site string, cause fleet.IncidentCause, nodes int32) *fleet.Incident {
	return about("Site", site, cause, fleet.IncidentCount{Nodes: nodes})
}

func about(kind, name string, cause fleet.IncidentCause, count fleet.IncidentCount) *fleet.Incident {
	i := &fleet.Incident{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(kind + "-" + name + "-" + string(cause))},
		State:      fleet.IncidentOpen, Cause: cause, Severity: diagnose.RuleOf(cause).Severity,
		About: fleet.IncidentObject{Kind: kind, Name: name}, Count: count, Message: fmt.Sprint(cause, " ", name),
		Since: metav1.NewTime(noon),
	}
	if kind == "Site" {
		i.Site = name
	}
	return i
}

func partOf(i, cause *fleet.Incident) *fleet.Incident {
	i.PartOf = cause.Name
	return i
}

func TestIncidentsOfOneCauseAreOneCard(t *testing.T) {
	each := func(n int, f func(n int) *fleet.Incident) (all []*fleet.Incident) {
		for n := range n {
			all = append(all, f(n))
		}
		return all
	}
	disk := func(n int) *fleet.Incident { return on(fmt.Sprint("site-", n), "DiskPressure", int32(n+1)) }
	work := func(kind string, cause fleet.IncidentCause, pods int32) func(int) *fleet.Incident {
		return func(n int) *fleet.Incident {
			return about(kind, fmt.Sprint("w-", n), cause, fleet.IncidentCount{Pods: pods, Workloads: 1})
		}
	}
	all := about("Fleet", "", diagnose.FleetDark, fleet.IncidentCount{Nodes: 9})
	dark := partOf(on("oslo", diagnose.SiteDark, 5), all)
	for _, c := range []struct {
		rule string
		all  []*fleet.Incident
		want []string
	}{
		{"nothing open, no card", nil, nil},
		{"three of one cause have a card each, the largest first", each(3, disk), []string{"Warning: DiskPressure site-2", "Warning: DiskPressure site-1", "Warning: DiskPressure site-0"}},
		{"more than three share a card", each(4, disk), []string{"Warning: Too little disk space on 10 nodes of 4 sites"}},
		{"more than three of one site share a card", each(4, func(n int) *fleet.Incident {
			i := on("oslo", diagnose.NodeDark, 2)
			i.Name = fmt.Sprint("oslo-", n)
			return i
		}), []string{"Critical: 8 nodes of oslo do not answer"}},
		{"dark sites are counted as sites", each(4, func(n int) *fleet.Incident { return on(fmt.Sprint("site-", n), diagnose.SiteDark, 5) }), []string{"Critical: 4 sites are dark: none of their nodes answers"}},
		{"crashing workloads are counted with their pods", each(5, work("Deployment", diagnose.CrashLoop, 2)), []string{"Critical: 10 pods of 5 deployments crash again and again"}},
		{"workloads of several kinds", append(each(2, work("DaemonSet", diagnose.CannotBePlaced, 3)), each(3, work("Deployment", diagnose.CannotBePlaced, 1))...), []string{"Warning: 9 pods of 5 workloads cannot be placed"}},
		{"images, rollouts", append(each(4, work("Image", diagnose.ImageNotPulled, 3)), each(4, work("FirmwareRollout", diagnose.FirmwareRolloutStopped, 0))...), []string{"Critical: 4 images cannot be pulled", "Warning: 4 rollouts of boot configurations have stopped"}},
		{"consequences are under the cause at the top of the chain", []*fleet.Incident{all, dark, partOf(on("bergen", diagnose.SiteDark, 4), all), partOf(work("Deployment", diagnose.CannotBePlaced, 3)(0), dark)},
			[]string{"Critical: FleetDark  < 2 sites are dark: none of their nodes answers < CannotBePlaced w-0"}},
		{"a consequence whose cause has ended has a card", []*fleet.Incident{partOf(on("oslo", "Flapping", 1), all)}, []string{"Warning: Flapping oslo"}},
		{"two incidents that follow from each other have cards", []*fleet.Incident{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, PartOf: "a", State: fleet.IncidentOpen, Message: "loop"}}, []string{": loop"}},
		{"a closed incident has no card", []*fleet.Incident{{State: fleet.IncidentClosed, Message: "x"}}, nil},
		{"with too many cards the incidents of the least important causes share cards", append(each(3, disk), append(each(3, work("Deployment", diagnose.CrashLoop, 1)), each(3, func(n int) *fleet.Incident { return on(fmt.Sprint("s", n), "PowerTooLow", 1) })...)...), []string{
			"Critical: CrashLoop w-0", "Critical: CrashLoop w-1", "Critical: CrashLoop w-2", "Warning: Too little disk space on 6 nodes of 3 sites", "Warning: PowerTooLow s0", "Warning: PowerTooLow s1", "Warning: PowerTooLow s2"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			var got []string
			for _, card := range incident.Cards(slices.Values(c.all)) {
				got = append(got, card.String())
			}
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
				t.Errorf("\n got %q\nwant %q", got, c.want)
			}
		})
	}
}

// Every open incident is on one of at most seven cards. The order of the input does not matter.
func TestAnyFleetHasFewCards(t *testing.T) {
	var all []*fleet.Incident
	for n, cause := range diagnose.Causes() {
		for k := range n % 6 {
			i := about([]string{"Site", "Deployment", "Pod", "Image"}[n%4], fmt.Sprint("x-", k), cause,
				fleet.IncidentCount{Nodes: int32(k)})
			if len(all) > 20 && k == 2 {
				partOf(i, all[n])
			}
			all = append(all, i)
		}
		cards := incident.Cards(slices.Values(all))
		if len(cards) > incident.MostCards {
			t.Fatalf("%d incidents have %d cards, more than MostCards", len(all), len(cards))
		}
		shown := 0
		for _, c := range cards {
			shown += len(c.Incidents)
			for _, f := range c.Follows {
				shown += len(f.Incidents)
			}
		}
		if shown != len(all) {
			t.Errorf("%[2]d of %[1]d incidents are on a card", len(all), shown)
		}
		slices.Reverse(all)
		if again := incident.Cards(slices.Values(all)); fmt.Sprint(again) != fmt.Sprint(cards) {
			t.Errorf("another order of the input changes the cards:\n%v\n%v", again, cards)
		}
		slices.Reverse(all)
	}
	last := incident.Cards(slices.Values(all))[incident.MostCards-1]
	if last.Key != incident.RestKey || !strings.Contains(last.Title, "other incidents of") {
		t.Errorf("the last card is %s: %s", last.Key, last.Title)
	}
}

func TestACardSumsUpItsIncidents(t *testing.T) {
	var all []*fleet.Incident
	for n := range int32(4) {
		i := on(fmt.Sprint("site-", 3-n), diagnose.SiteDark, 10)
		i.Count.Pods, i.Count.Workloads, i.Evicted = 5, n, 1
		i.Since = metav1.NewTime(noon.Add(time.Duration(n) * time.Minute))
		if n > 1 {
			i.NextMove = new(metav1.NewTime(noon.Add(time.Duration(n) * time.Hour)))
		}
		all = append(all, i)
	}
	c := incident.Cards(slices.Values(all))[0]
	if c.Key != "SiteDark" || fmt.Sprint(c.Sites) != "[site-0 site-1 site-2 site-3]" || c.Evicted != 4 ||
		!c.Since.Equal(noon) || !c.NextMove.Equal(noon.Add(2*time.Hour)) {
		t.Errorf("the card is %+v, want the sums and earliest times of its incidents", c)
	}
	if want := (fleet.IncidentCount{Nodes: 40, Pods: 20, Workloads: 3}); c.Count != want { // the sites lack pods of the same workloads
		t.Errorf("counts %+v, want %+v", c.Count, want)
	}
	if first := incident.Cards(slices.Values(all[3:]))[0]; first.Key != all[3].Name {
		t.Errorf("a card of one incident has the key %s", first.Key)
	}
}

func TestTheWorstIncidentIsFirst(t *testing.T) {
	older := on("older", "DiskPressure", 2)
	older.Since = metav1.NewTime(noon.Add(-time.Hour))
	ordered := []*fleet.Incident{
		about("Fleet", "", diagnose.FleetDark, fleet.IncidentCount{}),
		on("large", diagnose.SiteDark, 50), // a whole site comes before a larger incident of single nodes
		on("small", diagnose.SiteDark, 1),
		about("Deployment", "kiosk", diagnose.CrashLoop, fleet.IncidentCount{Pods: 90, Workloads: 1}),
		on("bergen", diagnose.NodeDark, 3), // equally severe as the one before, but smaller
		older,                              // less severe; as large as the next, but older
		on("oslo", "DiskPressure", 2),
		on("stavanger", "DiskPressure", 2), // equal to the one before, except for the name
		on("tromso", "DiskPressure", 1),
		about("Pod", "gated", diagnose.PodGated, fleet.IncidentCount{Pods: 99}), // for information, so it is last
	}
	for n, a := range ordered {
		for m, b := range ordered {
			got := incident.Compare(a, b)
			if (got < 0) != (n < m) || (got == 0) != (n == m) {
				t.Errorf("Compare(%s, %s) is %d, want the order of the list", a.Name, b.Name, got)
			}
		}
	}
}
