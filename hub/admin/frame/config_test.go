package frame

import (
	"testing"
	"time"
)

func TestThePageSaysWhichHubLeads(t *testing.T) {
	a, b := Member{Name: "hub-a", Address: "a:8444", Leads: true, Here: true}, Member{Name: "hub-b", Address: "b:8444"}
	late, here, same := b, b, b
	late.Behind, late.Late, here.Here, same.Name = 40*time.Second, true, true, "hub-a"
	away := a
	away.Here = false
	for _, c := range []struct {
		name string
		all  []Member
		says string
	}{
		{"a single hub", nil, ""},
		{"all others are lost", []Member{a}, "Hub hub-a leads; no other hub stands by."},
		{"one standby", []Member{a, b}, "Hub hub-a leads; hub-b stands by."},
		{"a standby with old data", []Member{a, late}, "Hub hub-a leads; hub-b stands by, 40 s behind."},
		{"the page is served by the standby", []Member{away, here},
			"Hub hub-a leads; hub-b stands by. You are at hub-b, which passes this page on."},
		{"two hubs with one name", []Member{a, same}, "Hub hub-a (a:8444) leads; hub-a (b:8444) stands by."},
	} {
		if said := hubsSaid(c.all); said != c.says {
			t.Errorf("%s: %q", c.name, said)
		}
	}
	rows := MemberRows([]Member{a, late}, time.Now())
	if rows[0].Pill.Text != "Leads" || rows[0].Behind != "–" || rows[1].Pill != (Pill{"warn", "Behind"}) ||
		rows[1].Behind != "40.0 s" {
		t.Errorf("the settings show %+v", rows)
	}
}
