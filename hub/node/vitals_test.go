package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/shared/wire"
)

func TestVitalsAreCollectedUntilTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		if v, ok := l.TakeVitals("pi-1"); ok {
			t.Errorf("a missing node has %+v", v)
		}
		warm := 48.5
		st := from("b", 1)
		st.Vitals = &wire.Vitals{Temperature: &warm}
		hear(t, l, "pi-1", st)
		lease := func(seq uint64, after time.Duration) {
			time.Sleep(after)
			l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: seq, Status: 1})
		}
		lease(5, 10*time.Second) // the first lease of this hub, which does not know earlier ones
		synctest.Wait()
		commits, _, _ := book.Counts()
		lease(6, 10*time.Second)
		lease(9, 30*time.Second)
		lease(9, 20*time.Second) // a repeated lease is not a heartbeat
		lease(10, 5*time.Second)
		v, ok := l.TakeVitals("pi-1")
		if !ok || v.Temperature == nil || *v.Temperature != warm || v.CPU != nil || v.Lost != 2 ||
			v.Silence != 30*time.Second {
			t.Errorf("the vitals are %+v, %v", v, ok)
		}
		if v, ok = l.TakeVitals("pi-1"); ok || v.Temperature != nil || v.Lost != 0 || v.Silence != 0 {
			t.Errorf("a second TakeVitals returns %+v, %v", v, ok)
		}
		lease(11, 10*time.Second)
		if v, ok = l.TakeVitals("pi-1"); !ok || v.Temperature != nil || v.Silence != 10*time.Second {
			t.Errorf("after one more lease: %+v, %v", v, ok)
		}
		if is := l.Liveness("pi-1").Vitals; is.Temperature == nil || *is.Temperature != warm {
			t.Errorf("the newest vitals are %+v", is)
		}
		if after, _, _ := book.Counts(); after != commits {
			t.Errorf("leases and vitals caused %d writes", after-commits)
		}

		stale := from("b", 1)
		cold := 1.
		stale.Vitals = &wire.Vitals{Temperature: &cold}
		_ = l.Status(t.Context(), node.Caller{Node: "pi-1"}, stale)
		if is := l.Liveness("pi-1").Vitals; *is.Temperature != warm {
			t.Error("an old status is accepted")
		}
	})
}
