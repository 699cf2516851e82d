package admin

import (
	"html/template"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// A moment is a time as the page shows it: exact for machines, relative for people.
type moment struct {
	At   string // RFC 3339; "": no time at all
	UTC  string
	Ago  string // how long ago it was when it was looked at
	Left string // how long it was until then
}

// at is the moment t as seen from now; nil for no time at all.
func at(t, now time.Time) *moment {
	if t.IsZero() {
		return nil
	}
	m := momentOf(t, now)
	return &m
}

// momentOf is the moment t as seen from now.
func momentOf(t, now time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	text := func(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }
	return moment{At: t.UTC().Format(time.RFC3339), UTC: stamp(t), Ago: text(now.Sub(t)), Left: text(t.Sub(now))}
}

// lasting is the moment without its words, which change all the time.
func (m moment) lasting() moment { return moment{At: m.At, UTC: m.UTC} }

// timeFuncs are the template's functions that show a moment: with words, for the browser
// that opens a page and may have no scripts; without, in what an open page is sent, where
// page.js finds the words itself: that a minute has passed is no reason to send anything.
func timeFuncs(words bool) template.FuncMap {
	show := func(name string, word func(moment) string) func(any) template.HTML {
		return func(v any) template.HTML {
			m, ok := v.(moment)
			if p, _ := v.(*moment); !ok && p != nil {
				m = *p
			}
			if m.At == "" {
				return "–"
			}
			text := ""
			if words {
				text = word(m)
			}
			// It needs no escaping: a moment has digits and letters of its own making.
			return template.HTML(`<time datetime="` + m.At + `" title="` + m.UTC + `" data-` + name + `>` + text + `</time>`) //nolint:gosec // see above
		}
	}
	return template.FuncMap{
		"ago":  show("ago", func(m moment) string { return m.Ago }),
		"left": show("left", func(m moment) string { return m.Left }),
	}
}
