package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/store"
)

// A secret is only ever written into its final directory, so that a killed command leaves it
// nowhere else.
func TestSecretFilesAreWrittenOnlyIntoTheirDirectory(t *testing.T) {
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
			t.Errorf("%s was also written to $TMPDIR (%v)", name, err)
		}
	}
}

// The file name "-" means standard output, as for `audit export`.
func TestADashIsStandardOutput(t *testing.T) {
	data := newData(t)
	t.Chdir(t.TempDir())
	if err := run("backup", "-", "--data-dir", data); !errors.As(err, new(ErrUsage)) {
		t.Errorf("a backup to standard output: %v, want ErrUsage", err)
	}
	var out bytes.Buffer
	root := Program{Stdout: &out, Stderr: io.Discard}.Command()
	root.SetArgs([]string{"support-bundle", "-", "--data-dir", data})
	if err := root.Execute(); err != nil || !bytes.HasPrefix(out.Bytes(), []byte("\x1f\x8b")) {
		t.Errorf("support-bundle -: %v, %d bytes; want gzip", err, out.Len())
	}
	if _, err := os.Lstat("-"); err == nil {
		t.Error("a file named - was created")
	}
}

// A command fails if its output cannot be written, for example to a full disk.
func TestAFailedOutputIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	data := newData(t)
	for _, args := range []string{
		"version", "doctor", "audit verify", "support-bundle -", "serve --print-config", "monitoring alerts",
		"monitoring dashboard",
	} {
		root := Program{Stdout: full, Stderr: io.Discard}.Command()
		all := strings.Fields(args)
		if c, _, err := root.Find(all[:1]); err == nil && (c.Flags().Lookup("data-dir") != nil || all[0] == "audit") {
			all = append(all, "--data-dir", data)
		}
		root.SetArgs(all)
		if err := root.Execute(); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v, want ENOSPC", args, err)
		}
	}
}

func run(args ...string) error {
	var out bytes.Buffer
	root := Program{Stdout: &out, Stderr: &out}.Command()
	root.SetArgs(args)
	return root.Execute()
}

// newData returns the data directory of a new hub.
func newData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
