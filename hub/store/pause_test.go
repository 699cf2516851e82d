package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPausesOfTheHub(t *testing.T) {
	dir := t.TempDir()
	noon := time.Now().UTC().Truncate(time.Second).Add(-6 * time.Hour)
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	run := func(from time.Duration, end func(s *Store)) (got []string) {
		t.Helper()
		s := openIn(t, dir)
		pauses, err := s.Begin(t.Context(), after(from))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pauses {
			got = append(got, fmt.Sprintf("%s to %s", p.From.Sub(noon), p.To.Sub(noon)))
		}
		end(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return got
	}
	ends := func(at time.Duration) func(*Store) {
		return func(s *Store) {
			if err := s.End(t.Context(), after(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	dies := func(*Store) {}
	setAge := func(at time.Duration) { // set the files' modification time to the hub's time
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, "hub.db*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.Chtimes(f, after(at), after(at)); err != nil {
				t.Fatal(err)
			}
		}
	}

	// a new hub
	expect(t, run(0, ends(time.Hour)))
	// after a clean end
	expect(t, run(2*time.Hour, dies), "1h0m0s to 2h0m0s")
	// its last write before it was killed
	setAge(150 * time.Minute)
	// after the kill
	expect(t, run(3*time.Hour, ends(4*time.Hour)), "1h0m0s to 2h0m0s", "2h30m0s to 3h0m0s")
	// the clock went back
	expect(t, run(3*time.Hour, ends(4*time.Hour)), "1h0m0s to 2h0m0s", "2h30m0s to 3h0m0s")
	// old pauses expire
	expect(t, run(10*24*time.Hour, ends(11*24*time.Hour)), "4h0m0s to 240h0m0s")
	// unreadable pauses do not stop a hub
	if s := openIn(t, dir); s.SetMeta(t.Context(), metaPauses, "{") != nil || s.End(t.Context(), noon) != nil {
		t.Error("unreadable pauses end the hub")
	}
}

func TestPausesAreLimited(t *testing.T) {
	s := openIn(t, t.TempDir())
	at := time.Now()
	var got []Pause
	for range maxPauses + 20 {
		if err := s.End(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Minute)
		var err error
		if got, err = s.Begin(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != maxPauses || !got[maxPauses-1].To.Equal(at) {
		t.Errorf("%d pauses, the newest until %s; want %d until %s", len(got), got[len(got)-1].To, maxPauses, at)
	}
}
