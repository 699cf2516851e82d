package hardware

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// FuzzFiles replaces one file of a board's /proc, /sys or /etc. Firmware and drivers may write
// anything, and the report must stay complete and bounded.
func FuzzFiles(f *testing.F) {
	board := filepath.Join(boards, "raspberrypi-4", "root")
	var files []string
	err := filepath.WalkDir(board, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(board, path)
			files = append(files, rel)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		f.Fatal(err, files)
	}
	root := f.TempDir()
	if err := os.CopyFS(root, os.DirFS(board)); err != nil {
		f.Fatal(err)
	}
	for i := range files {
		for _, text := range []string{"", "-9223372036854775809 0x \xff\x00\n"} {
			f.Add(i, []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, i int, text []byte) {
		name := files[uint(i)%uint(len(files))]
		good, err := os.ReadFile(filepath.Join(board, name))
		if err != nil {
			t.Fatal(err)
		}
		full := filepath.Join(root, name)
		if err := os.WriteFile(full, text, 0o644); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.WriteFile(full, good, 0o644) }()
		r, err := Probe(t.Context(), Options{Root: root})
		if err != nil {
			return // the report names the problem
		}
		out := r.JSON()
		if len(out) > MaxReport || !json.Valid(out) {
			t.Errorf("with %s replaced the report is invalid JSON or too large: %d bytes", name, len(out))
		}
		c := r.Capacity
		if c.CPUs < 0 || c.Memory < 0 || c.Ephemeral < 0 || c.Pods < 0 {
			t.Errorf("with %s replaced the capacity is negative: %+v", name, c)
		}
		for name, q := range NodeStatus(r, Limits{}, Software{}).Allocatable {
			if q.Sign() < 0 {
				t.Errorf("%s: allocatable %s is %s", name, name, q.String())
			}
		}
	})
}
