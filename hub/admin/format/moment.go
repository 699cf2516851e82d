package format

import (
	"html/template"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// A Moment is a time as the page shows it: exact for machines, relative for people.
type Moment struct {
	At   string // RFC 3339; "": no time at all
	UTC  string
	Ago  string // how long ago it was when it was looked at
	Left string // how long it was until then
}

// Time is the moment t as seen from now; nil for no time at all.
func Time(t, now time.Time) *Moment {
	if t.IsZero() {
		return nil
	}
	m := MomentOf(t, now)
	return &m
}

// MomentOf is the moment t as seen from now.
func MomentOf(t, now time.Time) Moment {
	if t.IsZero() {
		return Moment{}
	}
	text := func(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }
	return Moment{At: t.UTC().Format(time.RFC3339), UTC: Stamp(t), Ago: text(now.Sub(t)), Left: text(t.Sub(now))}
}

// Lasting is the moment without its words, which change all the time.
func (m Moment) Lasting() Moment { return Moment{At: m.At, UTC: m.UTC} }

// TemplateFuncs are the template's functions that show a moment: with words, for the browser
// that opens a page and may have no scripts; without, in what an open page is sent, where
// page.js finds the words itself: that a minute has passed is no reason to send anything.
func TemplateFuncs(words bool) template.FuncMap {
	show := func(name string, word func(Moment) string) func(any) template.HTML {
		return func(v any) template.HTML {
			m, ok := v.(Moment)
			if p, _ := v.(*Moment); !ok && p != nil {
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
			//nolint:gosec // see above
			return template.HTML(`<time datetime="` + m.At + `" title="` + m.UTC + `" data-` + name + `>` + text + `</time>`)
		}
	}
	return template.FuncMap{
		"ago":  show("ago", func(m Moment) string { return m.Ago }),
		"left": show("left", func(m Moment) string { return m.Left }),
	}
}

// ISO is a moment for machines.
func ISO(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Stamp is a moment for people who need more than how long ago it was.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

// Earlier is the earlier of two moments.
func Earlier(x, y time.Time) time.Time {
	if x.Before(y) {
		return x
	}
	return y
}

// Later is the later of two moments.
func Later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}
