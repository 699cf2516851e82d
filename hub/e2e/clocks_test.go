package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// A wallClock is a program's time of day: the machine's time plus an offset, which may change while
// the program runs.
//
// The clock of a static program can be intercepted only in an emulator: qemu asks its own libc,
// where libfaketime answers. It changes only the time of day; monotonic clocks continue, as when an
// administrator sets a clock.
type wallClock struct {
	t                          testing.TB
	emulator, library, setting string // paths of files
	by                         time.Duration
}

func newClock(t testing.TB) *wallClock {
	t.Helper()
	c := &wallClock{t: t, setting: filepath.Join(t.TempDir(), "clock")}
	name := map[string]string{"amd64": "qemu-x86_64", "arm64": "qemu-aarch64"}[here.arch]
	var err error
	if c.emulator, err = exec.LookPath(name); err != nil {
		need(t, "an emulator with a libc is needed to set a program's clock: Debian's qemu-user: %v", err)
	}
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1") // the pattern is valid
	if len(found) == 0 {
		need(t, "libfaketime is needed to set a program's clock: Debian's faketime")
	}
	c.library = found[0]
	c.set(0)
	return c
}

// set sets the clock, also of running programs.
func (c *wallClock) set(by time.Duration) {
	c.t.Helper()
	err := os.WriteFile(c.setting+".new", fmt.Appendf(nil, "%+d\n", by/time.Second), 0o600)
	if err == nil {
		err = os.Rename(c.setting+".new", c.setting)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.by = by
}

// now returns the time of day by this clock.
func (c *wallClock) now() time.Time { return time.Now().Add(c.by) }

// command runs a program with this clock.
//
// It sets G_SLICE, because glib's slices ask for the time after a fork. In the copied emulator
// another thread may hold libfaketime's lock for ever.
func (c *wallClock) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(c.emulator, append([]string{path}, args...)...)
	cmd.Env = environment("LD_PRELOAD="+c.library, "FAKETIME_TIMESTAMP_FILE="+c.setting, "FAKETIME_NO_CACHE=1",
		"DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1", "G_SLICE=always-malloc")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// stamped matches the time of a log line.
var stamped = regexp.MustCompile(`(?m)^time=(\S+)`)

// clocks are a hub and a device with separate clocks, and a state that must not change.
type clocks struct {
	t         *testing.T
	h         *hub
	d         *device
	hub, dev  *wallClock
	workloads []container
	turned    time.Time // last transition of Ready
	lease     time.Time // time of the newest lease so far
	words     int
}

func (c *clocks) runHub() {
	c.t.Helper()
	c.h.process = startCommand(c.t, c.hub.command(program(c.t, "hub", here), c.h.args...))
	await(c.t, "the hub serves", patience, c.h.answers)
}

func (c *clocks) runDevice() {
	c.t.Helper()
	await(c.t, "the killed agent has ended", patience, func() error { // child processes may keep files open for a moment
		lock, err := os.Open(filepath.Join(c.d.dir, "lock"))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		defer lock.Close()
		return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	})
	c.d.process = startCommand(c.t, c.dev.command(program(c.t, "device", here), "run", "--state-dir", c.d.dir, "--engine",
		c.d.engine.socket, "--eviction-hard", anyDisk))
}

// ready returns when the node became ready, or an error if it is not ready.
func (c *clocks) ready() (time.Time, error) {
	n, err := c.h.node(c.d.node)
	if err != nil {
		return time.Time{}, err
	}
	is := ready(n)
	if is.Status != corev1.ConditionTrue {
		err = fmt.Errorf("Ready is %s: %s: %s", is.Status, is.Reason, is.Message)
	}
	return is.LastTransitionTime.Time, err
}

// works waits until a lease, a desired state and an API request succeed.
func (c *clocks) works(when string) {
	c.t.Helper()
	before := c.lease
	await(c.t, when+": the hub receives a lease", patience, func() error {
		if c.lease = c.h.lastSeen(c.d.node); c.lease.Equal(before) {
			return errors.New("none yet")
		}
		_, err := c.ready()
		return err
	})
	c.words++
	word := fmt.Sprintf("word-%d", c.words)
	c.h.kubectl("patch", "configmap", "words", "-p", fmt.Sprintf(`{"data":{"word":%q}}`, word))
	await(c.t, when+": the device receives the desired state", patience, func() error { return c.d.stores(word) })
	if printed := c.h.kubectl("logs", "deployment/sign"); !strings.Contains(printed, "hello") {
		c.t.Errorf("%s: kubectl logs prints %q, want hello", when, printed)
	}
}

// holds fails if a condition changes within a few seconds. A deadline by a wrong clock expires at
// once.
func (c *clocks) holds(when string) {
	c.t.Helper()
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		if at, err := c.ready(); err != nil || !at.Equal(c.turned) {
			c.t.Fatalf("%s: Ready must not change: since %s, %v; before since %s", when, at, err, c.turned)
		}
	}
	c.d.engine.same(c.t, c.d.node, c.workloads, when)
}

// renews makes the device renew its certificate and use the new one.
func (c *clocks) renews(when string) {
	c.t.Helper()
	const words = "the certificate was renewed"
	before := strings.Count(c.d.output.String(), words)
	output(c.t, program(c.t, "hub", here), "ca", "rotate", "--intermediate", "--data-dir", c.h.dir)
	await(c.t, when+": the device renews its certificate", 3*patience, func() error {
		if strings.Count(c.d.output.String(), words) == before {
			return fmt.Errorf("the agent printed %s", tail(c.d.output.String(), 3))
		}
		return nil
	})
}

// stamps fails if a log line has a time that is not near one of these times.
func stamps(t *testing.T, when, name, printed string, near ...time.Time) {
	t.Helper()
	for _, m := range stamped.FindAllStringSubmatch(printed, -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		ok := false
		for _, n := range near {
			ok = ok || at.Sub(n).Abs() < 10*time.Minute
		}
		if err != nil || !ok {
			t.Errorf("%s: the log of the %s has a line with time %s, %v; its clock was at %s", when, name, m[1], err, near)
			return
		}
	}
}

// clockGrace is long enough for an emulated agent on a busy machine.
const clockGrace = 40 * time.Second

// The clock of the hub, of the device, or of both is set forward, back, to 1970 and past 2038,
// while the programs run and before they start. No node becomes Unknown, no device is locked out,
// and no container restarts.
func TestWrongClocks(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	c := &clocks{t: t, hub: newClock(t), dev: newClock(t)}
	c.h = newHub(t, "--node-monitor-grace-period", clockGrace.String(), "--node-startup-grace-period", "3m") // an emulated agent starts slowly
	c.d = c.h.join("oslo", e)
	c.h.stop()
	c.runHub()
	c.runDevice()
	await(t, "the node is ready", patience, func() error { return c.h.ready(c.d.node, corev1.ConditionTrue) })
	c.h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return c.h.available("sign", 2) })
	var err error
	if c.workloads, err = e.containers(c.d.node); err != nil || len(c.workloads) < 2 {
		t.Fatalf("%d containers, %v; want at least 2", len(c.workloads), err)
	}
	if c.turned, err = c.ready(); err != nil {
		t.Fatal(err)
	}
	c.works("with correct clocks")

	past, future := time.Until(time.Unix(600, 0)), time.Until(time.Date(2040, 2, 29, 12, 0, 0, 0, time.UTC))
	type way int
	const (
		set      way = iota // set while the programs run
		starts              // set before a killed program starts again
		renewing            // set before the device renews its certificate
	)
	turns := 0
	for _, s := range []struct {
		hub, dev time.Duration
		way      way
	}{
		{0, time.Hour, set}, {0, -time.Hour, set}, {0, past, renewing}, {0, future, renewing},
		{0, past, starts}, {0, future, starts}, {0, 0, starts},
		{time.Hour, 0, set}, {-time.Hour, 0, set}, {past, 0, renewing}, {future, 0, renewing}, {0, 0, set},
		{time.Hour, -time.Hour, set}, {-time.Hour, time.Hour, renewing}, {past, past, set}, {future, past, set}, {0, 0, set},
		{past, 0, starts}, {past, past, starts}, {past, 0, renewing},
		{-time.Hour, 0, starts}, {time.Hour, 0, starts}, {0, 0, starts},
		{future, 0, starts}, {future, 0, renewing}, {future, future, starts}, {0, 0, starts}, {0, 0, renewing},
	} {
		when := fmt.Sprintf("hub %s, device %s, %s", c.hub.now().Add(s.hub-c.hub.by).Format(time.DateTime),
			c.dev.now().Add(s.dev-c.dev.by).Format(time.DateTime),
			[]string{"set", "at the start", "set, and a certificate renewed"}[s.way])
		t.Log(when)
		hubLog, devLog, near := c.h.output, c.d.output, []time.Time{c.hub.now(), c.dev.now()}
		hubFrom, devFrom := len(hubLog.String()), len(devLog.String())
		restartHub, restartDev := s.way == starts && s.hub != c.hub.by, s.way == starts && s.dev != c.dev.by
		c.hub.set(s.hub)
		c.dev.set(s.dev)
		if restartHub {
			c.h.kill()
			c.runHub()
			hubFrom, hubLog = 0, c.h.output
		}
		if restartDev {
			c.d.kill()
			e.same(t, c.d.node, c.workloads, when)
			c.runDevice()
			devFrom, devLog = 0, c.d.output
		}
		c.works(when)
		if restartDev { // the emulated agent may have been stopped for longer than the grace period
			at, err := c.ready()
			if err != nil {
				t.Fatal(err)
			}
			c.turned = at
		}
		if s.way == renewing {
			c.renews(when)
		}
		c.holds(when)
		stamps(t, when, "hub", hubLog.String()[hubFrom:], near[0], c.hub.now())
		stamps(t, when, "device", devLog.String()[devFrom:], near[1], c.dev.now())
		turns++
	}
	if events := c.h.kubectl("get", "events", "-A"); strings.Contains(events, "TaintManagerEviction") {
		t.Errorf("a pod was evicted:\n%s", events)
	}

	// The node reports whether the kernel's clock is synchronized.
	state, err := unix.Adjtimex(&unix.Timex{})
	if err != nil {
		t.Fatal(err)
	}
	want := corev1.ConditionTrue
	if state == unix.TIME_ERROR {
		want = corev1.ConditionFalse
	}
	if err := c.h.condition(c.d.node, "ClockSynced", want); err != nil {
		t.Error(err)
	}

	// A board without a battery joins with a clock in 1970, and another with a clock after 2038.
	for _, by := range []time.Duration{past, future} {
		at := newClock(t)
		at.set(by)
		d := &device{t: t, engine: e, dir: filepath.Join(t.TempDir(), "joined"), node: fmt.Sprintf("e2e-%d-%d-clock",
			os.Getpid(), devicesMade.Add(1))}
		c.hub.set(by) // the command uses the gateway's clock
		out, err := c.hub.command(program(t, "hub", here), "token", "create", "--data-dir", c.h.dir,
			"--site", "bergen").Output()
		if err != nil {
			t.Fatalf("a token made at %s: %v", c.hub.now(), err)
		}
		line := strings.Fields(string(out))
		if printed, err := at.command(program(t, "device", here), append(line[1:], "--state-dir", d.dir, "--node-name",
			d.node)...).CombinedOutput(); err != nil {
			t.Fatalf("join at %s: %v: %s", at.now(), err, printed)
		}
		t.Cleanup(func() { e.remove(t, d.node); forgetVolatile(t, d.dir) })
		d.process = startCommand(t, at.command(program(t, "device", here), "run", "--state-dir", d.dir, "--engine", e.socket,
			"--eviction-hard", anyDisk))
		await(t, fmt.Sprintf("a node that joined at %s is ready", at.now()), patience,
			func() error { return c.h.ready(d.node, corev1.ConditionTrue) })
		d.stop()
	}
	seen(t, fmt.Sprintf("%d settings of the clocks of a hub and a device, ±1 h, 1970 and 2040: no node turned, %d "+
		"containers ran on, certificates were renewed, kubectl worked; devices joined in 1970 and in 2040; ClockSynced=%s",
		turns, len(c.workloads), want))
}
