package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"flotilla.dev/hub/monitoring"
)

func TestPrometheusFilesAreWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prom")
	write := func(key string) {
		t.Helper()
		if err := writeScrape(dir, "hub.example.org:8443", []byte("ca"), []byte("cert"), []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(name, want string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %.200s %v, want %q", name, text, err, want)
		}
	}
	write("first")
	holds(monitoring.ScrapeFile, `"hub.example.org:8443"`)
	holds(monitoring.AlertsFile, "FlotillaHubDown")
	holds(monitoring.CAFile, "ca")
	holds(monitoring.CertFile, "cert")
	key := filepath.Join(dir, monitoring.KeyFile)
	if os.Getuid() == 0 {
		if err := os.Chown(key, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(key)
	if err != nil || before.Mode().Perm() != 0o600 {
		t.Fatalf("the key's file is %v, %v; want mode 0600", before, err)
	}
	// The user has added jobs; running the command again only renews the certificate.
	scrape := filepath.Join(dir, monitoring.ScrapeFile)
	if err := os.WriteFile(scrape, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	write("second")
	holds(monitoring.ScrapeFile, "mine")
	holds(monitoring.KeyFile, "second")
	if after, err := os.Stat(key); err != nil || owner(after) != owner(before) || after.Mode() != before.Mode() {
		t.Errorf("the new key's file is %v, the former's %v (%v); want the same mode and owner", after, before, err)
	}
}

func TestAlertsAndDashboardArePrinted(t *testing.T) {
	for name, want := range map[string][]byte{"alerts": monitoring.Alerts, "dashboard": monitoring.Dashboard} {
		var out bytes.Buffer
		root := Program{Stdout: &out, Stderr: &out}.Command()
		root.SetArgs([]string{"monitoring", name})
		if err := root.Execute(); err != nil || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("monitoring %s: %v %.100s, want the embedded file", name, err, out.String())
		}
	}
	for _, args := range []string{"monitoring prometheus", "monitoring prometheus x --ttl -1h",
		"monitoring prometheus x --user=", "monitoring nothing"} {
		var out bytes.Buffer
		root := Program{Stdout: &out, Stderr: &out}.Command()
		root.SetArgs(strings.Fields(args))
		if err := root.Execute(); err == nil || out.Len() > 0 {
			t.Errorf("%s: %v %s, want an error and no output", args, err, out.String())
		}
	}
}

func owner(info os.FileInfo) [2]uint32 {
	of := info.Sys().(*syscall.Stat_t)
	return [2]uint32{of.Uid, of.Gid}
}
