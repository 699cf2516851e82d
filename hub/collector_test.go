package main

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestGarbageIsCollectedLessDuringABurst(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(gcPercentStart)
	defer debug.SetGCPercent(before)
	now := func() int {
		is := debug.SetGCPercent(gcPercentStart)
		debug.SetGCPercent(is)
		return is
	}
	after := func(t *testing.T, d time.Duration, what string, want int) {
		t.Helper()
		time.Sleep(d)
		synctest.Wait()
		if is := now(); is != want {
			t.Errorf("%s: GOGC is %d, want %d", what, is, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var empty, full collector
		began := time.Now()
		empty.hurry(burstTime)
		after(t, 0, "while the hub reads its fleet", gcPercentStart)
		empty.settle(t.Context(), 0)
		after(t, 0, "after a start without a fleet", gcPercent)
		if !time.Now().Equal(began) {
			t.Error("settle must not wait for an empty fleet")
		}
		go full.settle(t.Context(), 1)
		after(t, returnTime-1, "while the fleet returns", gcPercentHurry)
		after(t, 1, "after the fleet has returned", gcPercent)

		full.hurry(burstTime)
		after(t, burstTime/2, "while many devices fall silent", gcPercentHurry)
		full.hurry(burstTime)
		after(t, burstTime-1, "while more devices fall silent", gcPercentHurry)
		full.hurry(burstTime / 2)
		after(t, 1+burstTime/2, "after a burst", gcPercent)

		go full.settle(t.Context(), 1)
		synctest.Wait()
		full.hurry(burstTime)
		after(t, returnTime-1, "after a burst, while the fleet returns", gcPercentHurry)
		after(t, 1, "after a burst, when the fleet has returned", gcPercent)

		ending, end := context.WithCancel(t.Context())
		end()
		full.settle(ending, 1) // ending has ended, so settle returns
		time.Sleep(returnTime)
		synctest.Wait()
		t.Setenv("GOGC", "70")
		debug.SetGCPercent(70)
		full.hurry(burstTime)
		if full.settle(t.Context(), 1); now() != 70 {
			t.Error("GOGC in the environment must override the collector's")
		}
	})
}
