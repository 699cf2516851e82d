package format

import (
	"html/template"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// A Moment is a time: exact for machines, relative for people.
type Moment struct {
	At   string // RFC 3339; "": no time
	UTC  string
	Ago  string // how long ago, when it was rendered
	Left string // how long until then, when it was rendered
}

// Time is t relative to now; nil for the zero time.
func Time(t, now time.Time) *Moment {
	if t.IsZero() {
		return nil
	}
	m := MomentOf(t, now)
	return &m
}

// MomentOf is t relative to now.
func MomentOf(t, now time.Time) Moment {
	if t.IsZero() {
		return Moment{}
	}
	text := func(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }
	return Moment{At: t.UTC().Format(time.RFC3339), UTC: Stamp(t), Ago: text(now.Sub(t)), Left: text(t.Sub(now))}
}

// Lasting returns the moment without its relative words, which change with time.
func (m Moment) Lasting() Moment { return Moment{At: m.At, UTC: m.UTC} }

// TemplateFuncs returns the template functions for moments. A document has relative words, for
// browsers without scripts. A live update has none, because page.js writes them: so passing time
// alone changes no update.
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
			// A moment has only digits and letters and needs no escaping.
			//nolint:gosec // see above
			return template.HTML(`<time datetime="` + m.At + `" title="` + m.UTC + `" data-` + name + `>` + text + `</time>`)
		}
	}
	return template.FuncMap{
		"ago":  show("ago", func(m Moment) string { return m.Ago }),
		"left": show("left", func(m Moment) string { return m.Left }),
	}
}

// ISO is a time for machines.
func ISO(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Stamp is an exact time for people.
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
