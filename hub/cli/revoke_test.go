package cli

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// A revocation of a mistyped name prints a hint, because the audit has no record of the name.
func TestARevocationOfAnUnknownNameGivesAHint(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err == nil {
		err = errors.Join(s.SetMeta(t.Context(), store.MetaURL, "https://127.0.0.1:8443"), s.Close())
	}
	if err == nil {
		_, err = pki.Open(filepath.Join(dir, "pki"))
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := Program{Stdout: &out, Stderr: io.Discard}.Command()
		root.SetArgs(append(args, "--data-dir", dir))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	run("kubeconfig", "--user", "kari")
	run("mqtt-observer", "--name", "tools", "--out", filepath.Join(t.TempDir(), "tools"))
	run("monitoring", "prometheus", filepath.Join(t.TempDir(), "scrape"), "--user", "prometheus")
	for _, tt := range []struct {
		command, name string
		none          bool
	}{
		{"kubeconfig", "kari", false},
		{"kubeconfig", "kar", true},
		{"kubeconfig", "Kari", true},
		{"kubeconfig", "tools", true}, // tools is an observer, not a user
		{"kubeconfig", "prometheus", false},
		{"mqtt-observer", "tools", false},
		{"mqtt-observer", "tool", true},
	} {
		out := run(tt.command, "revoke", tt.name)
		if !strings.Contains(out, " of "+tt.name+" issued until now have ended") ||
			strings.Contains(out, "no record of that name") != tt.none {
			t.Errorf("%s revoke %s prints %q, want a hint: %t", tt.command, tt.name, out, tt.none)
		}
	}
}
