package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/shared/loopback"
)

// begin creates and starts a container of the test image and removes it at the end of the test.
func begin(t *testing.T, e engine.Engine, s engine.Spec, verbs string) (id string) {
	t.Helper()
	s.Name = fmt.Sprintf("flotilla-test-%d", time.Now().UnixNano())
	s.Image, s.Args = enginetest.ToolImage, strings.Fields(verbs)
	s.Labels = map[string]string{"flotilla.test/spec": s.Name}
	id, err := e.Create(t.Context(), s)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Remove(ctx, id); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	must(t, e.Start(t.Context(), id))
	return id
}

// output runs the verbs and returns their output.
func output(t *testing.T, e engine.Engine, s engine.Spec, verbs string) string {
	t.Helper()
	id := begin(t, e, s, verbs)
	var out bytes.Buffer
	must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: -1, Follow: true}, &out, &out))
	// A busy engine may end the stream of a container that exited at once before its log is
	// complete: read the log a moment later.
	for end := time.Now().Add(5 * time.Second); out.Len() == 0 &&
		time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: -1}, &out, &out))
	}
	return out.String()
}

func run(t *testing.T, e engine.Engine, id, verbs string) string {
	t.Helper()
	var out bytes.Buffer
	_, err := e.Exec(t.Context(), id, append([]string{"/tool"}, strings.Fields(verbs)...),
		engine.Streams{Stdout: &out, Stderr: &out})
	must(t, err)
	return out.String()
}

func TestEachFieldOfASpecTakesEffect(t *testing.T) {
	ours := func(ns string) string {
		target, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		return target
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello from the device\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name  string
		spec  engine.Spec
		verbs string
		want  string // text in the output; "!x": x must be absent
	}{
		{"a directory of the device can be read", engine.Spec{Mounts: []engine.Mount{{Source: dir, Target: "/in"}}}, "cat /in/greeting", "hello from the device"},
		{"a directory of the device can be written", engine.Spec{Mounts: []engine.Mount{{Source: dir, Target: "/in"}}}, "write /in/new text then cat /in/new", "text"},
		{"a read-only directory cannot be written", engine.Spec{Mounts: []engine.Mount{{Source: dir, Target: "/in", ReadOnly: true}}}, "write /in/never text", "read-only file system"},
		{"a single file can be mounted", engine.Spec{Mounts: []engine.Mount{{Source: filepath.Join(dir, "greeting"), Target: "/etc/greeting", ReadOnly: true}}}, "cat /etc/greeting", "hello from the device"},
		{"a tmpfs has its size", engine.Spec{Tmpfs: map[string]string{"/scratch": "size=1m"}}, "write /scratch/x y then cat /proc/mounts", "/scratch tmpfs rw,nosuid,nodev,relatime,size=1024k"},
		{"the root can be read-only", engine.Spec{ReadOnlyRoot: true}, "write /data/x y", "read-only file system"},
		{"the image's working directory is kept", engine.Spec{}, "readlink /proc/self/cwd", "/data"},
		{"the working directory can be set", engine.Spec{WorkingDir: "/tmp"}, "readlink /proc/self/cwd", "/tmp"},
		{"the user and groups can be set", engine.Spec{User: "1000:1000", Groups: []string{"44"}}, "id", "uid=1000 gid=1000 groups=[44"},
		{"the host name can be set", engine.Spec{Hostname: "kiosk-1"}, "hostname", "kiosk-1"},
		{"name servers can be set", engine.Spec{DNS: []string{"192.0.2.53"}, DNSSearch: []string{"fleet.test"}}, "cat /etc/resolv.conf", "nameserver 192.0.2.53"},
		{"a sysctl can be set", engine.Spec{Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "80"}}, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "80"},
		{"all capabilities can be dropped", engine.Spec{CapDrop: []string{"ALL"}}, "cat /proc/self/status", "CapEff:\t0000000000000000"},
		{"a system call can be refused", engine.Spec{Seccomp: refusing(t, "readlinkat", "readlink")}, "readlink /proc/self/cwd", "operation not permitted"},
		{"AppArmor can be switched off", engine.Spec{AppArmor: "unconfined"}, "print fine", "fine"},
		{"one capability can be added", engine.Spec{CapDrop: []string{"ALL"}, CapAdd: []string{"NET_ADMIN"}}, "cat /proc/self/status", "CapEff:\t0000000000001000"},
		{"new privileges can be forbidden", engine.Spec{NoNewPrivs: true}, "cat /proc/self/status", "NoNewPrivs:\t1"},
		{"an ordinary container does not see the devices", engine.Spec{}, "ls /dev", "!kmsg"},
		{"the network can be the device's", engine.Spec{HostNetwork: true}, "readlink /proc/self/ns/net", ours("net")},
		{"by default the network is the container's own", engine.Spec{}, "readlink /proc/self/ns/net", "!" + ours("net")},
		{"the processes can be the device's", engine.Spec{HostPID: true}, "readlink /proc/self/ns/pid", ours("pid")},
		{"a container with a CPU quota runs", engine.Spec{MilliCPU: 250, CPUShares: 512}, "cat /proc/self/cgroup then print fine", "fine"},
		{"the OOM score can be set", engine.Spec{OOMScoreAdj: 700}, "cat /proc/self/oom_score_adj", "700"},
		{"stdout is a terminal with TTY", engine.Spec{TTY: true}, "readlink /proc/self/fd/1", "/dev/"},
	}
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				got := output(t, e, c.spec, c.verbs)
				if unwanted, not := strings.CutPrefix(c.want, "!"); not && strings.Contains(got, unwanted) || !not &&
					!strings.Contains(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		}
	})
}

// refusing returns a seccomp profile that refuses these system calls.
func refusing(t *testing.T, calls ...string) *engine.Seccomp {
	names, _ := json.Marshal(calls) // strings always encode
	text := fmt.Sprintf(
		`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": %s, "action": "SCMP_ACT_ERRNO"}]}`,
		names,
	)
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return &engine.Seccomp{File: file, Text: text}
}

// Podman's Docker API writes a mount as a list with commas and parses it again, so a path with a
// comma could add other options.
func TestAMountPathCannotAddOptions(t *testing.T) {
	dir, secret := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(secret, "canary"), []byte("nobody's business"), 0o644))
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		for name, m := range map[string]engine.Mount{
			"another source":                       {Source: dir, Target: "/in,source=" + secret},
			"another source by its short option":   {Source: dir, Target: "/in,src=" + secret, ReadOnly: true},
			"another source, in the source":        {Source: dir + ",source=" + secret, Target: "/in"},
			"other propagation":                    {Source: dir, Target: "/in,bind-propagation=rshared"},
			"another owner":                        {Source: dir, Target: "/in,U=true"},
			"a quote":                              {Source: dir, Target: "/in\"x"},
			"a second line":                        {Source: dir, Target: "/in\n/x"},
			"a carriage return":                    {Source: dir, Target: "/in\r"},
			"the container's root as the target":   {Source: secret, Target: "/"},
			"the container's root by another path": {Source: secret, Target: "/in/../"},
			"a relative target":                    {Source: dir, Target: "in"},
			"a relative source":                    {Source: "in", Target: "/in"},
			"no target":                            {Source: dir},
		} {
			id, err := e.Create(
				t.Context(),
				engine.Spec{Name: fmt.Sprintf("flotilla-test-%d", time.Now().UnixNano()), Image: enginetest.ToolImage,
					Args: []string{"ls", "/in"}, Labels: map[string]string{"flotilla.test/spec": "mount"}, Mounts: []engine.Mount{m}},
			)
			if err == nil {
				t.Errorf("%s: a container mounts %q at %q, want an error", name, m.Source, m.Target)
				must(t, e.Remove(t.Context(), id))
			} else if !errors.Is(err, engine.ErrUnsupported) {
				t.Errorf("%s: %v, want ErrUnsupported", name, err)
			}
		}
	})
}

func TestContainersOfOnePodShareNetworkAndMemory(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		owner := begin(t, e, engine.Spec{Hostname: "pod-1"}, "serve 127.0.0.1:8080")
		guest := begin(t, e, engine.Spec{NetworkOf: owner, Hostname: "ignored"}, "wait")
		await(t, "the server",
			func() bool { return strings.Contains(run(t, e, guest, "get http://127.0.0.1:8080/healthz"), "ok") })
		for _, ns := range []string{"net", "ipc"} {
			if a, b := run(t, e, owner, "readlink /proc/self/ns/"+ns), run(t, e, guest, "readlink /proc/self/ns/"+ns); a != b {
				t.Errorf("the %s namespaces differ: %s and %s", ns, a, b)
			}
		}
		if a, b := run(t, e, owner, "hostname"), run(t, e, guest, "hostname"); a != b {
			t.Errorf("the host names are %q and %q, want one", a, b)
		}
	})
}

func TestAPublishedPortAnswersOnTheDevice(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		free, err := loopback.Address()
		must(t, err)
		port := netip.MustParseAddrPort(free).Port()
		begin(
			t,
			e,
			engine.Spec{
				Ports: []engine.Port{{HostIP: "127.0.0.1", HostPort: int32(port), ContainerPort: 8080, Protocol: "TCP"}},
			},
			"serve :8080 unhealthy",
		)
		status := 0
		await(t, "the port", func() bool {
			client := http.Client{Timeout: time.Second}
			resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
			if err == nil {
				status = resp.StatusCode
				resp.Body.Close()
			}
			return err == nil
		})
		if status != http.StatusServiceUnavailable {
			t.Errorf("the port answers %d, want 503", status)
		}
	})
}

// ask reads a path of the engine's API that package engine does not use.
func ask(t *testing.T, socket, path string, into any) (status int) {
	t.Helper()
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
	}
	resp, err := client.Get("http://engine/v1.40" + path)
	must(t, err)
	defer resp.Body.Close()
	if into != nil {
		must(t, json.NewDecoder(resp.Body).Decode(into))
	}
	return resp.StatusCode
}

func TestTheEngineDoesNotRestartOrProbeAndRemovesVolumes(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		id := begin(t, e, engine.Spec{MilliCPU: 250, CPUShares: 512, MemoryBytes: 64 << 20}, "wait")
		var c struct {
			HostConfig struct {
				RestartPolicy                  struct{ Name string }
				CPUQuota, CPUPeriod, CPUShares int64
				Memory, MemorySwap             int64
				CpusetCpus                     string
			}
			Config struct{ Healthcheck struct{ Test []string } }
			Mounts []struct{ Name, Destination string }
		}
		ask(t, socket, "/containers/"+id+"/json", &c)
		if c.HostConfig.RestartPolicy.Name != "no" || len(c.Config.Healthcheck.Test) != 1 ||
			c.Config.Healthcheck.Test[0] != "NONE" {
			t.Errorf("the container is %+v, want no restart policy and no health check", c)
		}
		if h := c.HostConfig; h.CPUQuota != 25_000 || h.CPUPeriod != 100_000 || h.CPUShares != 512 || h.Memory != 64<<20 ||
			h.MemorySwap != h.Memory {
			t.Errorf("the limits are %+v, want a quarter of a processor and 64 MiB without swap", h)
		}
		// MemorySwap counts memory and swap together.
		swapping := begin(t, e, engine.Spec{MemoryBytes: 64 << 20, SwapBytes: 8 << 20, CPUs: "0"}, "wait")
		info, err := e.Info(t.Context())
		must(t, err)
		ask(t, socket, "/containers/"+swapping+"/json", &c)
		if h := c.HostConfig; info.SwapLimit && h.MemorySwap != 72<<20 || info.CPUSet && h.CpusetCpus != "0" {
			t.Errorf("with swap the limits are %+v, want 72 MiB of memory and swap, on processor 0", h)
		}
		ask(t, socket, "/containers/"+id+"/json", &c)
		if len(c.Mounts) != 1 || ask(t, socket, "/volumes/"+c.Mounts[0].Name, nil) != http.StatusOK {
			t.Fatalf("the mounts are %+v, want the image's one volume", c.Mounts)
		}
		must(t, e.Remove(t.Context(), id))
		if status := ask(t, socket, "/volumes/"+c.Mounts[0].Name, nil); status != http.StatusNotFound {
			t.Errorf("the volume of a removed container answers %d, want 404", status)
		}
	})
}

// The container can write to mounts that the engine itself adds, so a storage limit must include
// them.
func TestWrittenIncludesTheEnginesOwnMounts(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		var c struct {
			Mounts []struct{ Destination string }
		}
		ask(t, socket, "/containers/"+begin(t, e, engine.Spec{}, "wait")+"/json", &c)
		if len(c.Mounts) != 1 {
			t.Fatalf("the mounts are %+v, want the image's one volume", c.Mounts)
		}
		for _, path := range []string{c.Mounts[0].Destination + "/big", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} {
			id := begin(t, e, engine.Spec{}, "write "+path+" "+strings.Repeat("x", 64<<10)+" then wait")
			await(t, path, func() bool {
				n, err := e.Written(t.Context(), id)
				must(t, err)
				return n >= 64<<10
			})
		}
	})
}

// A privileged container cannot start if the test lacks capabilities, so it is only created.
func TestAPrivilegedContainerIsPrivileged(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		id, err := e.Create(
			t.Context(),
			engine.Spec{
				Name:       fmt.Sprintf("flotilla-test-%d", time.Now().UnixNano()),
				Image:      enginetest.ToolImage,
				Privileged: true,
			},
		)
		must(t, err)
		defer func() { must(t, e.Remove(t.Context(), id)) }()
		var c struct{ HostConfig struct{ Privileged bool } }
		ask(t, socket, "/containers/"+id+"/json", &c)
		if !c.HostConfig.Privileged {
			t.Error("the container is not privileged")
		}
	})
}

func TestALogDoesNotFillTheDisk(t *testing.T) {
	const lines = 180_000 // about 18 MB on disk
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		id := begin(t, e, engine.Spec{}, fmt.Sprintf("lines %d then wait", lines))
		last := fmt.Sprintf("line %d\n", lines)
		await(t, "the last line", func() bool {
			var out bytes.Buffer
			must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: 1}, &out, io.Discard))
			return out.String() == last
		})
		var out bytes.Buffer
		must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: -1}, &out, io.Discard))
		if count := bytes.Count(out.Bytes(), []byte("\n")); count > lines*2/3 {
			t.Errorf("%d of %d lines are kept, want at most two thirds", count, lines)
		}
	})
}

func TestACommandIsKilledWhenItsCallerGivesUp(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to kill a container's process")
	}
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		id := begin(t, e, engine.Spec{}, "wait")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, _ = e.Exec(ctx, id, strings.Fields("/tool wait"), engine.Streams{})
		processes := ""
		for _, name := range strings.Fields(run(t, e, id, "ls /proc")) {
			if name[0] >= '1' && name[0] <= '9' {
				processes += name + " "
			}
		}
		if n := len(strings.Fields(processes)); n != 2 { // the container's first process, and ls itself
			t.Errorf("processes are %s, want only the first one and ls", processes)
		}
	})
}

// ended reports whether the engine lists a container as exited.
func ended(t *testing.T, e engine.Engine, id string) bool {
	t.Helper()
	list, err := e.Containers(t.Context(), "flotilla.test/spec")
	must(t, err)
	return slices.ContainsFunc(list, func(c engine.Container) bool { return c.ID == id && c.State == engine.Exited })
}

// await waits for a condition.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 3 minutes for %s", what)
		}
	}
}

// The last line of a crashed program often has no line feed, and the log must include it.
func TestTheTailOfALogIsComplete(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		id := begin(t, e, engine.Spec{}, "print one then print two then cat /proc/self/cmdline")
		const three = "/tool\x00print\x00one\x00then\x00print\x00two\x00then\x00cat\x00/proc/self/cmdline\x00"
		for tail, want := range map[int64]string{-1: "one\ntwo\n" + three, 0: "", 1: three, 2: "two\n" + three,
			3: "one\ntwo\n" + three, 80: "one\ntwo\n" + three} {
			var got string
			await(t, fmt.Sprintf("the last %d lines", tail), func() bool {
				var out bytes.Buffer
				must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: tail}, &out, io.Discard))
				got = out.String()
				return got == want || len(got) > len(want)
			})
			if got != want {
				t.Errorf("the last %d lines are %q, want %q", tail, got, want)
			}
			await(t, "the end of the container", func() bool { return ended(t, e, id) }) // the log is complete just before
			var out, stamped bytes.Buffer
			must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: tail, Follow: true}, &out, io.Discard))
			if out.String() != want {
				t.Errorf("following an ended container, the last %d lines are %q, want %q", tail, out.String(), want)
			}
			must(t, e.Logs(t.Context(), id, engine.LogOptions{Tail: tail, Timestamps: true}, &stamped, io.Discard))
			if got := strings.Count(stamped.String(), "Z "); got != strings.Count(want, "\n")+min(1,
				strings.Count(want, "/tool")) {
				t.Errorf("with times, the last %d lines are %q", tail, stamped.String())
			}
		}
	})
}
