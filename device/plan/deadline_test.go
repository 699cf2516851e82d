package plan

import (
	"testing"
	"time"
)

func TestMonotonicStart(t *testing.T) {
	now := time.Now()
	f := Facts{Boot: "b2", Booted: now.Add(-time.Minute)}
	if got := f.monotonicStart("b1 5000", now.Add(time.Hour), time.Time{}, now); !got.Equal(now) {
		t.Errorf("a pod of an earlier boot has its start %s before now, want now", now.Sub(got))
	}
	if got := f.monotonicStart("b2 5000", now.Add(time.Hour), time.Time{}, now); got.Sub(f.Booted) != 5*time.Second {
		t.Errorf("a pod of this boot has its start %s after the boot, want 5s", got.Sub(f.Booted))
	}
	if got := f.monotonicStart("", now.Add(-time.Hour), now.Add(-time.Hour+clockSkew),
		now); now.Sub(got).Round(time.Second) != time.Hour {
		t.Errorf("a pod of an older agent has its start %s before now, want an hour", now.Sub(got))
	}
}
