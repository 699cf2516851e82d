package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
)

func TestSocketsOf(t *testing.T) {
	for _, c := range []struct {
		choice, runtimeDir string
		want               []string
	}{
		{"auto", "", []string{"/var/run/docker.sock", "/run/podman/podman.sock", "/var/run/balena-engine.sock"}},
		{"", "/run/user/1000", []string{"/var/run/docker.sock", "/run/user/1000/docker.sock", "/run/podman/podman.sock", "/run/user/1000/podman/podman.sock", "/var/run/balena-engine.sock"}},
		{"docker", "", []string{"/var/run/docker.sock"}},
		{"podman", "/run/user/1000", []string{"/run/podman/podman.sock", "/run/user/1000/podman/podman.sock"}},
		{"balena", "", []string{"/var/run/balena-engine.sock"}},
		{"/a/b.sock", "", []string{"/a/b.sock"}},
		{"unix:///a/b.sock", "", []string{"/a/b.sock"}},
		{"none", "", nil},
	} {
		if got, err := socketsOf(c.choice, c.runtimeDir); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v %v, want %v", c.choice, got, err, c.want)
		}
	}
}

func TestWhyNot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "not a socket", file + "-missing": "not there"} {
		if got := whyNot(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestARMVariant(t *testing.T) {
	for _, c := range []struct{ name, machine, model, want string }{
		{"Raspberry Pi Zero with Docker", "armv6l", "", "v6"},
		{"Raspberry Pi Zero with Podman", "arm", "ARMv6-compatible processor rev 7 (v6l)", "v6"},
		{"Raspberry Pi 2 with Podman", "arm", "ARMv7 Processor rev 5 (v7l)", "v7"},
		{"Raspberry Pi 3, 32 bits", "armv7l", "ARMv7 Processor rev 4 (v7l)", "v7"},
		{"Raspberry Pi 4, 32-bit system on a 64-bit kernel", "aarch64", "", "v7"},
	} {
		if got := armVariant(c.machine, c.model); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestStateOf(t *testing.T) {
	for status, want := range map[string]State{
		"created": Created, "configured": Created, "initialized": Created, "running": Running, "restarting": Running,
		"stopping": Running,
		"paused":   Paused, "exited": Exited, "stopped": Exited, "dead": Dead, "removing": Dead, "unknown state": Dead,
	} {
		if got := stateOf(status); got != want {
			t.Errorf("state %s is %s, want %s", status, got, want)
		}
	}
}

// After a reboot, Podman reports a container that ran as created or as exited with 0.
func TestAContainerThatRanWhenTheDeviceWentDownHasFailed(t *testing.T) {
	const unset, early, late = "0001-01-01T00:00:00Z", "2026-11-27T10:08:59.7156Z", "2026-11-27T10:09:59Z"
	for _, c := range []struct {
		name     string
		state    container.State
		want     State
		exitCode int
	}{
		{"Podman 4.3", container.State{Status: "created", StartedAt: early, FinishedAt: unset}, Exited, 255},
		{"Podman 5", container.State{Status: "exited", StartedAt: early, FinishedAt: unset}, Exited, 255},
		{"a container that was never started", container.State{Status: "created", StartedAt: unset, FinishedAt: unset}, Created, 0},
		{"a container that had ended before", container.State{Status: "exited", StartedAt: early, FinishedAt: late}, Exited, 0},
		{"a container that ended after the clock was set back", container.State{Status: "exited", StartedAt: late, FinishedAt: early}, Exited, 0},
		{"a running container", container.State{Status: "running", StartedAt: early, FinishedAt: unset}, Running, 0},
		{"a paused container", container.State{Status: "paused", StartedAt: early, FinishedAt: unset}, Paused, 0},
	} {
		if got := view(container.InspectResponse{State: &c.state, Config: &container.Config{}}); got.State != c.want ||
			got.ExitCode != c.exitCode || (got.Error != "") != (c.exitCode == 255) {
			t.Errorf("%s: %s with exit code %d, %q; want exit code %d", c.name, got.State, got.ExitCode, got.Error, c.exitCode)
		}
	}
}

func TestShortTag(t *testing.T) {
	for tag, want := range map[string]string{
		"docker.io/library/nginx:1":   "nginx:1",
		"docker.io/grafana/grafana:1": "grafana/grafana:1",
		"localhost/tool:1":            "tool:1",
		"flotilla.test/tool:1":        "flotilla.test/tool:1",
		"nginx:1":                     "nginx:1",
	} {
		if got := shortTag(tag); got != want {
			t.Errorf("shortTag(%s) is %s, want %s", tag, got, want)
		}
	}
}

// The usage of a container is read from its own control group only.
func TestGroupUsage(t *testing.T) {
	const id = "abc123"
	for _, c := range []struct {
		name, groups string
		files        map[string]string
		want         Usage
		ok           bool
	}{
		{"cgroup v1", "5:cpu,cpuacct:/libpod_parent/libpod-abc123\n4:memory:/libpod_parent/libpod-abc123\n0::/\n", map[string]string{
			"cpu,cpuacct/libpod_parent/libpod-abc123/cpuacct.usage":    "7000\n",
			"memory/libpod_parent/libpod-abc123/memory.usage_in_bytes": "10000\n",
			"memory/libpod_parent/libpod-abc123/memory.stat":           "inactive_file 1\ntotal_inactive_file 4096\n",
		}, Usage{7000, 5904}, true},
		{"cgroup v2", "0::/machine.slice/libpod-abc123.scope\n", map[string]string{
			"machine.slice/libpod-abc123.scope/cpu.stat":       "usage_usec 7\nuser_usec 5\n",
			"machine.slice/libpod-abc123.scope/memory.current": "10000\n",
			"machine.slice/libpod-abc123.scope/memory.stat":    "anon 1\ninactive_file 8192\n",
		}, Usage{7000, 1808}, true},
		{"a kernel that does not count memory", "0::/machine.slice/libpod-abc123.scope\n", map[string]string{
			"machine.slice/libpod-abc123.scope/cpu.stat": "usage_usec 7\n",
		}, Usage{7000, 0}, true},
		{"a process of another container", "0::/machine.slice/libpod-zzz.scope\n", map[string]string{
			"machine.slice/libpod-zzz.scope/cpu.stat": "usage_usec 7\n",
		}, Usage{}, false},
		{"no cgroup file", "0::/machine.slice/libpod-abc123.scope\n", nil, Usage{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, "proc/42/cgroup"), c.groups)
			for name, content := range c.files {
				write(t, filepath.Join(root, "cgroup", name), content)
			}
			if got, ok := groupUsage(filepath.Join(root, "proc"), filepath.Join(root, "cgroup"), 42, id); got != c.want ||
				ok != c.ok {
				t.Errorf("got %+v (%v), want %+v (%v)", got, ok, c.want, c.ok)
			}
		})
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTranslateLeavesOutUnenforceableLimits(t *testing.T) {
	s := Spec{Name: "x", Image: "i", MemoryBytes: 64 << 20, SwapBytes: 8 << 20, MilliCPU: 5, CPUShares: 1}
	for _, c := range []struct {
		name          string
		info          Info
		memory, quota int64
		memorySwap    int64 // memory and swap
	}{
		{"with control groups of memory and CPU", Info{MemLimit: true, CPULimit: true, SwapLimit: true}, 64 << 20, 1000, 72 << 20},
		{"without the swap of containers", Info{MemLimit: true, CPULimit: true}, 64 << 20, 1000, 64 << 20},
		{"without memory, as Raspberry Pi OS is by default", Info{CPULimit: true, SwapLimit: true}, 0, 1000, 0},
		{"without control groups of memory and CPU", Info{}, 0, 0, 0},
	} {
		o, err := translate(s, s.Image, c.info)
		if err != nil {
			t.Fatal(err)
		}
		if r := o.HostConfig.Resources; r.Memory != c.memory || r.MemorySwap != c.memorySwap || r.CPUQuota != c.quota ||
			r.CPUShares != 2 {
			t.Errorf("%s: the resources are %+v, want memory %d, with swap %d, quota %d", c.name, r, c.memory, c.memorySwap,
				c.quota)
		}
	}
	for _, bad := range []Spec{{DNS: []string{"x"}}, {Ports: []Port{{ContainerPort: 80, HostIP: "x"}}},
		{Ports: []Port{{ContainerPort: 80, Protocol: "X"}}}} {
		if _, err := translate(bad, "i", Info{}); err == nil || !strings.Contains(err.Error(), "x") &&
			!strings.Contains(err.Error(), "X") {
			t.Errorf("%+v: %v, want an error that names the value", bad, err)
		}
	}
}

func TestHasRegistry(t *testing.T) {
	for ref, want := range map[string]bool{
		"tool:1": false, "me/tool:1": false, "nginx": false,
		"flotilla.test/tool:1": true, "127.0.0.1:5000/x": true, "hub:5000/x": true, "localhost/tool:1": true,
		"sha256:abc": true,
	} {
		if got := hasRegistry(ref); got != want {
			t.Errorf("hasRegistry(%s) is %v, want %v", ref, got, want)
		}
	}
}
