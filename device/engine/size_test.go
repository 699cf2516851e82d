package engine

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestSizeOf(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write := func(path string, n int) {
		if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(other, "far"), 1<<20)
	before, err := SizeOf(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "a"), 64<<10)
	for _, name := range []string{"b", "c"} {
		if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if n, err := SizeOf(t.Context(), dir); err != nil || n.Bytes-before.Bytes < 64<<10-3 ||
		n.Bytes-before.Bytes > 100<<10 || math.Round(n.Inodes-before.Inodes) != 2 {
		t.Errorf("got %d more bytes and %g more inodes, %v; want 64 KiB and 2 inodes", n.Bytes-before.Bytes,
			n.Inodes-before.Inodes, err)
	}
	if n, err := SizeOf(t.Context(), filepath.Join(other, "far")); err != nil || n.Bytes < 1<<20 {
		t.Errorf("a file: %v, %v; want at least 1 MiB", n, err)
	}
	for what, path := range map[string]string{"a missing path": "none", "a link": "out"} {
		if n, err := SizeOf(t.Context(), filepath.Join(dir, path)); n.Bytes > 4096 || err != nil {
			t.Errorf("%s: %v, %v; want at most 4096 bytes", what, n, err)
		}
	}
	over, end := context.WithCancel(t.Context())
	end()
	if _, err := SizeOf(over, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v, want Canceled", err)
	}
}

// Directories nested deeper than a path can be long give an error, not a partial measurement.
func TestTooDeeplyNestedDirectoriesHaveNoSize(t *testing.T) {
	for depth, want := range map[int]error{MaxDepth: nil, MaxDepth + 1: ErrDeep, 1500: ErrDeep} {
		dir := t.TempDir()
		top, err := os.OpenRoot(dir)
		for i := 0; err == nil && i < depth; i++ {
			at := top
			if err = at.Mkdir("d", 0o700); err == nil {
				top, err = at.OpenRoot("d")
			}
			_ = at.Close()
		}
		if err == nil {
			err = errors.Join(top.WriteFile("z", make([]byte, 1<<20), 0o600), top.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, err := SizeOf(t.Context(), dir); !errors.Is(err, want) || err == nil && n.Bytes < 1<<20 {
			t.Errorf("depth %d: %v, %v; want %v", depth, n, err, want)
		}
	}
}
