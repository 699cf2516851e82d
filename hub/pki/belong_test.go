package pki

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// After root has changed the authority, also if the change was interrupted, the hub with its own
// user can read all files.
func TestFilesThatRootWritesBelongToTheHub(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const hub = 4242
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, dir string) error
	}{
		{"the authority is opened", func(_ *testing.T, dir string) error { _, err := Open(dir); return err }},
		{"the keys are encrypted", func(t *testing.T, dir string) error { return open(t, dir).Protect([]byte(horse)) }},
		{"a kubeconfig needs a new intermediate", func(t *testing.T, dir string) error {
			a := open(t, dir)
			a.Now = func() time.Time { return time.Now().Add(intermediateLife - LeafLife) }
			_, _, err := a.IssueClient(Viewer, "kim", time.Hour)
			return err
		}},
		{"a change is committed, but not completed", func(t *testing.T, dir string) error {
			return open(t, dir).prepare(map[string][]byte{"root.key": []byte("another"), formerIntermediateFile: nil})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := t.TempDir()
			dir := filepath.Join(data, "pki")
			open(t, dir)
			if err := os.Remove(filepath.Join(dir, lockFile)); err != nil {
				t.Fatal(err)
			}
			each := func(do func(path string, info fs.FileInfo) error) {
				if err := filepath.Walk(data, func(path string, info fs.FileInfo, err error) error {
					if err == nil {
						err = do(path, info)
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			each(func(path string, _ fs.FileInfo) error { return os.Chown(path, hub, hub) })
			if err := tt.do(t, dir); err != nil {
				t.Fatal(err)
			}
			each(func(path string, info fs.FileInfo) error {
				if of := info.Sys().(*syscall.Stat_t); of.Uid != hub || of.Gid != hub {
					t.Errorf("%s belongs to %d:%d, want the hub's %d", path, of.Uid, of.Gid, hub)
				}
				return nil
			})
		})
	}
}
