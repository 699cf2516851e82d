package sim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/link"
	devmemory "flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// A simDevice is a device: the state that survives its agent, and the agent while it runs.
type simDevice struct {
	booted  time.Time
	w       *world
	key     string // key of its connection: the node's name, except for a clone
	name    string
	site    string
	machine string
	board   *simBoard
	fake    *enginetest.Fake
	dir     string

	agent *agent.Agent // nil: the device is switched off
	link  *link.Link
	mem   *devmemory.Memory
	boots int
	boot  string // boot of the running agent
	stop  func()

	mu       sync.Mutex
	version  string // of the agent; "": this one
	announce func() // called before the link starts; nil: nothing

	starts map[string]int // starts of a container (pod uid/name) since the last power cut
	told   *wire.Dismissed
}

// dismissed returns the dismissal that the device received.
func (d *simDevice) dismissed() *wire.Dismissed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.told
}

// leave does the same as the agent's main after a dismissal.
func (d *simDevice) leave(told wire.Dismissed) {
	d.mu.Lock()
	d.told = &told
	d.mu.Unlock()
	if err := d.agent.Leave(); err != nil {
		d.w.t.Error(err)
	}
	d.link.Leave()
}

// newDevice returns a device that is switched off.
func (w *world) newDevice(name, site string) *simDevice { return w.newClone(name, name, site) }

func (w *world) newClone(key, name, site string) *simDevice {
	d := &simDevice{w: w, key: key, name: name, site: site, dir: filepath.Join(w.dir, "device", key),
		fake: enginetest.New(), starts: map[string]int{}}
	d.machine = fmt.Sprintf("%x", sha256.Sum256([]byte(key)))[:16]
	d.board = newSimBoard(name, d.machine)
	w.alter(func() { w.devices = append(w.devices, d) })
	return d
}

// fleet starts devices on each site, and waits until they are ready.
func (w *world) fleet(each int, sites ...string) {
	w.t.Helper()
	for _, site := range sites {
		for n := range each {
			w.newDevice(fmt.Sprintf("%s-%d", site, n+1), site).start()
		}
	}
	w.settleWithin(15*time.Second, "the start of the fleet")
}

// fewPIDs is the threshold of a device that reports a lack of process IDs.
var fewPIDs, _ = hardware.ParseThresholds("pid.available<100")

// start switches the agent on.
func (d *simDevice) start() {
	w := d.w
	w.t.Helper()
	mem, err := devmemory.Open(filepath.Join(d.dir, "state"), w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	log := w.log.With("device", d.key)
	if d.booted.IsZero() {
		d.booted = time.Now()
	}
	reg := wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: d.site}}
	if w.tls {
		reg = wire.Registration{} // the token names the site
	}
	a, err := agent.New(agent.Config{
		Node: d.name, Memory: mem, Hardware: d.board, Log: log,
		OpenEngine:   func(context.Context) (engine.Engine, error) { return simEngine{d.fake, d}, nil },
		Policy:       plan.DefaultPolicy(),
		Flags:        hardware.Limits{Hard: fewPIDs},
		Registration: reg,
		Uptime:       func() time.Duration { return time.Since(d.booted) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	d.told = nil
	d.boots++
	d.boot = fmt.Sprintf("%s-boot-%d-%d", d.key, w.life, d.boots)
	ctx, cancel := context.WithCancel(context.Background())
	stored, _ := mem.Desired()
	c := link.Config{
		LeaseInterval: time.Duration(stored.LeaseIntervalSeconds) * time.Second,
		Node:          d.name, Machine: d.machine, Boot: d.boot, AgentVersion: cmp.Or(d.version, agent.Version), Server: "mqtt://127.0.0.1:1883",
		Source: a, Sink: a, Log: log,
		Dial: func(ctx context.Context) (net.Conn, error) { return w.dial(ctx, d) },
	}
	renewing := func() error { return nil }
	if w.tls {
		renewing = d.secure(ctx, &c)
	}
	l, err := link.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	a.SetHub(simAgentHub{l})
	d.agent, d.link, d.mem = a, l, mem
	if d.announce != nil {
		d.announce()
	}
	ended := make(chan error, 3)
	go func() { ended <- renewing() }()
	go func() { ended <- a.Run(ctx) }()
	go func() {
		select {
		case <-a.StatusKnown():
			ended <- l.Run(ctx)
		case <-ctx.Done():
			ended <- nil
		}
	}()
	d.stop = func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, <-ended, mem.Close()); err != nil && !errors.Is(err, link.ErrDismissed) {
			w.t.Error(err)
		}
	}
}

// kill ends the agent like kill -9: it sends nothing more, and containers run on.
func (d *simDevice) kill() {
	if d.agent == nil {
		return
	}
	w := d.w
	w.mu.Lock()
	was := w.links[d.key]
	if w.net != nil {
		w.net.Cut(d.key)
	}
	w.mu.Unlock()
	synctest.Wait()
	d.stop()
	d.agent, d.link, d.stop = nil, nil, nil
	w.mu.Lock()
	w.apply(d.key, was)
	w.mu.Unlock()
}

// powerCut cuts the power of the device. For the hub its link stays half open.
func (d *simDevice) powerCut() {
	d.w.freeze(d)
	d.stop()
	d.agent, d.link, d.stop = nil, nil, nil
	d.fake.PowerCut()
	d.mu.Lock()
	clear(d.starts)
	d.mu.Unlock()
}

// powerOn boots the device again.
func (d *simDevice) powerOn() {
	d.board.set(func(b *simBoard) { b.bootID++ })
	d.booted = time.Now()
	d.w.heal(d)
	d.start()
}

// running returns the pods whose containers run on the device, by UID.
func (d *simDevice) running() map[types.UID]string {
	out := map[types.UID]string{}
	for _, c := range d.containers() {
		out[types.UID(c.Labels[plan.LabelPodUID])] = c.Labels[plan.LabelNamespace] + "/" + c.Labels[plan.LabelPodName]
	}
	return out
}

// containers returns the running containers of pods on the device.
func (d *simDevice) containers() (out []engine.Container) {
	list, _ := d.fake.Containers(context.Background(), plan.LabelAgent)
	for _, c := range list {
		if c.State == engine.Running && c.Labels[plan.LabelKind] == podspec.KindApp {
			out = append(out, c)
		}
	}
	return out
}

// containersOf counts the containers of a pod.
func (d *simDevice) containersOf(uid types.UID) (n int) {
	for _, c := range d.containers() {
		if c.Labels[plan.LabelPodUID] == string(uid) {
			n++
		}
	}
	return n
}

// container returns the name of a container of a running pod.
func (d *simDevice) container(uid string) string {
	list, _ := d.fake.Containers(context.Background(), plan.LabelPodUID+"="+uid)
	for _, c := range list {
		if c.State == engine.Running && c.Labels[plan.LabelKind] == podspec.KindApp {
			// not the sandbox, because its end ends the pod
			return c.Name
		}
	}
	return ""
}

// says tells whether the agent reports a condition as true.
func (d *simDevice) says(t corev1.NodeConditionType) bool {
	for _, c := range d.agent.Status().Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (d *simDevice) runs(uid types.UID) bool { _, ok := d.running()[uid]; return ok }

// simAgentHub adapts the link to the agent's interface.
type simAgentHub struct{ *link.Link }

func (h simAgentHub) Stream(id string) request.Stream { return h.Link.Stream(id) }

// A simEngine is a fake that has every image, and checks the agent's requests.
type simEngine struct {
	*enginetest.Fake
	d *simDevice
}

func (e simEngine) Pull(ctx context.Context, ref string, auth *engine.RegistryAuth, told func(engine.Progress)) error {
	e.OfferImage(ref, enginetest.Offer{Size: 5 << 20, Delay: 300 * time.Millisecond,
		Program: func(s engine.Spec, _ int) enginetest.Play {
			play := enginetest.Play{MemoryBytes: 8 << 20, StopTakes: time.Second}
			if strings.Contains(ref, "chatty") {
				play.Lines, play.Exec = chatty, parrot
			}
			if endsAtOnce(ref) {
				play.Exits, play.ExitAfter, play.ExitCode = true, time.Second, 1
			}
			return play
		}})
	return e.Fake.Pull(ctx, ref, auth, told)
}

func (e simEngine) find(id string) (engine.Container, bool) {
	list, _ := e.Containers(context.Background(), plan.LabelAgent)
	for _, c := range list {
		if c.ID == id || c.Name == id {
			return c, true
		}
	}
	return engine.Container{}, false
}

// Start counts starts, because a started container must not be started again without a cause.
func (e simEngine) Start(ctx context.Context, id string) error {
	c, ok := e.find(id)
	err := e.Fake.Start(ctx, id)
	if ok && err == nil {
		key := c.Labels[plan.LabelPodUID] + "/" + c.Labels[plan.LabelContainer]
		e.d.mu.Lock()
		e.d.starts[key]++
		n := e.d.starts[key]
		e.d.mu.Unlock()
		if n > 1 && !endsAtOnce(c.Image) {
			e.d.w.look.broken("container %s of pod %s on %s was started %d times without a power cut",
				c.Labels[plan.LabelContainer], c.Labels[plan.LabelPodName], e.d.key, n)
		}
	}
	return err
}

// Stop checks that the agent has to stop the pod.
func (e simEngine) Stop(ctx context.Context, id string, grace time.Duration) error {
	if c, ok := e.find(id); ok {
		e.d.w.look.stopping(e.d, types.UID(c.Labels[plan.LabelPodUID]), c.Labels[plan.LabelPodName])
	}
	return e.Fake.Stop(ctx, id, grace)
}

// A simBoard is the hardware of a simulated device.
type simBoard struct {
	mu      sync.Mutex
	node    string
	machine string
	bootID  int
	pids    bool // has too few process IDs
	sensors bool // has sensors, with good values
}

func newSimBoard(node, machine string) *simBoard {
	return &simBoard{node: node, machine: machine, bootID: 1}
}

func (b *simBoard) set(f func(*simBoard)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// Probe implements agent.Hardware.
func (b *simBoard) Probe(context.Context, string) (hardware.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := hardware.Report{
		Host: hardware.Host{Hostname: b.node, OS: "linux", Arch: "arm64", Variant: "v8", Kernel: "6.12",
			Image:     "Debian GNU/Linux 12 (bookworm)",
			MachineID: b.machine, BootID: fmt.Sprint(b.node, "-", b.bootID), PageSize: 4096},
		Board: hardware.Board{Name: "raspberrypi4", Model: "Raspberry Pi 4 Model B Rev 1.4",
			Compatible: []string{"raspberrypi,4-model-b"}, Serial: b.machine},
		Capacity: hardware.Capacity{CPUs: 4, Memory: 4 << 30, Ephemeral: 29 << 30, Pods: 110},
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"},
			{Type: corev1.NodeHostName, Address: b.node}},
		Clock:        &hardware.Clock{Synced: true},
		MemoryLimits: true,
	}
	if b.sensors {
		r.Temperatures = []hardware.Temperature{{Name: "cpu", Celsius: 51}}
		r.Voltages = []hardware.Voltage{{Name: "EXT5V_V", Volts: 5.1}}
	}
	return r, nil
}

// Look implements agent.Hardware.
func (b *simBoard) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) {
	return d, nil, nil
}

func (b *simBoard) Measure(context.Context, string) hardware.Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	half := func(n int64) hardware.Amount { return hardware.Amount{Available: n / 2, Capacity: n} }
	s := hardware.Stats{Memory: half(4 << 30), NodeFs: half(29 << 30), ImageFs: half(29 << 30),
		NodeFsInodes: half(1 << 20), ImageFsInodes: half(1 << 20), PIDs: half(1 << 15)}
	if b.pids {
		s.PIDs.Available = 1
	}
	if b.sensors {
		s.Busy = time.Since(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))
	}
	return s
}
