package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A device finds its hub by multicast DNS and joins, on a network without a default route. Then
// another device joins by the script on its card.
func TestDevicesJoinByDiscoveryAndByTheirCards(t *testing.T) {
	const inside = "FLOTILLA_E2E_IN_NAMESPACE"
	if os.Getenv(inside) == "" {
		t.Parallel()
		hubProgram, agent := program(t, "hub", here), program(t, "device", here)
		if os.Geteuid() != 0 || exec.Command("unshare", "-n", "-m", "true").Run() != nil {
			need(t, "needs root, for a network namespace and private mounts")
		}
		// No file of the device is on this machine, and no systemd runs on it.
		c := exec.Command("unshare", "-n", "-m", "sh", "-c", `set -e; mkdir -p /etc/systemd/system
			for dir in /var/lib /etc/systemd/system /usr/local/bin /run/systemd; do [ ! -d $dir ] || mount -t tmpfs tmpfs $dir; done
			ip link set lo up; ip link add lan type veth peer name other; ip link set other up
			ip addr add 10.9.0.1/24 dev lan; ip link set lan up multicast on
			exec "$0" -test.run "^$1\$"`, os.Args[0], t.Name())
		c.Env = append(os.Environ(), inside+"=yes", "E2E_PROGRAMS="+filepath.Dir(hubProgram))
		if out, err := c.CombinedOutput(); err != nil || filepath.Dir(agent) != filepath.Dir(hubProgram) {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	agents, bin := t.TempDir(), t.TempDir()
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	link(program(t, "device", here), filepath.Join(agents, "flotilla-device-"+here.arch))
	link("/bin/true", filepath.Join(bin, "systemctl"))
	h := &hub{t: t, dir: filepath.Join(t.TempDir(), "hub"), https: "localhost:8443"}
	h.args = []string{"serve", "--data-dir", h.dir, "--https-listen", ":8443", "--mqtt-listen", ":8883",
		"--agents-dir", agents, "--advertise-address", "10.9.0.1"}
	h.start()
	flotilla := func(args ...string) string { return output(t, h.path(), append(args, "--data-dir", h.dir)...) }

	words := strings.Fields(flotilla("token", "create", "--site", "oslo"))
	state := filepath.Join(t.TempDir(), "device")
	said := output(t, program(t, "device", here), "join", "--discover", "--token", words[len(words)-1], "--state-dir", state,
		"--node-name", "found")
	if !strings.Contains(said, "node found on site oslo") {
		t.Errorf("join --discover prints %q", said)
	}

	card := flotilla("firstboot", "--site", "oslo", "--name-prefix", "card-", "--format", "script", "--engine-package", "")
	for _, c := range []command{{path: "/bin/sh", stdin: card}, {path: "/var/lib/flotilla-firstboot/join"}} {
		c.env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		if r := c.run(t); r.code != 0 {
			t.Fatalf("%s exits with code %d: %s%s", c.path, r.code, r.out, r.err)
		}
	}
	if _, err := os.Stat("/var/lib/flotilla-firstboot"); !os.IsNotExist(err) {
		t.Error("a card keeps the files with the token after its join:", err)
	}
	if list := flotilla("token", "list"); strings.Count(list, "1/1") != 2 || !strings.Contains(list, "card-*") {
		t.Errorf("both tokens must be used:\n%s", list)
	}
}
