package frame

import (
	"fmt"
	"strings"
	"testing"
)

// A list with many pages names the first, the last, and those around this one.
func TestAPagerNamesPages(t *testing.T) {
	a := &Request{Path: "/nodes"}
	for _, c := range []struct {
		rows, page int
		want       string
	}{
		{100, 1, ""}, {200, 1, "[1] 2"}, {2000, 1, "[1] 2 3 … 20"}, {2000, 10, "1 … 8 9 [10] 11 12 … 20"},
		{2000, 20, "1 … 18 19 [20]"}, {500, 3, "1 2 [3] 4 5"},
	} {
		_, _, p := pageAt(a, c.page, c.rows, nil)
		var words []string
		for _, l := range p.Pages {
			switch {
			case l.Number == 0:
				words = append(words, "…")
			case l.Href == "":
				words = append(words, fmt.Sprintf("[%d]", l.Number))
			default:
				words = append(words, fmt.Sprint(l.Number))
			}
		}
		if got := strings.Join(words, " "); got != c.want {
			t.Errorf("page %d of %d rows: %s, want %s", c.page, c.rows, got, c.want)
		}
	}
}
