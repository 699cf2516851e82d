package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The budgets: an idle agent has at most 20 MB resident, an idle hub 48 MB, a hub with a thousand
// nodes 100 MB. At full load a lease costs at most 20 µs of the hub's processor time, and no write.

// A use is what a process has used since its start.
type use struct {
	cpu     time.Duration
	written int64 // bytes written to storage
	leases  float64
	commits float64
	at      time.Time
}

// memory returns the resident memory of a process in MB (1,000,000 bytes).
func (p *process) memory(t testing.TB) float64 {
	t.Helper()
	return field(t, fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid), "VmRSS:") * 1024 / 1e6
}

// field returns the number after a name in a file of /proc.
func field(t testing.TB, file, name string) float64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				if v, err := strconv.ParseFloat(words[0], 64); err == nil {
					return v
				}
			}
		}
	}
	t.Fatalf("%s does not contain %s", file, name)
	return 0
}

// used returns what a hub has used and done since its start.
func (h *hub) used() use {
	h.t.Helper()
	metrics, err := h.get("/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	file := h.t.TempDir() + "/metrics"
	if err := os.WriteFile(file, metrics, 0o600); err != nil {
		h.t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	words := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
	user, _ := strconv.Atoi(words[12])
	system, _ := strconv.Atoi(words[13])
	return use{
		cpu:     time.Duration(user+system) * 10 * time.Millisecond, // ticks of 1/100 s
		written: int64(field(h.t, fmt.Sprintf("/proc/%d/io", h.cmd.Process.Pid), "write_bytes:")),
		leases:  field(h.t, file, `flotilla_mqtt_messages_total{channel="lease"}`),
		commits: field(h.t, file, "flotilla_commits_total"),
		at:      time.Now(),
	}
}

// backedUp waits for the first backup, a minute after a hub's first start. Otherwise its cost would
// be counted as the leases' cost.
func (h *hub) backedUp(within time.Duration) {
	h.t.Helper()
	await(h.t, "the hub writes its first backup", within, func() error {
		if list, err := filepath.Glob(filepath.Join(h.dir, "backups", "*.db")); err != nil || len(list) == 0 {
			return fmt.Errorf("no backup yet: %w", err)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
}

// BenchmarkIdle measures the memory of an idle hub, and of an idle agent with Docker.
func BenchmarkIdle(b *testing.B) {
	e := findEngine(b, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	for b.Loop() {
		h := newHub(b, "--lease-interval", "10s", "--node-monitor-grace-period", "40s", "--node-startup-grace-period", "60s")
		time.Sleep(10 * time.Second)
		b.ReportMetric(h.memory(b), "hub-alone-MB")
		d := h.join("oslo", e)
		d.run()
		await(b, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		time.Sleep(40 * time.Second)
		b.ReportMetric(h.memory(b), "hub-MB")
		b.ReportMetric(d.memory(b), "agent-MB")
		d.stop()
		h.stop()
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFleet measures a hub with a thousand simulated devices for a minute. Each device renews
// its lease every ten seconds.
func BenchmarkFleet(b *testing.B) {
	const devices = 1000
	b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
		for b.Loop() {
			h := newHub(b, "--lease-interval", "10s", "--node-monitor-grace-period", "40s", "--node-startup-grace-period", "60s",
				"--log-level", "warn")
			began := time.Now()
			p := h.simulate(devices, 10)
			b.ReportMetric(time.Since(began).Seconds(), "s-until-ready")
			b.ReportMetric(h.memory(b), "hub-busy-MB")
			h.backedUp(2 * time.Minute)
			before := h.used()
			time.Sleep(time.Minute)
			after := h.used()
			leases := after.leases - before.leases
			b.ReportMetric(float64((after.cpu-before.cpu).Microseconds())/leases, "hub-cpu-µs/lease")
			b.ReportMetric(100*float64(after.cpu-before.cpu)/float64(after.at.Sub(before.at)), "%core")
			b.ReportMetric(float64(after.written-before.written)/leases, "B-written/lease")
			b.ReportMetric(after.commits-before.commits, "commits")
			b.ReportMetric(leases, "leases")
			b.ReportMetric(h.memory(b), "hub-MB")
			p.end(syscall.SIGTERM)
			h.stop()
		}
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkLease measures a hub at full load, with leases of a thousand connections without TLS.
func BenchmarkLease(b *testing.B) {
	const devices, batch = 1000, 100_000
	b.Run(fmt.Sprintf("connections=%d", devices), func(b *testing.B) {
		h := newHub(b, "--lease-interval", "10s", "--node-monitor-grace-period", "5m", "--node-startup-grace-period", "5m",
			"--log-level", "warn")
		in := players(b, h, devices)
		h.allReady(devices)
		time.Sleep(5 * time.Second) // wait until the work after the registrations is done
		var cpu time.Duration
		total := 0.0
		for b.Loop() {
			before := h.used()
			if _, err := fmt.Fprintf(in, "%d\n", batch); err != nil {
				b.Fatal(err)
			}
			var after use
			await(b, "the hub has received the leases", patience, func() error {
				if after = h.used(); after.leases < before.leases+batch {
					return fmt.Errorf("%.0f of %d", after.leases-before.leases, batch)
				}
				return nil
			})
			cpu += after.cpu - before.cpu
			total += after.leases - before.leases
		}
		b.ReportMetric(float64(cpu.Microseconds())/total, "hub-cpu-µs/lease")
		b.ReportMetric(total/b.Elapsed().Seconds(), "leases/s")
		b.ReportMetric(0, "ns/op")
	})
}

// players starts the devices in a separate process, so that their processor time is not measured.
func players(b *testing.B, h *hub, count int) io.Writer {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), devicesOf+"="+h.dev, fmt.Sprintf("%s=%d", devicesCount, count), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close() // the process ends when its input ends
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.Fatalf("the devices did not connect: %q, %v", line, err)
	}
	return in
}
