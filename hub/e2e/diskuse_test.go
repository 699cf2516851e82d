package e2e

import (
	"fmt"
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

// perEvent is the memory that one event needs. A hub keeps some thousands of events.
const perEvent = 5 << 10

// Five hundred devices run, and workloads change all the time. After a while neither the hub nor
// the devices grow.
func TestASoak(t *testing.T) {
	t.Parallel()
	long(t)
	const devices = 500
	h := newHub(t, "--lease-interval", "2s", "--node-monitor-grace-period", "20s", "--node-startup-grace-period", "40s",
		"--log-level", "warn")
	p := h.simulate(devices, 5)
	h.kubectlWith(signYAML, "apply", "-f", "-")
	// most returns the maximum of some rounds, because memory grows between two garbage
	// collections.
	most := func(rounds int) (at [2]size) {
		for i := range rounds {
			h.kubectl("scale", "deployment/sign", fmt.Sprint("--replicas=", 50+100*(i%2)))
			time.Sleep(10 * time.Second)
			for j, now := range []size{h.size(t), p.size(t)} {
				at[j] = size{max(at[j].files, now.files), max(at[j].threads, now.threads), max(at[j].memory, now.memory)}
			}
		}
		return at
	}
	events := func() int { return strings.Count(h.kubectl("get", "events", "-A", "-o", "name"), "\n") }
	before, had := most(6), events() // everything that grows only once has grown
	began := time.Now()
	most(6)
	after, more := most(6), events()-had
	var figures []string
	for i, name := range []string{"hub", "devices"} {
		b, a := before[i], after[i]
		figures = append(figures, fmt.Sprintf("%s: files %d → %d, threads %d → %d, memory %d → %d MB", name, b.files, a.files,
			b.threads, a.threads, b.memory>>20, a.memory>>20))
		if name == "hub" {
			b.memory += more * perEvent
		}
		if a.files > b.files+10 || a.threads > b.threads+6 || a.memory > b.memory*5/4+(8<<20) {
			t.Errorf("resources grow: %s, and %d events", figures[i], more)
		}
	}
	h.allReady(devices)
	seen(t, fmt.Sprintf("%d devices and a deployment of 50 to 150 pods for %s, and %d events more: %s", devices,
		time.Since(began).Round(time.Second), more, strings.Join(figures, "; ")))
}

// A size is the resources of a process.
type size struct{ files, threads, memory int }

func (p *process) size(t testing.TB) size {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	open, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	return size{len(open), int(field(t, dir+"status", "Threads:")), int(field(t, dir+"status", "VmRSS:")) << 10}
}

// TestWear counts the bytes that a hub with a hundred idle nodes, and an idle agent, write to their
// disks.
func TestWear(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		need(t, "needs strace, which counts the hub's syncs: %v", err)
	}
	h := newHub(t, "--lease-interval", "10s", "--node-monitor-grace-period", "40s", "--node-startup-grace-period", "60s")
	h.simulate(100, 5)
	d := h.join("oslo", e)
	d.run()
	await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	h.backedUp(2 * time.Minute)
	time.Sleep(30 * time.Second)

	log := filepath.Join(t.TempDir(), "syncs")
	watch := exec.Command(strace, "-f", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", log, "-p",
		strconv.Itoa(h.cmd.Process.Pid))
	watch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	written := func(p *process) int64 {
		return int64(field(t, fmt.Sprintf("/proc/%d/io", p.cmd.Process.Pid), "write_bytes:"))
	}
	hubBefore, agentBefore := written(h.process), written(d.process)
	if hubBefore == 0 {
		t.Skip("needs a directory on a disk: writes to a tmpfs are not counted")
	}
	began := time.Now()
	time.Sleep(4 * time.Minute)
	hours := time.Since(began).Hours()
	hubMB, agentMB := float64(written(h.process)-hubBefore)/1e6/hours, float64(written(d.process)-agentBefore)/1e6/hours
	_ = watch.Process.Signal(syscall.SIGINT) // strace detaches from the hub
	_ = watch.Wait()                         // strace's exit code does not matter
	body, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	syncs := float64(strings.Count(string(body), "sync(")) / hours
	if hubMB > 20 || syncs > 240 || agentMB > 1 {
		t.Errorf("in an hour the hub writes %.1f MB and syncs %.0f times, the agent writes %.2f MB; want less than 20, 240 and 1",
			hubMB, syncs, agentMB)
	}
	seen(t, fmt.Sprintf("per hour, measured in quiet minutes: the hub of 101 nodes %.1f MB and %.0f syncs, an agent "+
		"with two pods %.2f MB", hubMB, syncs, agentMB))
}
