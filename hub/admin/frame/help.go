package frame

import (
	"sync"

	"flotilla.dev/web/manual"
)

// Handbook is the manual, parsed at its first use. It panics when a page is invalid, which no
// setting can cause.
var Handbook = sync.OnceValue(func() *manual.Manual {
	m, err := manual.Load(manual.Files)
	if err != nil {
		panic(err)
	}
	return m
})

// HelpURL is the manual's anchor for the parts, joined with dots; "": the manual has none.
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
