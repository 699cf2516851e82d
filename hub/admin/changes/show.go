package changes

import (
	"fmt"
	"strings"
	"time"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

// A Shown is the data of the template "changes".
type Shown struct {
	Lanes  []Lane
	Rows   []Row // the newest changes
	Older  []Row
	More   int // changes that are not shown
	Ticks  []string
	Unread bool // the audit could not be read
	Hidden bool // the role may not read the audit
}

// axisUnits is the length of the time axis in units of the drawing.
const axisUnits = 1440

// spanOf returns the shortest span of the axis that has all changes.
func spanOf(all []Entry, now time.Time) time.Duration {
	for _, span := range []time.Duration{time.Hour, 6 * time.Hour} {
		if len(all) == 0 || now.Sub(all[len(all)-1].At) <= span {
			return span
		}
	}
	return Window
}

// A Lane is the line of one kind on the time axis.
type Lane struct {
	Kind Kind
	D    string
	Bad  string // the marks of failures
}

// A Row is one change in the list.
type Row struct {
	When       *format.Moment
	UTC        string
	Kind       Kind
	Text, Href string
}

// fewRows is how many changes are shown unfolded, mostRows how many are sent.
const fewRows, mostRows = 12, 100

// Show lists the changes of a subject.
func Show(a *frame.Request, sub Subject) (shown Shown) {
	shown.Hidden = !a.May("list", "audit")
	audits, err := a.Audits()
	shown.Unread = err != nil
	all := Of(a.Snapshot, sub, audits, a.Now)
	span := spanOf(all, a.Now)
	begin := a.Now.Add(-span)
	for _, k := range kinds {
		var good, bad strings.Builder
		for _, e := range all {
			d := &good
			if e.Bad {
				d = &bad
			}
			if e.Kind == k {
				fmt.Fprintf(d, "M%d 0v8", int(axisUnits*e.At.Sub(begin)/span))
			}
		}
		if good.Len()+bad.Len() > 0 {
			shown.Lanes = append(shown.Lanes, Lane{k, good.String(), bad.String()})
		}
	}
	for i, e := range all[:min(len(all), mostRows)] {
		rows := &shown.Rows
		if i >= fewRows {
			rows = &shown.Older
		}
		*rows = append(*rows, Row{When: format.Time(e.At, a.Now), UTC: e.At.UTC().Format(time.TimeOnly), Kind: e.Kind,
			Text: e.Text, Href: e.Href})
	}
	shown.More = max(len(all)-mostRows, 0)
	for i := range 5 {
		shown.Ticks = append(shown.Ticks, begin.Add(time.Duration(i)*span/4).UTC().Format("15:04"))
	}
	shown.Ticks[4] = "now"
	return shown
}
