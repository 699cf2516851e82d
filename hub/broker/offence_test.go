package broker

import (
	"testing"
	"testing/synctest"
	"time"
)

// Repeated offences are reported at growing intervals. After a pause an offence is reported at
// once.
func TestRepeatedOffencesAreReportedAtGrowingIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o offences
		reported, held := 0, 0
		const hours = 8
		for range hours * 3600 {
			if more, now := o.report("x"); now {
				reported, held = reported+1, held+more
			}
			time.Sleep(time.Second)
		}
		if reported < 90 || reported > 110 {
			t.Errorf("%d reports in %d hours", reported, hours)
		}
		if total := reported + held; total < (hours-1)*3600 {
			t.Errorf("%d of %d offences are reported", total, hours*3600)
		}
		time.Sleep(2 * offenceSlowest)
		for range 2 { // the first is reported at once, the second after 10 s
			if _, now := o.report("x"); !now {
				t.Error("an offence after a pause is not reported at once")
			}
			time.Sleep(offenceInterval)
		}
	})
}
