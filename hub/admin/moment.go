package admin

import (
	"bytes"
	"html/template"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// A moment is a time as the page shows it: exact for machines, relative for people.
type moment struct {
	At   string // RFC 3339
	UTC  string
	Text string
}

// at is the moment t as seen from now; nil for no time at all.
func at(t, now time.Time) *moment {
	if t.IsZero() {
		return nil
	}
	text := duration.HumanDuration(max(now.Sub(t), 0))
	if t.After(now) {
		text = duration.HumanDuration(t.Sub(now))
	}
	m := momentOf(t)
	m.Text = text
	return &m
}

// momentOf is t without words, whoever looks at it when.
func momentOf(t time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	return moment{At: t.UTC().Format(time.RFC3339), UTC: stamp(t)}
}

// Ago is a moment that has no words yet.
func (m moment) Ago() template.HTML { return m.html("ago") }

func ago(m *moment) template.HTML  { return m.html("ago") }
func left(m *moment) template.HTML { return m.html("left") }

// html needs no escaping: a moment has digits and letters of its own making.
func (m *moment) html(what string) template.HTML {
	if m == nil || m.At == "" {
		return "–"
	}
	return template.HTML(`<time datetime="` + m.At + `" title="` + m.UTC + `" data-` + what + `>` + m.Text + `</time>`) //nolint:gosec // see above
}

// wordless takes the words out of a body's times: they change all the time, and
// page.js finds them itself. Text cannot look like what is searched for, because in
// a body its < and > are escaped.
func wordless(body []byte) []byte {
	out := make([]byte, 0, len(body))
	for {
		i := bytes.Index(body, []byte("</time>"))
		if i < 0 {
			return append(out, body...)
		}
		out = append(out, body[:bytes.LastIndexByte(body[:i], '>')+1]...)
		body = body[i:]
		out, body = append(out, body[:len("</time>")]...), body[len("</time>"):]
	}
}

// worded gives words to those times of a body that have none, for a browser without
// scripts.
func worded(body []byte, now time.Time) []byte {
	const begin = `<time datetime="`
	out := make([]byte, 0, len(body)+len(body)/64)
	for {
		i := bytes.Index(body, []byte("></time>")) + 1
		if i == 0 {
			return append(out, body...)
		}
		tag := body[bytes.LastIndex(body[:i], []byte(begin))+len(begin) : i]
		out, body = append(out, body[:i]...), body[i:]
		at, _, _ := bytes.Cut(tag, []byte{'"'})
		t, err := time.Parse(time.RFC3339, string(at))
		if err != nil {
			continue
		}
		d := now.Sub(t)
		if bytes.HasSuffix(tag, []byte("data-left>")) {
			d = -d
		}
		out = append(out, duration.HumanDuration(max(d, 0))...)
	}
}
