package simulate

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
)

// A board is a board that is made up. It implements agent.Hardware.
type board struct {
	name, model, compatible string
	arch, variant           string
	cpus, mib, gib          int64 // processors, memory, disk

	node string
	n    int
}

// boards are what fleets are made of, roughly as often.
var boards = []board{
	{name: "raspberrypi4", model: "Raspberry Pi 4 Model B Rev 1.4", compatible: "raspberrypi,4-model-b", arch: "arm64", variant: "v8", cpus: 4, mib: 3792, gib: 29},
	{name: "raspberrypi5", model: "Raspberry Pi 5 Model B Rev 1.0", compatible: "raspberrypi,5-model-b", arch: "arm64", variant: "v8", cpus: 4, mib: 8059, gib: 58},
	{name: "raspberrypi3", model: "Raspberry Pi 3 Model B Plus Rev 1.3", compatible: "raspberrypi,3-model-b-plus", arch: "arm64", variant: "v8", cpus: 4, mib: 905, gib: 14},
	{name: "raspberrypi4", model: "Raspberry Pi 4 Model B Rev 1.4", compatible: "raspberrypi,4-model-b", arch: "arm64", variant: "v8", cpus: 4, mib: 1846, gib: 29},
	{name: "generic-x86-64", model: "Industrial PC", arch: "amd64", cpus: 4, mib: 7812, gib: 117},
	{name: "raspberrypizero2w", model: "Raspberry Pi Zero 2 W Rev 1.0", compatible: "raspberrypi,model-zero-2-w", arch: "arm64", variant: "v8", cpus: 4, mib: 416, gib: 14},
	{name: "raspberrypi4", model: "Raspberry Pi 4 Model B Rev 1.2", compatible: "raspberrypi,4-model-b", arch: "arm", variant: "v7", cpus: 4, mib: 3792, gib: 29},
	{name: "beaglebone-black", model: "TI AM335x BeagleBone Black", compatible: "ti,am335x-bone-black", arch: "arm", variant: "v7", cpus: 1, mib: 484, gib: 3},
}

// began is when the made-up processors began to count.
var began = time.Now()

func boardOf(n int, node string) *board {
	b := boards[(n-1)%len(boards)]
	b.n, b.node = n, node
	return &b
}

// Probe implements agent.Hardware.
func (b *board) Probe(context.Context, string) (hardware.Report, error) {
	r := hardware.Report{
		Host: hardware.Host{Hostname: b.node, OS: "linux", Arch: b.arch, Variant: b.variant, Kernel: "6.12.34-simulated", Image: "Debian GNU/Linux 12 (bookworm)",
			MachineID: fmt.Sprintf("%016x", b.n), BootID: fmt.Sprintf("simulated-%d", b.n), PageSize: 4096},
		Board:        hardware.Board{Name: b.name, Model: b.model, Serial: fmt.Sprintf("%016x", b.n)},
		Capacity:     hardware.Capacity{CPUs: b.cpus, Memory: b.mib << 20, Ephemeral: b.gib << 30, Pods: 110},
		Addresses:    []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.%d.%d.%d", 100+b.n/62500, b.n/250%250, b.n%250+1)}, {Type: corev1.NodeHostName, Address: b.node}},
		Temperatures: []hardware.Temperature{{Name: "cpu", Celsius: 40 + float64(b.n%17)}},
		Clock:        &hardware.Clock{Synced: true, RTC: b.arch == "amd64"},
		MemoryLimits: true,
	}
	if b.compatible != "" {
		r.Board.Compatible = []string{b.compatible}
	}
	if strings.HasPrefix(b.name, "raspberrypi") {
		r.Power = &hardware.Power{}
	}
	return r, nil
}

// Look implements agent.Hardware.
func (b *board) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) { return d, nil, nil }

// Measure implements agent.Hardware: there is always enough.
func (b *board) Measure(context.Context, string) hardware.Stats {
	half := func(n int64) hardware.Amount { return hardware.Amount{Available: n / 2, Capacity: n} }
	return hardware.Stats{Memory: half(b.mib << 20), NodeFs: half(b.gib << 30), ImageFs: half(b.gib << 30),
		NodeFsInodes: half(1 << 20), ImageFsInodes: half(1 << 20), PIDs: half(1 << 15),
		Busy: time.Since(began) * time.Duration(b.cpus) * time.Duration(5+b.n%20) / 100}
}

// An obliging engine has every image that is asked for.
type obliging struct{ *enginetest.Twin }

func newEngine(b *board) obliging {
	t := enginetest.New()
	t.SetInfo(engine.Info{Name: "docker", Version: "20.10.24", APIVersion: "1.41", OS: "linux", Arch: b.arch, Variant: b.variant,
		Root: "/var/lib/docker", Socket: "memory", MemLimit: true, CPULimit: true, PidsLimit: true})
	return obliging{t}
}

// Pull implements engine.Engine.
func (o obliging) Pull(ctx context.Context, ref string, auth *engine.RegistryAuth, told func(engine.Progress)) error {
	o.OfferImage(ref, enginetest.Offer{Size: 5 << 20, Program: program})
	return o.Twin.Pull(ctx, ref, auth, told)
}

// program is what every simulated container does: it says hello and waits. Every port
// of it is open, and commands can be run in it.
func program(s engine.Spec, run int) enginetest.Play {
	return enginetest.Play{
		Lines:       []enginetest.Line{{Text: fmt.Sprintf("simulated %s, start %d", s.Name, run+1)}},
		MemoryBytes: 8 << 20, MilliCPU: 5,
		Exec: newShell(s).exec, Dial: enginetest.Answering(""),
	}
}

// answering is the network of simulated pods, for probes: it is the same.
func answering(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	return enginetest.Answering("")(ctx, number)
}
