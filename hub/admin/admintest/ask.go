// Package admintest has what the tests of the page share: a fleet in memory.
package admintest

import (
	"time"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

func Ask(s state.Snapshot, now time.Time, query map[string]string) *frame.Request {
	return &frame.Request{Snapshot: s, Now: now, Path: "/nodes/n", Query: func(k string) string { return query[k] }}
}
