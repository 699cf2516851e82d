package serve

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
)

// A hub that cannot start returns the reason, and unlocks its directory.
func TestAFailedStartReleasesTheDirectory(t *testing.T) {
	o := Options{Config: config.Default(), Version: "test", Log: slog.New(slog.DiscardHandler),
		Listeners: Listeners{Dev: pipe.New()}}
	o.Config.DataDir = filepath.Join(t.TempDir(), "hub")
	pki := filepath.Join(o.Config.DataDir, "pki")
	if err := os.MkdirAll(o.Config.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pki, nil, 0o600); err != nil { // a file in place of the directory
		t.Fatal(err)
	}
	for range 2 { // the second start must not fail because of the lock
		if h, err := New(t.Context(), o); h != nil || err == nil || !strings.Contains(err.Error(), pki) {
			t.Fatalf("a hub is returned: %v, %v", h != nil, err)
		}
	}
}
