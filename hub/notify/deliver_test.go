package notify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestManyOfOneCauseAreOneMessage(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	disk := func(n int, changes ...func(*fleet.Incident)) *fleet.Incident {
		i := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("disk-", n)}, State: fleet.IncidentOpen,
			Cause: "DiskPressure", Severity: fleet.SeverityWarning, NotifyAfter: at(-time.Second)}
		for _, f := range changes {
			f(i)
		}
		return i
	}
	after := func(d time.Duration) func(*fleet.Incident) {
		return func(i *fleet.Incident) { i.NotifyAfter = at(d) }
	}
	part := func(i *fleet.Incident) { i.PartOf = "disk-0" }
	told := func(with fleet.IncidentTold) func(*fleet.Incident) {
		return func(i *fleet.Incident) { with.Whom = "mail"; i.Told = []fleet.IncidentTold{with} }
	}
	taken := func(i *fleet.Incident) { i.Acknowledged = &fleet.IncidentAcknowledged{By: "kari"} }
	closed := func(i *fleet.Incident) {
		i.State = fleet.IncidentClosed
		i.Told = []fleet.IncidentTold{{Whom: "mail", Opened: at(-time.Hour)}}
	}
	power := func(i *fleet.Incident) { i.Cause = "PowerTooLow" }
	for _, c := range []struct {
		rule string
		all  []*fleet.Incident
		want string
	}{
		{"three incidents are three messages", []*fleet.Incident{disk(1), disk(2), disk(3)}, "opened disk-1, opened disk-2, opened disk-3"},
		{"four incidents of one cause are one message", []*fleet.Incident{disk(1), disk(2), disk(3), disk(4)}, "opened disk-1 disk-2 disk-3 disk-4"},
		{"incidents of another cause are another message", []*fleet.Incident{disk(1), disk(2), disk(3), disk(4), disk(5, power)}, "opened disk-1 disk-2 disk-3 disk-4, opened disk-5"},
		{"a message waits while more incidents open", []*fleet.Incident{disk(1), disk(2), disk(3), disk(4, after(time.Second))}, ""},
		{"a message waits even if only one incident is due", []*fleet.Incident{disk(1), disk(2, after(time.Second)), disk(3, after(time.Second)), disk(4, after(time.Second))}, ""},
		{"up to three incidents do not wait", []*fleet.Incident{disk(1), disk(2), disk(3, after(time.Second))}, "opened disk-1, opened disk-2"},
		{"consequences, acknowledged incidents and other causes do not delay a message", []*fleet.Incident{disk(1), disk(2), disk(3), disk(4, after(time.Second), part), disk(5, after(time.Second), taken), disk(6, after(time.Second), power)}, "opened disk-1, opened disk-2, opened disk-3"},
		{"a message waits at most two minutes", []*fleet.Incident{disk(1, after(-mostWait)), disk(2), disk(3), disk(4), disk(5, after(time.Second))}, "opened disk-1 disk-2 disk-3 disk-4"},
		{"the ends of incidents do not wait", []*fleet.Incident{disk(1, closed), disk(2), disk(3), disk(4), disk(5, after(time.Second))}, "closed disk-1"},
		{"the ends of many incidents are one message", []*fleet.Incident{disk(1, closed), disk(2, closed), disk(3, closed), disk(4, closed)}, "closed disk-1 disk-2 disk-3 disk-4"},
		{"a recipient that missed the openings gets one message", []*fleet.Incident{disk(1, told(fleet.IncidentTold{Opened: at(-1), Missed: []string{"ola"}})), disk(2, told(fleet.IncidentTold{Opened: at(-1), Missed: []string{"ola"}})),
			disk(3, told(fleet.IncidentTold{Opened: at(-1), Missed: []string{"ola"}})),
			disk(4, told(fleet.IncidentTold{Opened: at(-1), Missed: []string{"ola"}}))},
			"opened disk-1 disk-2 disk-3 disk-4 to ola"},
		{"an acknowledged incident is not notified", []*fleet.Incident{disk(1, taken)}, ""},
		{"an acknowledged incident is not repeated for recipients that missed it", []*fleet.Incident{disk(1, taken, told(fleet.IncidentTold{Opened: at(-1), Missed: []string{"ola"}}))}, ""},
		{"the end of an acknowledged incident is notified", []*fleet.Incident{disk(1, taken, closed)}, "closed disk-1"},
		{"an incident of an older hub has no NotifyAfter", []*fleet.Incident{disk(1, func(i *fleet.Incident) { i.NotifyAfter = nil })}, "opened disk-1"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			var got []string
			for _, d := range deliveries(slices.Values(c.all), "mail", now) {
				text := string(d.event)
				for _, i := range d.incidents {
					text += " " + i.Name
				}
				if d.only != nil {
					text += " to " + strings.Join(d.only, ",")
				}
				got = append(got, text)
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, ", "), c.want)
			}
		})
	}
}

// A hundred sites run out of disk space within a minute. Their ends are notified one by one.
func TestAStormIsOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := &memory{s: state.Empty("x", time.Now())}, &ear{}
		end := run(m, e)
		name := func(n int) string { return fmt.Sprintf("disk-%02d", n) }
		for n := range 100 {
			m.put(trouble(name(n), func(i *fleet.Incident) { i.Cause = "DiskPressure" }))
			time.Sleep(600 * time.Millisecond)
		}
		time.Sleep(settles + 2*looks + time.Second) // between two checks, so that all incidents end at once
		if _, sent := e.set(false); sent != "disk-00-opened" {
			t.Errorf("sent %q, want one opening", sent)
		}
		for n := range 100 {
			if len(m.get(name(n)).Told) != 1 {
				t.Errorf("the notification of %s is not stored", name(n))
			}
			over := m.get(name(n)).DeepCopy()
			over.State, over.Closed = fleet.IncidentClosed, new(metav1.Now())
			m.put(over)
		}
		time.Sleep(2 * looks)
		if _, sent := e.set(false); sent != "disk-00-opened disk-00-closed" {
			t.Errorf("sent %q, want one opening and one end", sent)
		}
		end()
	})
}

// A message about several incidents names them in its line and its mail. Its ID depends on them.
func TestAMessageAboutSeveralIncidentsNamesThem(t *testing.T) {
	m := Message{Event: Opened}
	for n := range 30 {
		m.Incidents = append(m.Incidents, trouble(fmt.Sprint("disk-", n), func(i *fleet.Incident) {
			i.Cause, i.About.Name, i.Count.Nodes, i.Message = "DiskPressure", fmt.Sprint("site-", n), 2,
				fmt.Sprintf("Too little disk space on 2 nodes of site-%d", n)
		}))
	}
	m.Incident = m.Incidents[0]
	if got, want := m.Line(), "Critical: Too little disk space on 60 nodes of 30 sites"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	letter := string((&Mail{From: "hub@example.org"}).letter(m))
	for _, want := range []string{"on 2 nodes of site-19 (disk-19)", "and 10 more"} {
		if !strings.Contains(strings.ReplaceAll(letter, "=\r\n", ""), want) {
			t.Errorf("the mail lacks %q:\n%s", want, letter)
		}
	}
	ids := map[string]bool{m.ID(): true}
	m.Incidents = m.Incidents[:29]
	ids[m.ID()] = true
	m.Incidents = nil
	ids[m.ID()] = true
	if len(ids) != 3 {
		t.Errorf("different messages have the same ID: %q", slices.Collect(maps.Keys(ids)))
	}
}
