package main

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheCollectorIsInNoHurryOnceTheFleetIsBack(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(gcPercentStart)
	defer debug.SetGCPercent(before)
	now := func() int {
		is := debug.SetGCPercent(gcPercentStart)
		debug.SetGCPercent(is)
		return is
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		settleCollector(t.Context(), 0)
		if is := now(); is != gcPercent || time.Since(began) > 0 {
			t.Errorf("a hub without a fleet collects at %d %% after %s", is, time.Since(began))
		}
		go settleCollector(t.Context(), 1)
		time.Sleep(returning - 1)
		synctest.Wait()
		if is := now(); is != gcPercentReturn {
			t.Errorf("while its fleet comes back, a hub collects at %d %%", is)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if is := now(); is != gcPercent {
			t.Errorf("once its fleet is back, a hub collects at %d %%", is)
		}
		ending, end := context.WithCancel(t.Context())
		end()
		settleCollector(ending, 1) // returns
		t.Setenv("GOGC", "70")
		debug.SetGCPercent(70)
		if settleCollector(t.Context(), 1); now() != 70 {
			t.Error("GOGC of the environment does not win")
		}
	})
}
