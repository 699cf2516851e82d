package admin

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// However many need attention, the worst are shown, of those the newest, and only
// what is shown is told of.
func TestTheOverviewShowsTheWorstAndNewest(t *testing.T) {
	type fault struct {
		kind string
		age  int // minutes
	}
	var faults []fault
	for i := range 100 {
		faults = append(faults, fault{"warn", i}, fault{"bad", 1000 + i})
	}
	faults = append(faults, fault{"idle", 0})
	for try := range 20 {
		rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		var w problems
		told := 0
		for _, f := range faults {
			w.add(f.kind, now0.Add(-time.Duration(f.age)*time.Minute), func(v *problem) {
				told++
				v.Name = fmt.Sprint(f.kind, f.age)
			})
		}
		w = w.told(now0)
		if told != few || w.More != len(faults)-few || len(w.Items) != few {
			t.Fatalf("shuffled %d times: told of %d, %d shown and %d more", try, told, len(w.Items), w.More)
		}
		for i, v := range w.Items {
			if want := fmt.Sprint("bad", 1000+i); v.Name != want || v.Since == nil {
				t.Fatalf("shuffled %d times: number %d is %s since %v, want %s", try, i+1, v.Name, v.Since, want)
			}
		}
	}
	var w problems
	for i, kind := range []string{"warn", "bad", "warn"} {
		w.add(kind, time.Time{}, func(v *problem) { v.Name = fmt.Sprint(kind, i) })
	}
	if w = w.told(now0); w.More != 0 || fmt.Sprint(w.Items[0].Name, w.Items[1].Name, w.Items[2].Name) != "bad1warn0warn2" {
		t.Errorf("few, not known since when: %+v", w.Items)
	}
}
