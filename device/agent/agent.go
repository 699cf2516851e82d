// Package agent makes a device run its desired state. Package plan compares the desired with the
// running state and returns steps; Agent does them in a loop.
//
// It acts through the container engine (package engine) and adopts its containers by their labels
// after a restart. Package memory stores the desired state first; package link sends status to the
// hub. It never removes a workload because the hub, network, clock, certificate or its own files
// are lost, and never touches a container that it did not create. Package cli runs it.
package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/image"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/probe"
	"flotilla.dev/device/request"
	"flotilla.dev/device/signature"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Version is the agent's version; the linker may set it.
var Version = "0.1.0"

// KubeletVersion is the version that nodes show: the Kubernetes version whose semantics Flotilla
// follows, and Flotilla's own.
func KubeletVersion() string { return "v1.37.0+flotilla." + Version }

// Hardware is the part of package hardware that the agent needs. engineRoot is the engine's image
// directory, or empty without an engine.
type Hardware interface {
	Probe(ctx context.Context, engineRoot string) (hardware.Report, error)
	Measure(ctx context.Context, engineRoot string) hardware.Stats
	Look(hardware.Device) (hardware.Device, []hardware.Node, error) // see hardware.Device.Look
}

// A Hub receives the agent's changes and events (package link). Its methods do not block.
type Hub interface {
	StatusChanged()                  // Agent.Status has changed
	PodsChanged()                    // Agent.Pods has changed
	DesiredStored()                  // Agent.StoredGeneration has changed
	Event(e wire.Event)              // delivery is not guaranteed
	Stream(id string) request.Stream // carries the replies to a request
}

// Config configures an agent. A field is required unless its comment gives a default.
type Config struct {
	Node     string
	Memory   *memory.Memory
	Hardware Hardware
	// retried until it succeeds
	OpenEngine func(context.Context) (engine.Engine, error)
	// hardware.Watch; nil: the hardware is measured at intervals only
	Watch func(context.Context, func()) error
	// hardware.Connected; nil: peripherals are not looked for
	Connected    func(ctx context.Context, list []fleet.Peripheral, held []string) []hardware.Presence
	Policy       plan.Policy
	Images       image.Hub             // says what the hub's images are made of; nil: no hub
	Seccomp      string                // directory of the device owner's seccomp profiles
	AppArmor     string                // directory in which the device's owner lists AppArmor profiles
	Runtimes     []string              // engine runtimes that a RuntimeClass may select, in addition to the default
	SysDir       string                // empty: /sys
	Verify       image.Verify          // checks image signatures; nil: signature.Verify
	Flags        hardware.Limits       // reservations and thresholds from flags; they override the board profile
	Swap         plan.SwapBehavior     // empty: NoSwap
	Topology     plan.TopologyPolicy   // empty: none
	Scope        plan.TopologyScope    // empty: ContainerScope
	CPUManager   plan.CPUManagerPolicy // empty: none
	Registration wire.Registration     // labels and taints for the first status
	VolumesDir   string                // empty: the memory's directory
	// directory for data that must not outlive the boot, on a tmpfs that the agent mounts; empty:
	// VolumesDir/volatile, without a mount
	MemoryDir string
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	// whether the device has an address now; nil: read from its interfaces, or always true if Dial
	// is set
	HasAddress func(address string) bool
	Log        *slog.Logger
	// time since the boot with the hardware's boot id, on the monotonic clock; nil: the system's
	Uptime  func() time.Duration
	Journal *request.Journal // the newest lines of Log, for the hub; nil: none are stored
}

// An Agent is the agent of one device.
type Agent struct {
	c    Config
	disk notebook
	log  *slog.Logger

	inbox        chan func() // functions that the loop runs
	ended        chan struct{}
	work         sync.WaitGroup
	images       *image.Puller
	statusKnown  chan struct{}             // see StatusKnown
	lastCycle    atomic.Pointer[time.Time] // start of the loop's last cycle
	published    published
	requests     *request.Server
	prober       probe.Prober
	usages       usages
	preStops     preStopHooks
	desiredMutex sync.Mutex
	networkMutex sync.RWMutex // read-locked while containers join the pods' network

	loop loop // only the loop's goroutine uses it
}

// published is state that any goroutine may read.
type published struct {
	sync.Mutex
	status            corev1.NodeStatus
	hardware          []byte // the newest hardware report
	announcedHardware []byte // the hardware report of the last announced change
	last              *hardware.Report
	machineID         string
	profile           string // the board profile with which status was computed
	pods              []wire.PodStatus
	volumes           []wire.VolumeState
	vitals            *wire.Vitals
	firmware          *wire.FirmwareStatus
	upgrade           *wire.UpgradeStatus
	gen               int64
	hub               Hub
	shutdown          string
}

// New creates an agent. Run runs it.
func New(c Config) (*Agent, error) {
	if c.Node == "" || c.Memory == nil || c.Hardware == nil || c.OpenEngine == nil {
		return nil, errors.New("make an agent: Node, Memory, Hardware and OpenEngine are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.HasAddress == nil {
		if c.HasAddress = probe.HasAddress; c.Dial != nil {
			c.HasAddress = func(string) bool { return true }
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.VolumesDir == "" {
		c.VolumesDir = c.Memory.Dir()
	}
	mayMount := c.MemoryDir != ""
	if !mayMount {
		c.MemoryDir = filepath.Join(c.VolumesDir, "volatile")
	}
	if c.SysDir == "" {
		c.SysDir = "/sys"
	}
	if c.Verify == nil {
		c.Verify = signature.Verify
	}
	a := &Agent{
		c: c, log: c.Log, disk: notebook{volume.Disk{Root: c.VolumesDir, Memory: c.MemoryDir, MayMount: mayMount,
			Log: c.Log}},
		inbox: make(chan func(), 16), ended: make(chan struct{}), statusKnown: make(chan struct{}),
		prober: probe.Prober{Dial: c.Dial, HasAddress: c.HasAddress},
	}
	a.images = image.NewPuller(image.Config{Policy: c.Policy, Memory: c.Memory, Verify: c.Verify, Event: a.event,
		Log: c.Log, Hub: c.Images, Room: func(ctx context.Context, root string) (int64, bool) {
			fs := c.Hardware.Measure(ctx, root).ImageFs
			return fs.Available, fs.Problem == "" && fs.Capacity > 0
		}, Pulling: a.pulling})
	a.requests = request.NewServer(request.Device{Running: a.running, Log: a.logOf, Usage: a.usage,
		ExecBegan: a.noteExec, ExecEnded: a.forgetExec, Journal: c.Journal, Stopping: a.ended, Logger: c.Log})
	a.loop.o.Node = plan.Facts{Name: c.Node, StateDir: StateDirID(c.Memory.Dir())}
	if c.Uptime == nil {
		c.Uptime = uptime
	}
	a.loop.o.Node.Booted = time.Now().Add(-c.Uptime())
	a.loop.o.Policy = c.Policy
	a.loop.o.Node.AppArmor = enforcesAppArmor(c.SysDir)
	a.loop.o.Node.CPUManager, a.loop.o.Node.CPUs = c.CPUManager, onlineCPUs(c.SysDir)
	a.loop.o.Node.SwapUse, a.loop.o.Node.Topology, a.loop.o.Node.Scope = c.Swap, c.Topology, c.Scope
	a.loop.o.Pods = map[types.UID]*plan.Record{}
	a.loop.cancels = map[flight]context.CancelFunc{}
	a.loop.podConditions = map[types.UID][]corev1.PodCondition{}
	a.loadInfo()
	d, ok := c.Memory.Desired()
	a.loop.desiredKnown = ok
	a.loop.desired, a.loop.o.Requested = plan.SplitGrants(d)
	a.loop.o.Node.Generation = a.loop.desired.Generation
	for _, n := range c.Memory.Notes() {
		r := a.loop.o.RecordOf(n.UID)
		r.Admitted, r.Final = true, n.Status.DeepCopy()
	}
	a.judgeDesired()
	a.published.gen = a.loop.desired.Generation
	a.published.pods = plan.Unobserved(a.loop.desired, "")
	return a, nil
}

// uptime is the time since the boot on the monotonic clock.
func uptime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0 // cannot happen; with 0 the deadlines of an earlier agent's pods start again
	}
	return time.Duration(t.Nano())
}

// defaultLabels are the labels of the registration and those that every node has.
func (a *Agent) defaultLabels() map[string]string {
	out := maps.Clone(a.c.Registration.Labels)
	if out == nil {
		out = map[string]string{}
	}
	r := a.published.last
	if r == nil {
		return out
	}
	for k, v := range map[string]string{
		corev1.LabelHostname: a.c.Node, corev1.LabelOSStable: a.published.status.NodeInfo.OperatingSystem,
		corev1.LabelArchStable: a.published.status.NodeInfo.Architecture, fleet.LabelBoard: r.Board.Name,
	} {
		if v != "" {
			out[k] = v
		}
	}
	maps.Copy(out, hardware.Labels(*r))
	return out
}

// StateDirID is the value of LabelStateDir for a state directory. It distinguishes the containers
// of two agents with the same node name.
func StateDirID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:6])
}

// SetHub sets the receiver of changes and events.
func (a *Agent) SetHub(h Hub) {
	a.published.Lock()
	defer a.published.Unlock()
	a.published.hub = h
}

// StatusKnown is closed once the agent has queried its hardware and engine, even if a query failed.
// Before that the status is not worth sending.
func (a *Agent) StatusKnown() <-chan struct{} { return a.statusKnown }

// LastCycle is the start of the loop's last cycle. A loop without a cycle for over 15 s is stuck.
func (a *Agent) LastCycle() time.Time {
	if t := a.lastCycle.Load(); t != nil {
		return *t // the time has its monotonic reading, so a clock that jumps has no effect
	}
	return time.Time{}
}

// Status is the device's status without its pods, and without boot, seq and time.
func (a *Agent) Status() wire.Status {
	a.published.Lock()
	defer a.published.Unlock()
	st := wire.Status{
		MachineID: a.published.machineID, AgentVersion: Version, Registration: a.c.Registration,
		Status: *a.published.status.DeepCopy(), Hardware: a.published.hardware, Volumes: a.published.volumes,
		Vitals:   a.published.vitals,
		Firmware: a.published.firmware, Upgrade: a.published.upgrade,
		Profile: new(a.published.profile),
	}
	st.Registration.Labels = a.defaultLabels()
	if a.published.shutdown != "" {
		for i := range st.Status.Conditions {
			if c := &st.Status.Conditions[i]; c.Type == corev1.NodeReady {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, "NodeShutdown", a.published.shutdown
			}
		}
	}
	return st
}

// Pods is the status of every pod on the device, without boot and seq.
func (a *Agent) Pods() wire.Pods {
	a.published.Lock()
	defer a.published.Unlock()
	return wire.Pods{Generation: a.published.gen, Pods: a.published.pods}
}

// StoredGeneration is the generation of the desired state on the disk.
func (a *Agent) StoredGeneration() int64 {
	d, _ := a.c.Memory.Desired()
	return d.Generation
}

// Shutdown makes the status say that the device shuts down in an orderly way. The workloads keep
// running.
func (a *Agent) Shutdown(why string) {
	a.published.Lock()
	defer a.published.Unlock()
	a.published.shutdown = why
}

// SetFirmware sets the progress of the boot configuration.
func (a *Agent) SetFirmware(st *wire.FirmwareStatus) {
	a.setStatus(func() { a.published.firmware = st })
}

// SetUpgrade sets the progress of the upgrade of this agent.
func (a *Agent) SetUpgrade(st *wire.UpgradeStatus) {
	a.setStatus(func() { a.published.upgrade = st })
}

func (a *Agent) setStatus(set func()) {
	a.published.Lock()
	set()
	hub := a.published.hub
	a.published.Unlock()
	if hub != nil {
		hub.StatusChanged()
	}
}

// Request serves a request of the hub in the background. Package cli handles requests about the
// link and the certificate.
func (a *Agent) Request(id string, r wire.Request) {
	a.published.Lock()
	hub := a.published.hub
	a.published.Unlock()
	if hub != nil {
		a.requests.Serve(id, r, hub.Stream)
	}
}

// post runs f in the loop. If the loop has ended, f does not run.
func (a *Agent) post(f func()) {
	select {
	case a.inbox <- f:
	case <-a.ended:
	}
}

// pulling shows the progress of a container's pull in its status.
func (a *Agent) pulling(pod types.UID, container, progress string) {
	a.post(func() {
		if r := a.loop.o.Pods[pod]; r != nil {
			r.ContainerOf(container).Pulling = progress
		}
	})
}

// event logs an event and sends it to the hub. With a nil pod, it is an event of the node.
func (a *Agent) event(kind, reason string, pod *corev1.Pod, container, format string, args ...any) {
	e := wire.Event{Time: time.Now(), Type: kind, Reason: reason, Message: fmt.Sprintf(format, args...),
		Container: container}
	if pod != nil {
		e.PodUID, e.Namespace, e.Pod = pod.UID, pod.Namespace, pod.Name
	}
	a.published.Lock()
	hub := a.published.hub
	a.published.Unlock()
	if hub != nil {
		hub.Event(e)
	}
	level := slog.LevelInfo
	if kind == corev1.EventTypeWarning {
		level = slog.LevelWarn
	}
	a.log.Log(context.Background(), level, e.Message, "reason", reason, "pod", e.Namespace+"/"+e.Pod, "container",
		container)
}

// pauseFile writes the sandbox's program to the disk.
func (a *Agent) pauseFile() (string, error) { return pause.Write(a.disk.Root, runtime.GOARCH) }
