package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
)

// A board is a simulated board. It implements agent.Hardware.
type board struct {
	name, model, compatible string
	arch, variant           string
	cpus, mib, gib          int64 // number of processors, MiB of memory, GiB of disk

	node string
	n    int

	mu    sync.Mutex
	boots int
	since time.Time // time of the present boot
	now   boardState
	seen  hardware.Power // power problems since the boot
	look  func()         // notifies the agent of a change; may be nil
}

// boardState is the state of a board that a script sets.
type boardState struct {
	low, throttles       bool // low supply voltage; throttled processor
	celsius              float64
	disk, memory         bool // shortage of disk; shortage of memory
	diskFree, memoryFree float64
}

// boards are the boards of the simulated fleet, in realistic proportions.
var boards = []board{
	{name: "raspberrypi4", model: "Raspberry Pi 4 Model B Rev 1.4", compatible: "raspberrypi,4-model-b", arch: "arm64",
		variant: "v8", cpus: 4, mib: 3792, gib: 29},
	{name: "raspberrypi5", model: "Raspberry Pi 5 Model B Rev 1.0", compatible: "raspberrypi,5-model-b", arch: "arm64",
		variant: "v8", cpus: 4, mib: 8059, gib: 58},
	{name: "raspberrypi3", model: "Raspberry Pi 3 Model B Plus Rev 1.3", compatible: "raspberrypi,3-model-b-plus",
		arch: "arm64", variant: "v8", cpus: 4, mib: 905, gib: 14},
	{name: "raspberrypi4", model: "Raspberry Pi 4 Model B Rev 1.4", compatible: "raspberrypi,4-model-b", arch: "arm64",
		variant: "v8", cpus: 4, mib: 1846, gib: 29},
	{name: "generic-x86-64", model: "Industrial PC", arch: "amd64", cpus: 4, mib: 7812, gib: 117},
	{name: "raspberrypizero2w", model: "Raspberry Pi Zero 2 W Rev 1.0", compatible: "raspberrypi,model-zero-2-w",
		arch: "arm64", variant: "v8", cpus: 4, mib: 416, gib: 14},
	{name: "raspberrypi4", model: "Raspberry Pi 4 Model B Rev 1.2", compatible: "raspberrypi,4-model-b", arch: "arm",
		variant: "v7", cpus: 4, mib: 3792, gib: 29},
	{name: "beaglebone-black", model: "TI AM335x BeagleBone Black", compatible: "ti,am335x-bone-black", arch: "arm",
		variant: "v7", cpus: 1, mib: 484, gib: 3},
}

// began is the time from which the simulated processors count their busy time.
var began = time.Now()

func boardOf(n int, node string) *board {
	of := &boards[(n-1)%len(boards)]
	return &board{name: of.name, model: of.model, compatible: of.compatible, arch: of.arch, variant: of.variant,
		cpus: of.cpus, mib: of.mib, gib: of.gib, n: n, node: node, since: time.Now()}
}

// pi reports whether the board is a Raspberry Pi, whose firmware reports the supply voltage.
func (b *board) pi() bool { return strings.HasPrefix(b.name, "raspberrypi") }

// setState sets the state of the board and notifies the agent, as the kernel does.
func (b *board) setState(f boardState) {
	b.mu.Lock()
	look := b.look
	if b.now == f {
		look = nil
	}
	b.now = f
	b.seen.UnderVoltageSeen = b.seen.UnderVoltageSeen || f.low
	b.seen.ThrottledSeen = b.seen.ThrottledSeen || f.throttles
	b.seen.SoftTemperatureSeen = b.seen.SoftTemperatureSeen || f.throttles
	b.mu.Unlock()
	if look != nil {
		look()
	}
}

// boot records a new boot of the board.
func (b *board) boot() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boots++
	b.since = time.Now()
	b.seen = hardware.Power{UnderVoltageSeen: b.now.low, ThrottledSeen: b.now.throttles,
		SoftTemperatureSeen: b.now.throttles}
}

// uptime returns the time since the boot.
func (b *board) uptime() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.since)
}

// watch implements the agent's Config.Watch.
func (b *board) watch(ctx context.Context, look func()) error {
	b.mu.Lock()
	b.look = look
	b.mu.Unlock()
	<-ctx.Done()
	return nil
}

// Probe implements agent.Hardware.
func (b *board) Probe(context.Context, string) (hardware.Report, error) {
	b.mu.Lock()
	f, boots, power := b.now, b.boots, b.seen
	b.mu.Unlock()
	boot := fmt.Sprintf("simulated-%d", b.n)
	if boots > 0 {
		boot += fmt.Sprintf("-%d", boots)
	}
	r := hardware.Report{
		Host: hardware.Host{Hostname: b.node, OS: "linux", Arch: b.arch, Variant: b.variant, Kernel: "6.12.34-simulated",
			Image:     "Debian GNU/Linux 12 (bookworm)",
			MachineID: fmt.Sprintf("%016x", b.n), OSMachineID: fmt.Sprintf("%032x", b.n), SystemUUID: fmt.Sprintf("%016x", b.n),
			BootID: boot, PageSize: 4096},
		Board:    hardware.Board{Name: b.name, Model: b.model, Serial: fmt.Sprintf("%016x", b.n)},
		Capacity: hardware.Capacity{CPUs: b.cpus, Memory: b.mib << 20, Ephemeral: b.gib << 30, Pods: 110},
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("10.%d.%d.%d", 100+b.n/62500, b.n/250%250, b.n%250+1)}, {Type: corev1.NodeHostName,
			Address: b.node}},
		Temperatures: []hardware.Temperature{{Name: "cpu", Celsius: 40 + float64(b.n%17) + 1.4*b.wave(day) + b.wave(hour)}},
		Clock:        &hardware.Clock{Synced: true, RTC: b.arch == "amd64"},
		MemoryLimits: true,
	}
	if b.compatible != "" {
		r.Board.Compatible = []string{b.compatible}
	}
	if f.celsius != 0 {
		r.Temperatures[0].Celsius = f.celsius
	}
	if b.pi() {
		power.UnderVoltage, power.Throttled, power.SoftTemperature = f.low, f.throttles, f.throttles
		r.Power = &power
	}
	if b.name == "raspberrypi5" {
		r.Voltages = []hardware.Voltage{{Name: "ext5v", Volts: 5.08 + .04*b.wave(hour)}}
		if f.low {
			r.Voltages[0].Volts = 4.58
		}
	}
	return r, nil
}

// Look implements agent.Hardware.
func (b *board) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) { return d, nil, nil }

// Periods after which the simulated values repeat.
const day, hour = 24 * time.Hour, time.Hour

// phase returns the board's present position in a period; it differs between boards.
func (b *board) phase(period time.Duration) float64 {
	return 2 * math.Pi * (float64(time.Since(began)%period)/float64(period) + float64(b.n%31)/31)
}

// wave oscillates between -1 and 1 with this period.
func (b *board) wave(period time.Duration) float64 { return math.Sin(b.phase(period)) }

// Measure implements agent.Hardware. Resources are sufficient unless a script sets otherwise. The
// processor's load m oscillates within an hour; Busy is its integral.
func (b *board) Measure(context.Context, string) hardware.Stats {
	half := func(n int64) hardware.Amount { return hardware.Amount{Available: n / 2, Capacity: n} }
	left := func(n int64, share float64) hardware.Amount {
		return hardware.Amount{Available: int64(float64(n) * share), Capacity: n}
	}
	b.mu.Lock()
	f := b.now
	b.mu.Unlock()
	disk, memory := left(b.gib<<30, .5+.03*b.wave(day)), left(b.mib<<20, .5+.06*b.wave(hour)+.04*b.wave(day))
	if f.disk {
		disk = left(b.gib<<30, f.diskFree)
	}
	if f.memory {
		memory = left(b.mib<<20, f.memoryFree)
	}
	m := float64(5+b.n%20) / 100 * float64(b.cpus)
	busy := m * (float64(time.Since(began)) + .7*float64(hour)/(2*math.Pi)*(1-math.Cos(b.phase(hour))))
	return hardware.Stats{Memory: memory, NodeFs: disk, ImageFs: disk,
		NodeFsInodes: half(1 << 20), ImageFsInodes: half(1 << 20), PIDs: half(1 << 15), Busy: time.Duration(busy)}
}

func newEngine(b *board, trouble func(verb string, is func(activeEvent) bool) (effect, bool)) *stocked {
	t := enginetest.New()
	t.SetInfo(engine.Info{Name: "docker", Version: "20.10.24", APIVersion: "1.41", OS: "linux", Arch: b.arch,
		Variant: b.variant,
		Root:    "/var/lib/docker", Socket: "memory", MemLimit: true, CPULimit: true, PidsLimit: true})
	return &stocked{t, trouble}
}

// answering is the network through which the agent probes simulated pods: every port answers.
func answering(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	return enginetest.Answering("")(ctx, number)
}
