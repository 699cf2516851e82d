package frame

import (
	"testing"
)

func TestOnlyListsAreViews(t *testing.T) {
	for text, want := range map[string]string{
		"/nodes": "/nodes", "/nodes?page=3&q=a+b&evil=1&did=x&shown=y": "/nodes?q=a+b",
		"/pods?owner=x&sort=": "/pods?owner=x",
		"/":                   "", "/settings": "", "//evil/nodes": "", "https://evil/nodes": "", "/nodes/pi-1": "",
		"javascript:alert(1)": "", "/nodes#x": "/nodes", "": "",
	} {
		if got := viewHref(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
