package link

import (
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

// A status reports the round trip of the status before it.
func TestAStatusReportsTheRoundTripOfTheLastOne(t *testing.T) {
	h := &hub{rate: 10_000, buffer: 1 << 20}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		time.Sleep(time.Second)
		synctest.Wait()
		if v := with(h, func(h *hub) wire.Status { return h.status }).Vitals; v != nil {
			t.Errorf("an agent without vitals sends %+v", v)
		}
		mine := &wire.Vitals{}
		a.mu.Lock()
		a.vitals = mine
		a.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		v := with(h, func(h *hub) wire.Status { return h.status }).Vitals
		if v == nil || v.RTT == nil || *v.RTT < .01 || *v.RTT > 1 {
			t.Fatalf("over a line of 10 kB/s the status has the vitals %+v, want a round trip of 10ms to 1s", v)
		}
		if mine.RTT != nil {
			t.Error("the link changed the agent's own vitals")
		}
	})
}
