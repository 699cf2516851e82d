package sim

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A bootBoard simulates the boot of a Raspberry Pi: its files, and a firmware that uses tryboot.txt
// once. The boot helper and the agent's runner are real.
type bootBoard struct {
	d *simDevice

	mu     sync.Mutex
	files  map[string][]byte
	boots  int
	try    bool // the reboot had the argument "0 tryboot"
	trying bool // this boot is a trial
	line   string
	wants  bool      // a reboot was requested
	back   time.Time // end of the reboot; zero: the board runs
	cursed string    // a word on the kernel's command line that breaks the network
	stop   func()    // stops the helper and the runner
}

const bootDir = "/boot/firmware"

func newBootBoard(d *simDevice) *bootBoard {
	b := &bootBoard{d: d, files: map[string][]byte{
		bootDir + "/config.txt":  []byte("# For more options see the documentation\ndtparam=audio=on\n\n[all]\n"),
		bootDir + "/cmdline.txt": []byte("console=tty1 root=PARTUUID=4e639091-02 rootfstype=ext4 rootwait quiet\n"),
	}}
	b.boot()
	b.run()
	return b
}

// boot simulates the firmware.
func (b *bootBoard) boot() {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, there := b.files[bootDir+"/tryboot.txt"]
	b.trying = b.try && there
	if b.try, b.wants, b.back = false, false, (time.Time{}); !b.trying {
		text = b.files[bootDir+"/config.txt"]
	}
	line := "cmdline.txt"
	for l := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "cmdline="); ok {
			line = name
		}
	}
	b.line = string(b.files[bootDir+"/"+line])
	b.boots++
}

// run starts the helper, like its early unit, and the agent's runner.
func (b *bootBoard) run() {
	t := b.d.w.t
	helper, err := boothelper.New(b, b, "/var/helper")
	if err == nil {
		err = helper.Settle()
	}
	if err == nil {
		err = helper.Leave()
	}
	if err != nil {
		t.Errorf("%s: %v", b.d.name, err)
	}
	a, l, mem := b.d.agent, b.d.link, b.d.mem
	r := &firmware.Runner{
		Node: b.d.name, Disk: b, Dir: "/var/agent", Log: b.d.w.log.With("device", b.d.name), Report: a.SetFirmware,
		Ask: func(_ context.Context, q boothelper.Request) (boothelper.Reply, error) {
			a := helper.Do(q)
			return a, a.Err()
		},
		Desired: func() (*wire.Firmware, []byte) {
			d, _ := mem.Desired()
			return d.Firmware, d.FirmwareKey
		},
		Health: func(context.Context) firmware.Health {
			f := firmware.Health{Disk: func() string { return "" }, Engine: "the agent has not checked yet"}
			f.Hub, _ = l.Online()
			for _, c := range a.Status().Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					f.Engine = ""
				}
			}
			return f
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", b.d.name, err)
		}
	}
}

// live reboots the board when a reboot is requested. dark: the site has no network.
func (b *bootBoard) live(dark bool) {
	b.mu.Lock()
	wants, back := b.wants, b.back
	b.mu.Unlock()
	switch {
	case back.IsZero() && wants:
		b.stop()
		b.d.powerCut()
		b.mu.Lock()
		b.back = time.Now().Add(40 * time.Second)
		b.mu.Unlock()
	case !back.IsZero() && !time.Now().Before(back):
		b.boot()
		b.d.powerOn()
		if dark || b.isCursed() {
			b.d.w.cut(b.d)
		}
		b.run()
	}
}

func (b *bootBoard) isCursed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cursed != "" && strings.Contains(b.line, b.cursed)
}

// risk tells whether the board is down, about to reboot, or in a trial.
func (b *bootBoard) risk() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wants || b.tries() || !b.back.IsZero()
}

// tries tells whether this boot is a trial that still runs. A configuration that was kept runs on
// without a reboot.
func (b *bootBoard) tries() bool { return b.trying && b.files[bootDir+"/tryboot.txt"] != nil }

// runs returns the command line of the boot, and whether it is a trial.
func (b *bootBoard) runs() (line string, trial bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.line, b.tries() || b.wants || !b.back.IsZero()
}

// The board's disk: writes are durable. Package firmware of the device tests power cuts.

func (b *bootBoard) Read(name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if text, ok := b.files[name]; ok {
		return bytes.Clone(text), nil
	}
	return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func (b *bootBoard) Write(name string, text []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[name] = bytes.Clone(text)
	return nil
}

func (b *bootBoard) Rename(from, to string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[to] = b.files[from]
	delete(b.files, from)
	return nil
}

func (b *bootBoard) Remove(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.files, name)
	return nil
}

func (b *bootBoard) Sync(string) error    { return nil }
func (b *bootBoard) SyncDir(string) error { return nil }

// The methods below are the board for the helper.

func (b *bootBoard) Compatible() []string  { return []string{"raspberrypi,4-model-b"} }
func (b *bootBoard) Uptime() time.Duration { return time.Since(b.d.booted) + 20*time.Second }
func (b *bootBoard) BootID() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprint(b.d.name, "-", b.boots)
}

func (b *bootBoard) Tryboot() (now, offered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trying, true
}

func (b *bootBoard) Boots() (backend, dir string, err error) {
	return fleet.BootConfigTxt, bootDir, nil
}

func (b *bootBoard) Cmdline() string {
	line, _ := b.runs()
	return line
}

func (b *bootBoard) Restores() error        { return nil }
func (b *bootBoard) Refuses(int64) error    { return nil }
func (b *bootBoard) HasOverlay(string) bool { return true }

func (b *bootBoard) Reboot(argument string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wants, b.try = true, argument == "0 tryboot"
	return nil
}
