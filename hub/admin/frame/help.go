package frame

import (
	"sync"

	"flotilla.dev/web/manual"
)

// Handbook is the manual, read when somebody first asks for it or a page links to it. It
// panics when a page is wrong, which no setting can cause.
var Handbook = sync.OnceValue(func() *manual.Manual {
	m, err := manual.Load(manual.Files)
	if err != nil {
		panic(err)
	}
	return m
})

// HelpURL is where the manual tells of something: the anchor of a page, whose parts are
// joined with a dot; "" where it does not.
func HelpURL(page string, parts ...string) string {
	id := ""
	for i, part := range parts {
		if i > 0 {
			id += "."
		}
		id += part
	}
	return Handbook().Href(page, id)
}
