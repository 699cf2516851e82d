package lifecycle_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/shared/fleet"
)

// A site's history stays for a month, even without its events.
func TestTheHistoryOfASiteIsStored(t *testing.T) {
	w := newWorld(t, lifecycle.Defaults)
	w.site("oslo", 4, 0)
	w.site("bergen", 1, 0)
	all := append(names("oslo", 4), "bergen-00")
	w.wait(10*time.Second, all...)
	w.wait(2*time.Minute, "bergen-00") // oslo is dark
	w.becomes("oslo-00", up)
	w.wait(10*time.Second, "bergen-00", "oslo-00")
	for _, n := range names("oslo", 4)[1:] {
		w.becomes(n, up)
	}
	w.wait(10*time.Second, all...)

	type turn struct {
		state            fleet.SiteState
		notReady, gaveUp int32
	}
	var got []turn
	var last time.Time
	for _, h := range w.s.Site("oslo").Status.History {
		got = append(got, turn{h.State, h.NotReady, h.Given})
		if h.Time.Time.Before(last) || h.Time.After(w.now) {
			t.Errorf("a change at %s after one at %s", h.Time, last)
		}
		last = h.Time.Time
	}
	if n := len(got); n < 4 || got[0].state != fleet.SiteNormal || got[n-1].state != fleet.SiteNormal ||
		got[n-1].notReady > 2 {
		t.Fatalf("the site's history is %+v", got)
	}
	gaveUp := int32(0)
	for _, g := range got {
		gaveUp += g.gaveUp
	}
	if gaveUp != 4 {
		t.Errorf("%d nodes were tainted, want 4: %+v", gaveUp, got)
	}
}

func TestTheHistoryOfASiteIsBounded(t *testing.T) {
	var st fleet.SiteStatus
	at := func(d time.Duration) fleet.SiteTurn { return fleet.SiteTurn{Time: metav1.NewTime(noon.Add(d))} }
	for i := range 1000 {
		st.Turn(at(time.Duration(i) * time.Minute))
	}
	if n := len(st.History); n != 100 || !st.History[99].Time.Equal(new(at(999*time.Minute).Time)) {
		t.Errorf("%d changes are stored, the last of %s", n, st.History[n-1].Time)
	}
	before := (&fleet.Site{Status: st}).DeepCopy().Status.History
	st.Turn(at(40 * 24 * time.Hour))
	if n := len(st.History); n != 2 { // the previous state, and this change
		t.Errorf("after forty days %d changes are stored", n)
	}
	if len(before) != 100 {
		t.Error("a change of a copy has changed the original")
	}
}
