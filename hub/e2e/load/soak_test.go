package main

import (
	"strings"
	"testing"
)

// samplesOf returns 90 seconds of samples of a hub. of returns the figures of each second.
func samplesOf(of func(second int64) []int64) (all [][]int64) {
	for n := range int64(90) {
		all = append(all, of(n))
	}
	return all
}

func TestASoakDetectsGrowth(t *testing.T) {
	steady := []int64{600, 550, 60_000, 130_000, 12_000, 1800}
	// leaks is the growth per second of each figure in a hub with a leak.
	leaks := []int64{10, 5, 600, 2000, 0, 10}
	if table, err := judge(samplesOf(func(n int64) []int64 {
		now := append([]int64{}, steady...)
		now[2] += n % 20 * 1000       // garbage, which is collected
		now[3] -= max(0, 30-n) * 1000 // caches that fill up at first
		now[4] += n * 100             // events, which grow at a constant rate
		now[0] += []int64{0, 40}[n%2] // watches, which come and go
		return now
	})); err != nil {
		t.Errorf("a hub without leaks fails: %v\n%s", err, table)
	}
	for i, by := range leaks {
		_, err := judge(samplesOf(func(n int64) []int64 {
			now := append([]int64{}, steady...)
			if now[i] += n * by; levels[i].name == "database" { // at a growing rate
				now[i] += n * n * 10
			}
			return now
		}))
		if err == nil || !strings.HasPrefix(err.Error(), levels[i].name+":") {
			t.Errorf("%s grows, but the soak returned %v", levels[i].name, err)
		}
	}
	if _, err := judge(nil); err == nil {
		t.Error("a soak without samples must fail")
	}
}
