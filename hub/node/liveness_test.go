package node

import (
	"slices"
	"testing"
	"time"
)

// What is said again is said at 0, 2, 6, 14 s and so on; a reset ends that, but nothing
// is said twice within two seconds.
func TestRepetitionsBackOffUntilAllIsWell(t *testing.T) {
	said := func(well ...int) (at []int) { // the seconds at which it is said, and those at which all is well
		var b backoff
		for s := range 300 {
			switch {
			case slices.Contains(well, s):
				b.reset(time.Duration(s) * time.Second)
			case b.due(time.Duration(s) * time.Second):
				at = append(at, s)
			}
		}
		return at
	}
	for _, c := range []struct {
		name string
		well []int
		want []int
	}{
		{"nothing helps", nil, []int{0, 2, 6, 14, 30, 62, 122, 182, 242}},
		{"all is well after the longest gap has begun", []int{130}, []int{0, 2, 6, 14, 30, 62, 122, 131, 133, 137, 145, 161, 193, 253}},
		{"all is well right after it was said", []int{123}, []int{0, 2, 6, 14, 30, 62, 122, 124, 128, 136, 152, 184, 244}},
		{"all is well before it is said at all", []int{0, 1}, []int{2, 4, 8, 16, 32, 64, 124, 184, 244}},
	} {
		if got := said(c.well...); !slices.Equal(got, c.want) {
			t.Errorf("%s: it is said at %v, want %v", c.name, got, c.want)
		}
	}
}
