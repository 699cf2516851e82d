// Package admintest is what tests of the page share: a fleet in memory, and samples.
package admintest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

func Ask(s state.Snapshot, now time.Time, query map[string]string) *frame.Request {
	return &frame.Request{Snapshot: s, Now: now, Path: "/nodes/n", Query: func(k string) string { return query[k] }}
}

// CheckKeys checks that a list can be searched by exactly the documented keys.
func CheckKeys[F any](t testing.TB, list string, has map[string]F) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(has))
	want := append(search.KeysOf(list), "")
	slices.Sort(want)
	if !slices.Equal(keys, want) {
		t.Errorf("%s: %q, want %q", list, keys, want)
	}
}
