package node

import (
	"slices"
	"testing"
	"time"
)

// Repetitions come at 0, 2, 6, 14 s and so on. A reset starts again, but the least gap is two
// seconds.
func TestRepetitionsBackOffUntilAReset(t *testing.T) {
	repetitions := func(well ...int) (at []int) {
		// returns the seconds of the repetitions, with resets at the given seconds
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
		{"a reset during the longest gap", []int{130}, []int{0, 2, 6, 14, 30, 62, 122, 131, 133, 137, 145, 161, 193, 253}},
		{"a reset right after a repetition", []int{123}, []int{0, 2, 6, 14, 30, 62, 122, 124, 128, 136, 152, 184, 244}},
		{"a reset before the first repetition", []int{0, 1}, []int{2, 4, 8, 16, 32, 64, 124, 184, 244}},
	} {
		if got := repetitions(c.well...); !slices.Equal(got, c.want) {
			t.Errorf("%s: repetitions at %v, want %v", c.name, got, c.want)
		}
	}
}
