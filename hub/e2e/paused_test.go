package e2e

import (
	"errors"
	"fmt"
	"net/http"
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

// pause stops a process with SIGSTOP for a while, as swapping or a paused virtual machine does.
func (p *process) pause(long time.Duration) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	time.Sleep(long)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
}

// A hub that was paused for five grace periods has received no leases. The devices did not cause
// that, so no node becomes Unknown.
func TestAPausedHub(t *testing.T) {
	t.Parallel()
	long(t)
	h := newHub(t)
	h.simulate(20, 4)
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before := h.lives()
	const times, long = 3, 5 * grace
	var right time.Duration
	for range times {
		h.pause(long)
		began := time.Now()
		for time.Since(began) < 3*grace { // a node could become Unknown in this time
			var l corev1.NodeList
			if err := h.read("/api/v1/nodes", &l); err != nil {
				time.Sleep(50 * time.Millisecond) // the hub may have closed the test's connection
				continue
			}
			for _, n := range l.Items {
				if c := ready(n); c.Status != corev1.ConditionTrue {
					t.Errorf("%s after the hub continued, Ready of %s is %s: %s", time.Since(began).Round(time.Millisecond), n.Name,
						c.Status, c.Reason)
				}
			}
			if t.Failed() {
				return
			}
			if right == 0 {
				right = time.Since(began)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	h.allReady(20)
	for _, n := range []int{1, 20} {
		node := fmt.Sprintf("sim-%04d", n)
		await(t, node+" has a lease", patience, func() error {
			if time.Since(h.lastSeen(node)) > grace {
				return errors.New("the node has no lease since the hub continued")
			}
			return nil
		})
	}
	if after := h.lives(); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("containers before:\n%v\nafter:\n%v", before, after)
	}
	seen(t, fmt.Sprintf("paused %d times for %s (grace %s): none of 20 nodes became Unknown, it answered %.1f s after",
		times, long, grace, right.Seconds()))
}

// A paused agent only stops reporting. Its containers keep running, and it continues afterwards.
func TestAPausedAgent(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h, d, _, before := hubWithTwoPods(t, e)
	began := time.Now()
	d.pause(5 * grace)
	if err := h.ready(d.node, corev1.ConditionUnknown); err != nil {
		t.Errorf("an agent was paused for %s, want its node Unknown: %v", time.Since(began), err)
	}
	began = time.Now()
	await(t, "the node, its pods and its lease have recovered", patience, func() error { return h.recovered(d, began) })
	after := time.Since(began)
	if after > 20*time.Second {
		t.Errorf("recovered after %s, want at most 20 s", after)
	}
	e.same(t, d.node, before, "a pause of the agent")
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "TaintManagerEviction") {
		t.Errorf("a pod was evicted:\n%s", events)
	}
	seen(t, fmt.Sprintf("an agent was paused for %s: Unknown meanwhile, recovered %.1f s after, no container restarted",
		5*grace, after.Seconds()))
}

// If an engine does not respond or has gone, its node is NotReady within 40 s, keeps its lease, and
// deletes nothing.
func TestAnEngineThatHangs(t *testing.T) {
	engines(t, func(t *testing.T, e *engine) {
		long(t)
		h := newHub(t)
		d := h.join("oslo", e)
		n := newLine(t, e.socket)
		behind := *d
		behind.engine = engineAt(e.name, n.addr())
		behind.run()
		d.process = behind.process
		await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		h.kubectlWith(signYAML, "apply", "-f", "-")
		await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
		before, err := e.containers(d.node)
		if err != nil {
			t.Fatal(err)
		}
		var noticed, healed time.Duration
		for _, f := range []fault{
			{"the engine does not read requests", blocks, passes, false},
			{"the engine does not answer", passes, blocks, false},
			{"the engine's socket refuses", passes, passes, true},
		} {
			began := time.Now()
			n.set(f.up, f.down, f.cut)
			await(t, "where "+f.name+" the node is not ready", patience, func() error {
				node, err := h.node(d.node)
				if c := ready(node); err == nil && (c.Status != corev1.ConditionFalse || c.Reason != "ContainerEngineUnavailable" &&
					!strings.Contains(c.Message, "engine")) {
					err = fmt.Errorf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
				}
				return err
			})
			after := time.Since(began)
			noticed = max(noticed, after)
			if after > 45*time.Second { // a check every 10 s, its timeout of 30 s, and the time to report
				t.Errorf("%s: NotReady after %s, want 40 s", f.name, after)
			}
			for end := time.Now().Add(2 * grace); time.Now().Before(end); time.Sleep(time.Second) {
				if age := time.Since(h.lastSeen(d.node)); age > grace {
					t.Errorf("%s: the lease is %s old, more than the grace period", f.name, age)
				}
			}
			e.same(t, d.node, before, f.name)
			n.heal()
			began = time.Now()
			await(t, "after: "+f.name+", the node, its pods and its lease have recovered", patience, func() error { return h.recovered(d, began) })
			healed = max(healed, time.Since(began))
			e.same(t, d.node, before, "the end of the fault: "+f.name)
		}
		seen(t, fmt.Sprintf("%s: NotReady after at most %.1f s, leases went on, recovered after %.1f s, no container restarted", e.name, noticed.Seconds(), healed.Seconds()))
	})
}

// After a kill of the hub, a thousand devices reconnect before a node becomes Unknown, and the hub
// stays small.
func TestAThousandDevicesReturn(t *testing.T) {
	t.Parallel()
	long(t)
	const devices = 1000
	h := newHub(t, "--lease-interval", "10s", "--node-monitor-grace-period", "40s", "--node-startup-grace-period", "60s",
		"--log-level", "warn")
	h.simulate(devices, 10)
	h.kill()
	time.Sleep(time.Minute) // longer than the grace period
	h.start()
	began := time.Now()
	var all time.Duration
	unknown := map[string]bool{}
	await(t, "everybody's lease", 2*time.Minute, func() error {
		var l corev1.NodeList
		if err := h.read("/api/v1/nodes", &l); err != nil {
			return err
		}
		for _, n := range l.Items {
			if ready(n).Status != corev1.ConditionTrue {
				unknown[n.Name] = true
			}
		}
		leases := struct {
			Items []struct {
				Spec struct {
					RenewTime *string `json:"renewTime"`
				} `json:"spec"`
			} `json:"items"`
		}{}
		if err := h.read("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &leases); err != nil {
			return err
		}
		fresh := 0
		for _, lease := range leases.Items {
			if lease.Spec.RenewTime == nil {
				continue
			}
			if at, err := time.Parse(time.RFC3339, *lease.Spec.RenewTime); err == nil && at.After(began.Add(-time.Second)) {
				fresh++
			}
		}
		if fresh < devices {
			return fmt.Errorf("%d of %d", fresh, devices)
		}
		return nil
	})
	all = time.Since(began)
	time.Sleep(time.Minute) // a grace period, and the work after a start
	h.allReady(devices)
	peak := field(t, fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid), "VmHWM:") / 1024
	if all > time.Minute {
		t.Errorf("all nodes have a lease after %s, want at most 60 s", all)
	}
	if len(unknown) > 0 {
		t.Errorf("%d nodes were not ready: %v", len(unknown), unknown)
	}
	if peak > 128 {
		t.Errorf("the hub grew to %.0f MiB, want at most 128", peak)
	}
	seen(t, fmt.Sprintf("%d devices had their lease %.1f s after the hub's start, none became Unknown, the hub used at most %.0f MiB", devices, all.Seconds(), peak))
}

// An agent needs at most 64 MiB. If the kernel kills it, its containers keep running.
func TestAnAgentWithoutMemory(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	const root = "/sys/fs/cgroup/memory"
	group := filepath.Join(root, fmt.Sprintf("flotilla-e2e-%d", os.Getpid()))
	if _, err := os.Stat(filepath.Join(root, "memory.limit_in_bytes")); err != nil {
		t.Skipf("needs the kernel's memory controller (cgroup v1): %v", err)
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("needs root, to limit the agent's memory: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	write := func(file string, v int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(group, file), []byte(strconv.Itoa(v)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := newHub(t)
	d := h.join("oslo", e)
	write("memory.limit_in_bytes", 64<<20)
	run := func() {
		cmd := exec.Command("sh", "-c", `echo $$ > "$0"/cgroup.procs && exec "$@"`, group, program(t, "device", here), "run",
			"--state-dir", d.dir, "--engine", e.socket, "--eviction-hard", anyDisk)
		cmd.Env = environment()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		d.process = startCommand(t, cmd)
	}
	run()
	await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before, err := e.containers(d.node)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // some work
		_, _ = e.ask(http.MethodGet, "/images/json")
		h.kubectl("logs", "deployment/sign")
	}
	peak, err := os.ReadFile(filepath.Join(group, "memory.max_usage_in_bytes"))
	if err != nil {
		t.Fatal(err)
	}
	most, _ := strconv.Atoi(strings.TrimSpace(string(peak)))
	if d.ended() {
		t.Fatal("the agent must work within 64 MiB")
	}
	// Another process takes all memory, and the kernel kills the agent.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.cmd.Process.Pid), []byte("1000"), 0o644); err != nil {
		t.Fatal(err)
	}
	hog := exec.Command("sh", "-c", `echo $$ > "$0"/cgroup.procs && exec tail /dev/zero`, group)
	hog.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the kernel kills the agent", patience, func() error {
		if !d.ended() {
			return errors.New("it runs")
		}
		return nil
	})
	_ = hog.Process.Kill() // the kernel may have killed it
	_ = hog.Wait()
	e.same(t, d.node, before, "a kill for lack of memory")
	began := time.Now()
	run()
	await(t, "the node, its pods and its lease have recovered", patience, func() error { return h.recovered(d, began) })
	e.same(t, d.node, before, "the agent's next start")
	seen(t, fmt.Sprintf("peak in a group of 64 MiB: %d MiB; killed by the kernel, recovered %.1f s after its next "+
		"start, no container restarted", most>>20, time.Since(began).Seconds()))
}
