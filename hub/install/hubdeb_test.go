package install

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Debian's tools accept the hub's package: program, unit and agents are in it, and the same input
// makes the same bytes.
func TestDebianToolsAcceptTheHubsPackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no dpkg here")
	}
	dir := t.TempDir()
	program, agent := filepath.Join(dir, "hub"), filepath.Join(dir, "agent")
	for _, f := range []string{program, agent} {
		if err := os.WriteFile(f, bytes.Repeat([]byte(f), 1000), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func() []byte {
		t.Helper()
		var b bytes.Buffer
		p := HubPackage("arm64", "v1.2.3", map[string]string{"armv6": agent, "arm64": agent}, map[string]string{"arm64": "{}"}, time.Unix(1_700_000_000, 0))
		if err := p.Write(&b, program); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	first := write()
	if !bytes.Equal(first, write()) {
		t.Error("the same input must make the same bytes")
	}
	deb, root := filepath.Join(dir, "hub.deb"), filepath.Join(dir, "root")
	if err := os.WriteFile(deb, first, 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	about := run("dpkg-deb", "--info", deb)
	for _, want := range []string{"Package: flotilla-hub\n", "Version: 1.2.3\n", "Architecture: arm64\n",
		"preinst", "postrm"} {
		if !strings.Contains(about, want) {
			t.Errorf("dpkg-deb --info does not show %q: %s", want, about)
		}
	}
	run("dpkg-deb", "--raw-extract", deb, root)
	for _, c := range []struct{ path, want string }{
		{"usr/bin/flotilla-hub", program + program},
		{"usr/lib/flotilla/agents/flotilla-device-armv6", agent + agent},
		{"lib/systemd/system/flotilla-hub.service", "\nExecStart=/usr/bin/flotilla-hub serve\n"},
		{"lib/systemd/system/flotilla-hub.service",
			"\nEnvironment=FLOTILLA_AGENTS_DIR=/usr/lib/flotilla/agents\nEnvironmentFile=-"},
	} {
		if got, err := os.ReadFile(filepath.Join(root, c.path)); err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("%s does not contain %q (%v)", c.path, c.want, err)
		}
	}
	for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
		run("sh", "-n", filepath.Join(root, "DEBIAN", script))
	}
	c := exec.Command("md5sum", "--check", "DEBIAN/md5sums")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("checksums: %v: %s", err, out)
	}
}
