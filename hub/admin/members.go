package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Member is one of several hubs on one database.
type Member struct {
	Name, Address, Version string
	Since                  time.Time     // it has led, or stood by
	Leads                  bool          // one of them
	Behind                 time.Duration // for how long a standby may not have been up to date
	Late                   bool          // that is too long
	Here                   bool          // this page was asked for there
}

// A memberRow is a hub as the settings list it.
type memberRow struct {
	Name, Address, Version, Behind string
	Since                          *moment
	Here                           bool
	Pill                           pill
}

// hubsSaid says in a line which hub leads, and which others there are; "": there is one alone. What a page
// shows is what the hub that leads knows, wherever it was asked for.
func hubsSaid(all []Member) string {
	if len(all) == 0 {
		return ""
	}
	var leads, here string
	var others []string
	for _, m := range all {
		name := m.Name
		if slices.ContainsFunc(all, func(o Member) bool { return o.Name == name && o.Address != m.Address }) { // on one machine
			name += " (" + m.Address + ")"
		}
		switch {
		case m.Leads:
			leads = name
		case m.Late:
			others = append(others, fmt.Sprintf("%s stands by, %.0f s behind", name, m.Behind.Seconds()))
		default:
			others = append(others, name+" stands by")
		}
		if m.Here && !m.Leads {
			here = fmt.Sprintf(" You are at %s, which passes this page on.", name)
		}
	}
	if len(others) == 0 {
		others = []string{"no other hub stands by"}
	}
	return fmt.Sprintf("Hub %s leads; %s.%s", leads, strings.Join(others, "; "), here)
}

// memberRows are the hubs of one database.
func memberRows(all []Member, now time.Time) (rows []memberRow) {
	for _, m := range all {
		r := memberRow{Name: m.Name, Address: m.Address, Version: m.Version, Since: at(m.Since, now), Here: m.Here, Behind: "–", Pill: pill{"ok", "Leads"}}
		if !m.Leads {
			r.Pill, r.Behind = pill{"ok", "Stands by"}, fmt.Sprintf("%.1f s", m.Behind.Seconds())
		}
		if m.Late {
			r.Pill = pill{"warn", "Behind"}
		}
		rows = append(rows, r)
	}
	return rows
}
