package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"flotilla.dev/hub/store"
)

// What nobody else is to read lies where it was asked for and nowhere else, not for a moment: a command that
// is killed then leaves it where nobody looks for it.
func TestWhatACommandWritesIsInItsDirectoryOnly(t *testing.T) {
	data, out := t.TempDir(), t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: data})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"the key of a Prometheus": func() error { return writeScrape(filepath.Join(out, "prom"), "hub:8443", nil, nil, []byte("key")) },
		"an export of the audit":  func() error { return run("audit", "export", filepath.Join(out, "audit"), "--data-dir", data) },
		"a support bundle":        func() error { return run("support-bundle", filepath.Join(out, "bundle"), "--data-dir", data) },
	} {
		elsewhere, old := t.TempDir(), time.Unix(1, 0)
		t.Setenv("TMPDIR", elsewhere)
		if err := os.Chtimes(elsewhere, old, old); err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(elsewhere); err != nil || !info.ModTime().Equal(old) {
			t.Errorf("%s was written to $TMPDIR, too (%v)", name, err)
		}
	}
}

func run(args ...string) error {
	var out bytes.Buffer
	root := Program{Stdout: &out, Stderr: &out}.Command()
	root.SetArgs(args)
	return root.Execute()
}
