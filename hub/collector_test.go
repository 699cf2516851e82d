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
			t.Errorf("%s, a hub collects at %d %%, want %d", what, is, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var empty, full collector
		began := time.Now()
		empty.hurry(burstTime)
		after(t, 0, "while it reads its fleet", gcPercentStart)
		empty.settle(t.Context(), 0)
		after(t, 0, "without a fleet", gcPercent)
		if !time.Now().Equal(began) {
			t.Error("a hub without a fleet waits for it")
		}
		go full.settle(t.Context(), 1)
		after(t, returnTime-1, "while its fleet returns", gcPercentHurry)
		after(t, 1, "once its fleet is back", gcPercent)

		full.hurry(burstTime)
		after(t, burstTime/2, "while many fall silent", gcPercentHurry)
		full.hurry(burstTime)
		after(t, burstTime-1, "while more do", gcPercentHurry)
		full.hurry(burstTime / 2)
		after(t, 1+burstTime/2, "after a storm", gcPercent)

		go full.settle(t.Context(), 1)
		synctest.Wait()
		full.hurry(burstTime)
		after(t, returnTime-1, "after a storm while its fleet returns", gcPercentHurry)
		after(t, 1, "once that is back too", gcPercent)

		ending, end := context.WithCancel(t.Context())
		end()
		full.settle(ending, 1) // returns
		time.Sleep(returnTime)
		synctest.Wait()
		t.Setenv("GOGC", "70")
		debug.SetGCPercent(70)
		full.hurry(burstTime)
		if full.settle(t.Context(), 1); now() != 70 {
			t.Error("GOGC of the environment does not win")
		}
	})
}
