package volume

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A pod's files are removed even if containers have nested them very deeply.
func TestDeeplyNestedFilesOfAPodAreRemoved(t *testing.T) {
	var before, few unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	dir, far := t.TempDir(), t.TempDir()
	d := &Disk{Root: filepath.Join(dir, "disk"), Memory: filepath.Join(dir, "memory")}
	volume := filepath.Join(d.Root, PodsDir, "u", "v")
	for _, p := range []string{volume, filepath.Join(d.Memory, PodsDir), filepath.Join(far, "kept")} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	fd := nestDirs(t, volume, 3000)
	if err := unix.Symlinkat(far, fd, "out"); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if err := os.Symlink(far, filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := os.WriteFile(filepath.Join(volume, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	few = before
	few.Cur = 1000
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err := d.Clean("u")
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	if left := namesIn(filepath.Join(d.Root, PodsDir)); err != nil || len(left) > 0 {
		t.Errorf("Clean returns %.200v and leaves %q", err, left)
	}
	if left := namesIn(far); len(left) != 1 {
		t.Errorf("the links' target contains %q", left)
	}
	if err := d.Clean("u"); err != nil { // removing again is not an error
		t.Error(err)
	}
	if err != nil {
		t.SkipNow() // t.TempDir cannot remove a path of 6,000 bytes
	}
}
