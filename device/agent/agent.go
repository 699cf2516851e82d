// Package agent makes a device run what is desired of it: package plan compares desired
// with running and says what to do, and Agent does it, step by step, over and over.
//
// Doing goes through the container engine (package
// engine), whose containers' labels are all that the agent needs to adopt them after
// its own restart. What is desired comes from package memory, which has stored it
// before the agent sees it; news goes out through package link. The agent never
// removes a workload because it lost the hub, the network, the clock, a certificate
// or its own files, and it never touches a container that it did not make.
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

// KubeletVersion is the version as nodes show it: the Kubernetes whose node
// semantics we follow, and ours.
func KubeletVersion() string { return "v1.37.0+flotilla." + Version }

// Hardware is what the agent asks of package hardware. engineRoot is where the engine
// keeps its images, empty while there is no engine.
type Hardware interface {
	Probe(ctx context.Context, engineRoot string) (hardware.Report, error)
	Measure(ctx context.Context, engineRoot string) hardware.Stats
	Look(hardware.Device) (hardware.Device, []hardware.Node, error) // see hardware.Device.Look
}

// A Hub is to whom the agent tells its news (package link). Its methods do not wait.
type Hub interface {
	StatusChanged()                  // Agent.Status differs
	PodsChanged()                    // Agent.Pods differs
	DesiredStored()                  // Agent.StoredGeneration differs
	Event(e wire.Event)              // something worth telling; it may be lost
	Stream(id string) request.Stream // carries the replies to a request
}

// Config is what an agent needs to know. Fields without a word on their zero value
// are required.
type Config struct {
	Node     string
	Memory   *memory.Memory
	Hardware Hardware
	// tried until it works
	OpenEngine func(context.Context) (engine.Engine, error)
	// hardware.Watch; nil: the hardware is looked at from time to time only
	Watch func(context.Context, func()) error
	// hardware.Connected; nil: no peripherals are looked for
	Connected    func(ctx context.Context, list []fleet.Peripheral, held []string) []hardware.Presence
	Policy       plan.Policy
	Seccomp      string                // the folder of the device owner's seccomp profiles
	AppArmor     string                // the folder in which the device's owner lists AppArmor profiles
	Runtimes     []string              // of the engine's, beside its default, that pods may have by a RuntimeClass
	SysDir       string                // empty: /sys
	Verify       image.Verify          // of images' signatures; nil: signature.Verify
	Flags        hardware.Limits       // what flags say of reservations and thresholds; laid over the board profile
	Swap         plan.SwapBehavior     // of containers; empty: NoSwap
	Topology     plan.TopologyPolicy   // empty: none
	Scope        plan.TopologyScope    // empty: ContainerScope
	CPUManager   plan.CPUManagerPolicy // empty: none
	Registration wire.Registration     // labels and taints for the first status
	VolumesDir   string                // empty: the memory's directory
	// for what must not outlive the boot, where the agent mounts; empty: VolumesDir/volatile, and
	// it mounts nothing
	MemoryDir string
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	// whether the device has an address now; nil: as its interfaces say, but any where Dial is set
	Holds func(address string) bool
	Log   *slog.Logger
	// since the boot that the hardware's boot id names, on the monotonic clock; nil: the system's
	Uptime  func() time.Duration
	Journal *request.Journal // what Log says, for those who ask; nil: nothing is kept
}

// An Agent is the agent of one device.
type Agent struct {
	c    Config
	disk notebook
	log  *slog.Logger

	inbox    chan func() // what happened, to be taken in by the loop
	ended    chan struct{}
	work     sync.WaitGroup
	images   *image.Puller
	first    chan struct{}             // see Looked
	beat     atomic.Pointer[time.Time] // the loop's last turn
	told     published
	requests *request.Server
	prober   probe.Prober
	usages   usages
	stops    stopping
	storing  sync.Mutex
	joining  sync.RWMutex // held for reading while a container joins the pods' network: nothing removes it under it

	loop loop // only the loop's goroutine looks at it
}

// published is what others may read at any time.
type published struct {
	sync.Mutex
	status    corev1.NodeStatus
	hardware  []byte // the newest
	news      []byte // that the hub was told of because something had changed
	last      *hardware.Report
	machineID string
	profile   string // under which status was computed
	pods      []wire.PodStatus
	volumes   []wire.VolumeState
	vitals    *wire.Vitals
	firmware  *wire.FirmwareStatus
	gen       int64
	hub       Hub
	shutdown  string
}

// New makes an agent; Run runs it.
func New(c Config) (*Agent, error) {
	if c.Node == "" || c.Memory == nil || c.Hardware == nil || c.OpenEngine == nil {
		return nil, errors.New("make an agent: Node, Memory, Hardware and OpenEngine are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Holds == nil {
		if c.Holds = probe.Holds; c.Dial != nil {
			c.Holds = func(string) bool { return true }
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
		inbox: make(chan func(), 16), ended: make(chan struct{}), first: make(chan struct{}),
		prober: probe.Prober{Dial: c.Dial, Holds: c.Holds},
	}
	a.images = image.NewPuller(image.Config{Policy: c.Policy, Memory: c.Memory, Verify: c.Verify, Event: a.event,
		Log: c.Log})
	a.requests = request.NewServer(request.Device{Running: a.running, Log: a.logOf, Usage: a.usage,
		ExecBegan: a.noteExec, ExecEnded: a.strikeExec, Journal: c.Journal, Stopping: a.ended, Logger: c.Log})
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
	a.loop.podTimes = map[types.UID][]corev1.PodCondition{}
	a.recollect()
	d, known := c.Memory.Desired()
	a.loop.known = known
	a.loop.desired, a.loop.o.Asked = plan.SplitGrants(d)
	a.loop.o.Node.Generation = a.loop.desired.Generation
	for _, n := range c.Memory.Notes() {
		r := a.loop.o.RecordOf(n.UID)
		r.Admitted, r.Final = true, n.Status.DeepCopy()
	}
	a.judge()
	a.told.gen = a.loop.desired.Generation
	a.told.pods = plan.Unobserved(a.loop.desired, "")
	return a, nil
}

// uptime is the time since the boot on the clock that nobody sets.
func uptime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0 // it never fails; pods of an earlier agent would count from its start
	}
	return time.Duration(t.Nano())
}

// defaultLabels are the labels of the registration with those that every node has.
func (a *Agent) defaultLabels() map[string]string {
	out := maps.Clone(a.c.Registration.Labels)
	if out == nil {
		out = map[string]string{}
	}
	r := a.told.last
	if r == nil {
		return out
	}
	for k, v := range map[string]string{
		corev1.LabelHostname: a.c.Node, corev1.LabelOSStable: a.told.status.NodeInfo.OperatingSystem,
		corev1.LabelArchStable: a.told.status.NodeInfo.Architecture, fleet.LabelBoard: r.Board.Name,
	} {
		if v != "" {
			out[k] = v
		}
	}
	maps.Copy(out, hardware.Labels(*r))
	return out
}

// StateDirID is the value of LabelStateDir for a state directory. It the containers of two agents
// of one name apart.
func StateDirID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:6])
}

// SetHub says to whom news goes.
func (a *Agent) SetHub(h Hub) {
	a.told.Lock()
	defer a.told.Unlock()
	a.told.hub = h
}

// Looked is closed when the agent has looked at its hardware and asked its engine, or
// has found that it cannot: from then on its status is worth sending.
func (a *Agent) Looked() <-chan struct{} { return a.first }

// Turned is when the loop last took a turn: a loop that does not turn is stuck. It
// turns at least every 15 s.
func (a *Agent) Turned() time.Time {
	if t := a.beat.Load(); t != nil {
		return *t // with its monotonic reading: a clock that jumps is no sign of being stuck
	}
	return time.Time{}
}

// Status is the whole truth about the device but its pods, without boot, seq and time.
func (a *Agent) Status() wire.Status {
	a.told.Lock()
	defer a.told.Unlock()
	st := wire.Status{
		MachineID: a.told.machineID, AgentVersion: Version, Registration: a.c.Registration,
		Status: *a.told.status.DeepCopy(), Hardware: a.told.hardware, Volumes: a.told.volumes, Vitals: a.told.vitals,
		Firmware: a.told.firmware,
		Profile:  new(a.told.profile),
	}
	st.Registration.Labels = a.defaultLabels()
	if a.told.shutdown != "" {
		for i := range st.Status.Conditions {
			if c := &st.Status.Conditions[i]; c.Type == corev1.NodeReady {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, "NodeShutdown", a.told.shutdown
			}
		}
	}
	return st
}

// Pods is every pod that the device holds, without boot and seq.
func (a *Agent) Pods() wire.Pods {
	a.told.Lock()
	defer a.told.Unlock()
	return wire.Pods{Generation: a.told.gen, Pods: a.told.pods}
}

// StoredGeneration is the generation of the desired state on the disk.
func (a *Agent) StoredGeneration() int64 {
	d, _ := a.c.Memory.Desired()
	return d.Generation
}

// Shutdown makes the status say that the device is being shut down in an orderly
// way. Workloads keep running.
func (a *Agent) Shutdown(why string) {
	a.told.Lock()
	defer a.told.Unlock()
	a.told.shutdown = why
}

// SetFirmware says how far the device is with its boot configuration.
func (a *Agent) SetFirmware(st *wire.FirmwareStatus) {
	a.told.Lock()
	a.told.firmware = st
	hub := a.told.hub
	a.told.Unlock()
	if hub != nil {
		hub.StatusChanged()
	}
}

// Request serves a request of the hub in the background, but those about the link and the
// certificate.
func (a *Agent) Request(id string, r wire.Request) {
	a.told.Lock()
	hub := a.told.hub
	a.told.Unlock()
	if hub != nil {
		a.requests.Serve(id, r, hub.Stream)
	}
}

// post hands something to the loop; after its end nothing happens any more.
func (a *Agent) post(f func()) {
	select {
	case a.inbox <- f:
	case <-a.ended:
	}
}

// event tells the hub something about a pod or, with a nil pod, about the node.
func (a *Agent) event(kind, reason string, pod *corev1.Pod, container, format string, args ...any) {
	e := wire.Event{Time: time.Now(), Type: kind, Reason: reason, Message: fmt.Sprintf(format, args...),
		Container: container}
	if pod != nil {
		e.PodUID, e.Namespace, e.Pod = pod.UID, pod.Namespace, pod.Name
	}
	a.told.Lock()
	hub := a.told.hub
	a.told.Unlock()
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

// pauseFile is the sandbox's program on the device's disk.
func (a *Agent) pauseFile() (string, error) { return pause.Write(a.disk.Root, runtime.GOARCH) }
