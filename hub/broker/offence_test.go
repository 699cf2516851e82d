package broker

import (
	"testing"
	"testing/synctest"
	"time"
)

// Repeated offences are reported at growing intervals, and at once again after a pause.
func TestRepeatedOffencesAreReportedAtGrowingIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o offences
		told, held := 0, 0
		const hours = 8
		for range hours * 3600 {
			if more, now := o.report("x"); now {
				told, held = told+1, held+more
			}
			time.Sleep(time.Second)
		}
		if told < 90 || told > 110 {
			t.Errorf("reported %d times in %d hours", told, hours)
		}
		if said := told + held; said < (hours-1)*3600 {
			t.Errorf("%d of %d are reported", said, hours*3600)
		}
		time.Sleep(2 * offenceSlowest)
		for range 2 { // the first at once, the second after 10 s
			if _, now := o.report("x"); !now {
				t.Error("after a pause it is not reported at once")
			}
			time.Sleep(offenceInterval)
		}
	})
}
