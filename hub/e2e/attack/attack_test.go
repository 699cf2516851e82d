package main

import (
	"path/filepath"
	"testing"

	"flotilla.dev/hub/e2e/harness"
)

// TestAttacks runs the quick attacks of `make attack`.
func TestAttacks(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: this runs the real hub")
	}
	hub, err := harness.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range attacks() {
		if at.slow {
			continue
		}
		t.Run(at.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a")
			if r := try(t.Context(), at, hub, dir); r.err != nil {
				t.Errorf("%s %s: %v", at.by, at.does, r.err)
			} else {
				t.Log(r.seen)
			}
		})
	}
}
