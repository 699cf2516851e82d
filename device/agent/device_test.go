package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// A board is simulated hardware that tests change.
type board struct {
	mu        sync.Mutex
	boot      string
	stats     hardware.Stats
	load      float64       // busy CPUs
	slow      time.Duration // how long Probe takes
	fault     error         // error of Probe
	noAddress bool          // the board has no address
	dual      bool          // the board also has an IPv6 address

	devices []hardware.Device
	swap    int64
	numa    []hardware.NUMANode
}

func newBoard() *board {
	full := hardware.Amount{Available: 1 << 30, Capacity: 2 << 30}
	return &board{boot: "boot-1", stats: hardware.Stats{Memory: full, NodeFs: full, ImageFs: full, NodeFsInodes: full,
		ImageFsInodes: full, PIDs: full}}
}

func (b *board) Probe(context.Context, string) (hardware.Report, error) {
	b.mu.Lock()
	slow, fault := b.slow, b.fault
	b.mu.Unlock()
	time.Sleep(slow)
	if fault != nil {
		return hardware.Report{}, fault
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return hardware.Report{
		Host: hardware.Host{Hostname: "pi", OS: "linux", Arch: "arm64", BootID: b.boot,
			MachineID: "0123456789abcdef"},
		Capacity:  hardware.Capacity{CPUs: 4, Memory: 2 << 30, Ephemeral: 8 << 30, Pods: 110, Swap: b.swap},
		Addresses: b.addresses(),
		Devices:   b.devices,
		NUMA:      b.numa,
	}, nil
}

// Look finds a device of the board. The group 44 may open it.
func (b *board) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.devices, func(e hardware.Device) bool { return d.Same(e) || d.On != "" && d.On == e.ID })
	if i < 0 {
		return d, nil, errors.New(d.ID + " is unplugged")
	}
	var nodes []hardware.Node
	for _, p := range b.devices[i].Nodes {
		nodes = append(nodes, hardware.Node{Path: p, Host: p, Group: 44})
	}
	if d.On != "" {
		return d, nodes, nil
	}
	return b.devices[i], nodes, nil
}

func (b *board) Measure(context.Context, string) hardware.Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Addresses = b.addresses()
	s.Busy = time.Duration(float64(time.Since(time.Unix(0, 0))) * b.load)
	return s
}

func (b *board) addresses() []corev1.NodeAddress {
	list := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"},
		{Type: corev1.NodeHostName, Address: "pi"}}
	if b.noAddress {
		return list[1:]
	}
	if b.dual {
		list = slices.Insert(list, 1, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::7"})
	}
	return list
}

func (b *board) set(f func(*board)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// testLog discards its output unless LOUD is set.
func testLog() *slog.Logger {
	if os.Getenv("LOUD") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A device is a board, an engine and a disk, which outlive the agent.
type device struct {
	t      testing.TB
	fake   *enginetest.Fake
	engine engine.Engine // the agent's engine: the fake unless a test wraps it
	board  *board
	dir    string
	config Config
	booted time.Time

	agent *Agent
	end   func()

	mu     sync.Mutex
	events []wire.Event
	status int
	pods   int
}

func newDevice(t testing.TB) *device {
	d := &device{t: t, fake: enginetest.New(), board: newBoard(), dir: t.TempDir(),
		config: Config{Flags: anyDisk(t), Policy: plan.DefaultPolicy()}}
	d.engine = d.fake
	d.fake.AddImage(enginetest.ToolImage, 6<<20, toolOrPause)
	return d
}

// anyDisk allows copies of images even if the disk of the test machine is full. Tests set the
// board's values instead.
func anyDisk(t testing.TB) hardware.Limits {
	hard, err := hardware.ParseThresholds("nodefs.available<0,outofdisk.available<0")
	if err != nil {
		t.Fatal(err)
	}
	return hardware.Limits{Hard: hard}
}

// toolOrPause simulates the test image, or the sandbox's program mounted into it.
func toolOrPause(s engine.Spec, run int) enginetest.Play {
	if len(s.Entrypoint) > 0 && s.Entrypoint[0] == pause.Target {
		return enginetest.Play{} // the sandbox runs until it is stopped
	}
	return enginetest.ToolProgram(s, run)
}

func (d *device) StatusChanged()               { d.mu.Lock(); d.status++; d.mu.Unlock() }
func (d *device) podChanges() int              { d.mu.Lock(); defer d.mu.Unlock(); return d.pods }
func (d *device) PodsChanged()                 { d.mu.Lock(); d.pods++; d.mu.Unlock() }
func (d *device) DesiredStored()               {}
func (d *device) Stream(string) request.Stream { return nil }
func (d *device) Event(e wire.Event) {
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
}

// reasons are the reasons of all events so far.
func (d *device) reasons() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		out = append(out, e.Reason)
	}
	return out
}

// start starts an agent on the device. d.end kills the agent; the engine keeps running.
func (d *device) start() {
	d.t.Helper()
	log := d.config.Log
	if log == nil {
		log = testLog()
	}
	m, err := memory.Open(d.dir, log)
	if err != nil {
		d.t.Fatal(err)
	}
	c := d.config
	if d.booted.IsZero() {
		d.booted = time.Now()
	}
	if c.Uptime == nil { // the system's uptime does not follow the time of package synctest
		c.Uptime = func() time.Duration { return time.Since(d.booted) }
	}
	c.Node, c.Memory, c.Hardware, c.Log = "pi-1", m, d.board, log
	c.OpenEngine = func(ctx context.Context) (engine.Engine, error) {
		if _, err := d.fake.Info(ctx); err != nil {
			return nil, fmt.Errorf("find a container engine: %w", err)
		}
		return d.engine, nil
	}
	a, err := New(c)
	if err != nil {
		d.t.Fatal(err)
	}
	a.SetHub(d)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	d.agent = a
	d.end = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
		if err := m.Close(); err != nil {
			d.t.Error(err)
		}
	}
}

// desire stores a desired state with the given pods.
func (d *device) desire(generation int64, pods ...corev1.Pod) {
	d.t.Helper()
	if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", Pods: pods}); err != nil {
		d.t.Fatal(err)
	}
}

// pod returns the reported status of a pod, or false if the agent does not report the pod.
func (d *device) pod(name string) (corev1.PodStatus, bool) {
	for _, p := range heldPods(d.agent) {
		if p.Name == name {
			return p.Status, true
		}
	}
	return corev1.PodStatus{}, false
}

// containers lists the engine's containers: name, attempt and state.
func (d *device) containers() []string {
	list, err := d.fake.Containers(context.Background(), plan.LabelAgent+"=pi-1")
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, c := range list {
		name := c.Labels[plan.LabelContainer]
		if name == "" {
			name = "POD"
		}
		out = append(out, fmt.Sprintf("%s/%s#%s %s", c.Labels[plan.LabelPodName], name, c.Labels[plan.LabelRestarts],
			c.State))
	}
	slices.Sort(out)
	return out
}

// heldPods are the reported pods, except deleted pods that have ended.
func heldPods(a *Agent) []wire.PodStatus {
	deleted := map[types.UID]bool{}
	d, _ := a.c.Memory.Desired()
	for _, p := range d.Pods {
		deleted[p.UID] = p.DeletionTimestamp != nil
	}
	return slices.DeleteFunc(slices.Clone(a.Pods().Pods),
		func(p wire.PodStatus) bool { return deleted[p.UID] && plan.IsFinal(p.Status.Phase) })
}

func (d *device) wantContainers(want ...string) {
	d.t.Helper()
	synctest.Wait()
	if got := d.containers(); !slices.Equal(got, want) {
		d.t.Fatalf("the engine has the containers %q, want %q", got, want)
	}
}

func (d *device) wantPhase(name string, want corev1.PodPhase, reason string) corev1.PodStatus {
	d.t.Helper()
	st, ok := d.pod(name)
	if !ok || st.Phase != want || st.Reason != reason {
		d.t.Fatalf("pod %s is held=%v, phase %s, reason %q (%s); want %s, %q", name, ok, st.Phase, st.Reason,
			st.Message,
			want, reason)
	}
	return st
}

// makePod returns a pod with one container for each command; each runs the test image.
func makePod(name string, commands ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for i, c := range commands {
		p.Spec.Containers = append(p.Spec.Containers,
			corev1.Container{Name: fmt.Sprintf("c%d", i), Image: enginetest.ToolImage, Args: strings.Fields(c)})
	}
	return p
}

func deletedPod(p corev1.Pod, grace int64) corev1.Pod {
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	return p
}

func bubble(t *testing.T, f func(t *testing.T, d *device)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.start()
		defer func() { d.end() }()
		f(t, d)
	})
}
