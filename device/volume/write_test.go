package volume

import (
	"os"
	"path/filepath"
	"testing"

	"flotilla.dev/device/podspec"
)

// Files of config maps change all at once, and only if their content differs.
func TestVolumeFiles(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	write := func(files map[string]podspec.File) string {
		t.Helper()
		if err := writeFiles(root, files, -1); err != nil {
			t.Fatal(err)
		}
		now, err := os.Readlink(filepath.Join(dir, dataLink))
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "none"
		}
		return string(b)
	}
	one := write(map[string]podspec.File{"a": {Data: []byte("1"), Mode: 0o644}, "sub/b": {Data: []byte("2"), Mode: 0o400}})
	if read("a") != "1" || read("sub/b") != "2" {
		t.Fatalf("the files are a=%s sub/b=%s, want 1 and 2", read("a"), read("sub/b"))
	}
	if again := write(map[string]podspec.File{"a": {Data: []byte("1"), Mode: 0o644},
		"sub/b": {Data: []byte("2"), Mode: 0o400}}); again != one {
		t.Error("the same files were written again")
	}
	write(map[string]podspec.File{"a": {Data: []byte("new"), Mode: 0o644}, "c": {Data: []byte("3"), Mode: 0o644}})
	if read("a") != "new" || read("sub/b") != "none" || read("c") != "3" {
		t.Errorf("the files are a=%s sub/b=%s c=%s, want new, none and 3", read("a"), read("sub/b"), read("c"))
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 { // expected: a, c, ..data and the target of ..data
		t.Errorf("the directory contains %v (%v)", entries, err)
	}
	// An agent was killed after it had shown new files, but before it had linked them.
	for _, lost := range []string{"c", "a"} {
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "..files-old"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(map[string]podspec.File{"a": {Data: []byte("new"), Mode: 0o644}, "c": {Data: []byte("3"), Mode: 0o644}})
	if entries, _ := os.ReadDir(dir); read("a") != "new" || read("c") != "3" || len(entries) != 4 {
		t.Errorf("after a kill a=%s c=%s, and the directory contains %v", read("a"), read("c"), entries)
	}
}
