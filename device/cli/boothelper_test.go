package cli

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

var bootKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// A bootHub is as much of a hub as a boot configuration needs: it tells a device what it
// wants, and hears its status.
type bootHub struct {
	mqtt.HookBase
	t      *testing.T
	server *mqtt.Server
	addr   string
	gen    int64

	sync.Mutex
	text    []byte
	refuses bool // to be connected to
	states  []string
	last    *wire.FirmwareStatus
}

func (h *bootHub) ID() string { return "boot" }
func (h *bootHub) Provides(b byte) bool {
	return b == mqtt.OnConnectAuthenticate || b == mqtt.OnACLCheck
}
func (h *bootHub) OnACLCheck(*mqtt.Client, string, bool) bool { return true }
func (h *bootHub) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool {
	h.Lock()
	defer h.Unlock()
	return !h.refuses
}

func newBootHub(t *testing.T) *bootHub {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &bootHub{t: t, addr: ln.Addr().String(), server: mqtt.New(&mqtt.Options{InlineClient: true, Logger: slog.New(slog.DiscardHandler)})}
	if err := h.server.AddHook(h, nil); err != nil {
		t.Fatal(err)
	}
	if err := h.server.AddListener(listeners.NewNet("t", ln)); err != nil {
		t.Fatal(err)
	}
	if err := h.server.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.server.Close() })
	go h.repeat()
	err = h.server.Subscribe("fleet/v1/nodes/pi-1/status", 1, func(_ *mqtt.Client, _ packets.Subscription, p packets.Packet) {
		st, err := wire.ParseStatus(p.Payload)
		if err != nil {
			t.Errorf("a status that cannot be read: %v", err)
			return
		}
		h.Lock()
		defer h.Unlock()
		if f := st.Firmware; f != nil {
			h.last = f
			if n := len(h.states); n == 0 || h.states[n-1] != f.State {
				h.states = append(h.states, f.State)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// want tells the device.
func (h *bootHub) want(f *wire.Firmware) {
	h.gen++
	text, err := json.Marshal(wire.Desired{
		Generation: h.gen, Hub: "01JD8Y3QK8Z6M5N4P3R2S1T0AB", LeaseIntervalSeconds: 1, Time: time.Now(), Pods: []corev1.Pod{},
		Firmware: f, FirmwareKey: bootKey.Public().(ed25519.PublicKey),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.Lock()
	defer h.Unlock()
	h.text = text
}

// repeat says it again and again: a device takes nothing that the broker has kept for it.
func (h *bootHub) repeat() {
	for {
		select {
		case <-h.t.Context().Done():
			return
		case <-time.After(300 * time.Millisecond):
		}
		h.Lock()
		text := h.text
		h.Unlock()
		if text != nil {
			_ = h.server.Publish("fleet/v1/nodes/pi-1/desired", text, false, 1) // nobody may listen
		}
	}
}

// until waits for a state of the device's, for minutes where it has to.
func (h *bootHub) until(state string) *wire.FirmwareStatus {
	h.t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		h.Lock()
		last := h.last
		h.Unlock()
		if last != nil && last.State == state {
			return last
		}
	}
	h.Lock()
	defer h.Unlock()
	h.t.Fatalf("the device is not %s: %v, %+v", state, h.states, h.last)
	return nil
}

// A bootBoard is a Raspberry Pi 4 of files, and what its firmware does with them.
type bootBoard struct {
	t                   *testing.T
	program, dir, root  string
	hub                 *bootHub
	effect              func(b *bootBoard, config, cmdline string) // of what was booted
	noAgent             bool
	agent, helper       *exec.Cmd
	said                *safeBuffer
	boots               []string
	stop                chan struct{}
	stopped             chan struct{}
	booted              time.Time
	uptimeAhead         time.Duration
	config, cmdline     string // as they were booted
	agentDir, helperDir string
	engine              string      // socket of its container engine, or "none"
	noEngine            atomic.Bool // it is there, and does not answer
	way                 string      // how it boots: "", the firmware of a Raspberry Pi that tries; "deadman", one that does not; "grub"
}

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func buildDevice(t *testing.T) string {
	program := filepath.Join(t.TempDir(), "flotilla-device")
	cmd := exec.Command("go", "build", "-trimpath", "-o", program, "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as everything is built: it is compiled already
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func newBootBoard(t *testing.T, program string, hub *bootHub) *bootBoard {
	return newBootBoardOf(t, program, hub, "")
}

func newBootBoardOf(t *testing.T, program string, hub *bootHub, way string) *bootBoard {
	dir, err := os.MkdirTemp("", "board") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	b := &bootBoard{
		t: t, program: program, dir: dir, root: filepath.Join(dir, "root"), hub: hub, said: &safeBuffer{}, stop: make(chan struct{}), stopped: make(chan struct{}),
		agentDir: filepath.Join(dir, "agent"), helperDir: filepath.Join(dir, "helper"), way: way, engine: "none",
	}
	if real := os.Getenv("DOCKER_SOCK"); real != "" {
		b.engine = filepath.Join(dir, "engine.sock")
		b.relay(real)
	}
	for _, sub := range []string{"proc", "sys", "etc", "boot"} {
		if err := os.CopyFS(filepath.Join(b.root, sub), os.DirFS(filepath.Join("../../firmware-configs/testdata/raspberrypi-4/root", sub))); err != nil {
			t.Fatal(err)
		}
	}
	b.furnish()
	t.Cleanup(func() {
		close(b.stop)
		<-b.stopped
		b.kill()
		if t.Failed() {
			t.Logf("%s", b.said.String())
		}
		unmount(t, filepath.Base(dir))
		_ = os.RemoveAll(dir)
	})
	b.start("")
	go b.live()
	return b
}

// relay is the board's container engine: a real one, for as long as the board has one.
func (b *bootBoard) relay(real string) {
	ln, err := net.Listen("unix", b.engine)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if b.noEngine.Load() {
				_ = c.Close()
				continue
			}
			to, err := net.Dial("unix", real)
			if err != nil {
				_ = c.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, c); _ = to.Close() }()
			go func() { _, _ = io.Copy(c, to); _ = c.Close() }()
		}
	}()
}

// unmount takes away what an agent that was killed has left mounted: its volatile directory,
// which the next agent of its state directory would have taken over.
func unmount(t *testing.T, name string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
	}
	var mine []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.Contains(f[1], name) {
			mine = append(mine, f[1])
		}
	}
	for _, at := range slices.Backward(mine) {
		if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
		_ = os.Remove(at)
	}
}

func (b *bootBoard) file(name string) string { return filepath.Join(b.root, "boot/firmware", name) }

func (b *bootBoard) read(name string) string {
	text, err := os.ReadFile(b.file(name))
	if err != nil && !os.IsNotExist(err) {
		b.t.Error(err)
	}
	return string(text)
}

func (b *bootBoard) write(name, text string) {
	name = filepath.Join(b.root, name)
	err := os.WriteFile(name+".new", []byte(text), 0o644)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// start is the firmware, and then the programs of the board.
func (b *bootBoard) start(argument string) {
	b.booted = time.Now()
	b.uptimeAhead = 0
	b.config, b.cmdline = b.read("config.txt"), b.read("cmdline.txt")
	cell, kind := "\x00\x00\x00\x00", "plain"
	if try := b.read("tryboot.txt"); argument == "0 tryboot" && try != "" {
		b.config, cell, kind = try, "\x00\x00\x00\x01", "tryboot"
		for l := range strings.Lines(try) {
			if name, ok := strings.CutPrefix(l, "cmdline="); ok {
				b.cmdline = b.read(strings.TrimSpace(name))
			}
		}
	}
	if b.way != "" {
		kind = b.startOther()
	} else {
		b.write("proc/device-tree/chosen/bootloader/tryboot", cell)
		b.write("proc/cmdline", b.cmdline)
	}
	b.boots = append(b.boots, kind)
	b.write("proc/sys/kernel/random/boot_id", fmt.Sprintf("00000000-0000-4000-8000-%012d\n", len(b.boots)))
	b.tick()
	b.noAgent = false
	b.noEngine.Store(false)
	b.hub.Lock()
	b.hub.refuses = false
	b.hub.Unlock()
	if b.effect != nil {
		b.effect(b, b.config, b.cmdline)
	}
	if early := b.run("boot-helper", "--restore", "--root", b.root, "--state-dir", b.helperDir); early.Wait() != nil {
		b.t.Error("the early unit fails")
	}
	b.helper = b.run("boot-helper", "--root", b.root, "--state-dir", b.helperDir, "--socket", filepath.Join(b.dir, "helper.sock"))
	if b.noAgent {
		b.agent = b.run("boot-helper", "--deadman", "--root", b.root, "--state-dir", b.helperDir)
		return
	}
	b.agent = b.run("run", "--state-dir", b.agentDir, "--engine", b.engine, "--hub", "mqtt://"+b.hub.addr, "--node-name", "pi-1", "--boot-helper", filepath.Join(b.dir, "helper.sock"))
}

func (b *bootBoard) run(args ...string) *exec.Cmd {
	cmd := exec.Command(b.program, args...)
	cmd.Stdout, cmd.Stderr = b.said, b.said
	if err := cmd.Start(); err != nil {
		b.t.Error(err)
	}
	return cmd
}

func (b *bootBoard) kill() {
	for _, c := range []*exec.Cmd{b.agent, b.helper} {
		_ = c.Process.Kill()
		_ = c.Wait() // it was killed
	}
}

// tick lets a minute pass in a second.
func (b *bootBoard) tick() {
	up := 20*time.Second + 60*time.Since(b.booted) + b.uptimeAhead
	b.write("proc/uptime", fmt.Sprintf("%.2f 0.00\n", up.Seconds()))
}

// live reboots when it is told to.
func (b *bootBoard) live() {
	defer close(b.stopped)
	for {
		select {
		case <-b.stop:
			return
		case <-time.After(100 * time.Millisecond):
		}
		b.tick()
		param := filepath.Join(b.root, "run/systemd/reboot-param")
		argument, err := os.ReadFile(param)
		if err != nil {
			continue
		}
		time.Sleep(50 * time.Millisecond) // it is orderly: the helper's answer is sent
		b.kill()
		_ = os.Remove(param)
		b.start(string(argument))
	}
}

func bootConfig(words ...string) *fleet.BootConfig {
	return &fleet.BootConfig{
		Profile: "raspberrypi-4", Revision: 1, Backend: fleet.BootConfigTxt,
		Cmdline: fleet.BootCmdline{Add: words},
		Health:  fleet.BootHealth{Deadline: metav1.Duration{Duration: 30 * time.Minute}, Checks: []string{fleet.CheckAgentRunning, fleet.CheckHubReconnected, fleet.CheckDiskWritable}},
	}
}

func signedBoot(t *testing.T, generation int64, b *fleet.BootConfig) *wire.Firmware {
	document, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f := wire.SignFirmware(bootKey, "pi-1", "raspberrypi,4-model-b", generation, document)
	f.Try = true
	return f
}

// TestMain lets all boards live at once, however few processors there are: they wait for their
// deadlines, and do next to nothing.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// The real agent and the real helper on a board of files: only the firmware, the kernel and
// the hub are the test's.
func TestABootConfigurationIsTriedOnABoard(t *testing.T) {
	t.Parallel()
	program := buildDevice(t)
	for _, c := range []struct {
		name   string
		effect func(b *bootBoard, config, cmdline string)
		want   string
		says   string
	}{
		{"cgroup_enable=memory is kept", nil, wire.FirmwareUpToDate, "kept"},
		{"one that takes the network away is rolled back", func(b *bootBoard, _, cmdline string) {
			b.hub.Lock()
			defer b.hub.Unlock()
			b.hub.refuses = strings.Contains(cmdline, "psi=1")
		}, wire.FirmwareRolledBack, "the hub was connected before, and is not"},
		{"one with which the agent does not run is rolled back", func(b *bootBoard, _, cmdline string) {
			b.noAgent = strings.Contains(cmdline, "psi=1")
		}, wire.FirmwareRolledBack, "the agent did not run"},
		{"one with which the engine does not run is rolled back", func(b *bootBoard, _, cmdline string) {
			b.noEngine.Store(strings.Contains(cmdline, "psi=1"))
		}, wire.FirmwareRolledBack, "engine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			hub := newBootHub(t)
			b := newBootBoard(t, program, hub)
			if b.engine == "none" && c.says == "engine" {
				t.Skip("SKIPPED: no real engine: DOCKER_SOCK is not set")
			}
			config, cmdline := b.read("config.txt"), b.read("cmdline.txt")
			b.effect = c.effect
			wanted := bootConfig("psi=1", "cgroup_enable=memory")
			if b.engine != "none" {
				wanted.Health.Checks = append(wanted.Health.Checks, fleet.CheckEnginePing)
			}
			f := signedBoot(t, 1, wanted)

			f.Try = false
			hub.want(f)
			st := hub.until(wire.FirmwareStaged)
			for end := time.Now().Add(time.Minute); st.Diff == "" && time.Now().Before(end); st = hub.until(wire.FirmwareStaged) {
				time.Sleep(50 * time.Millisecond)
			}
			if !strings.Contains(st.Diff, "cmdline.txt: +psi=1") || b.read("tryboot.txt") != "" {
				t.Fatalf("before the hub's permission: %+v", st)
			}
			try := *f
			try.Try = true
			hub.want(&try)
			st = hub.until(c.want)
			if !strings.Contains(st.Message, c.says) {
				t.Errorf("it says %q, want %q", st.Message, c.says)
			}
			kept := c.want == wire.FirmwareUpToDate
			if got := b.read("cmdline.txt"); strings.Contains(got, "psi=1") != kept || !kept && got != cmdline {
				t.Errorf("cmdline.txt is %q", got)
			}
			if got := b.read("config.txt"); !kept && got != config || !strings.HasPrefix(got, config) {
				t.Errorf("config.txt is %q", got)
			}
			if b.read("tryboot.txt") != "" || b.read("cmdline-flotilla.txt") != "" {
				t.Error("files of the trial are left")
			}
			if kept != (st.Digest == f.Digest) || kept == slices.Contains(st.Bad, f.Digest) {
				t.Errorf("it says %+v", st)
			}
			hub.Lock()
			t.Log(hub.states, b.boots)
			hub.Unlock()
			if kept {
				undo := *f
				undo.Undo = true
				hub.want(&undo)
				for end := time.Now().Add(2 * time.Minute); st.Digest != "" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					st = hub.until(wire.FirmwareUpToDate)
				}
				if got := b.read("config.txt"); st.Digest != "" || got != config || b.read("cmdline.txt") != cmdline {
					t.Errorf("undone, it says %+v, and config.txt is %q", st, got)
				}
			}
		})
	}
}

// ask writes to the helper's socket and returns its answer.
func askHelper(t *testing.T, socket string, text []byte) boothelper.Reply {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	_, _ = conn.Write(text) // it may stop reading
	answer, _ := io.ReadAll(conn)
	var a boothelper.Reply
	if err := json.Unmarshal(bytes.TrimSpace(answer), &a); err != nil {
		a.Error = "no answer: " + err.Error()
	}
	return a
}

func TestTheHelperUnderAttack(t *testing.T) {
	program := buildDevice(t)
	b := &bootBoard{t: t, program: program, said: &safeBuffer{}}
	var err error
	if b.dir, err = os.MkdirTemp("", "board"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(b.dir) })
	b.root = filepath.Join(b.dir, "root")
	for _, sub := range []string{"proc", "sys", "etc", "boot"} {
		if err := os.CopyFS(filepath.Join(b.root, sub), os.DirFS(filepath.Join("../../firmware-configs/testdata/raspberrypi-4/root", sub))); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(b.dir, "helper.sock")
	helper := b.run("boot-helper", "--root", b.root, "--state-dir", filepath.Join(b.dir, "helper"), "--socket", socket)
	t.Cleanup(func() { _ = helper.Process.Kill(); _ = helper.Wait() })
	ask := func(r boothelper.Request) error {
		for range 600 {
			if a, err := boothelper.Ask(context.Background(), socket, r); err == nil || a.Error != "" {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatal("the helper does not answer")
		return nil
	}
	refused := func(name string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	arm := func(f *wire.Firmware) error { return ask(boothelper.Request{Op: boothelper.OpArm, Firmware: f}) }
	inspect := func(f *wire.Firmware) error { return ask(boothelper.Request{Op: boothelper.OpInspect, Firmware: f}) }
	config, cmdline := b.read("config.txt"), b.read("cmdline.txt")
	good := signedBoot(t, 5, bootConfig("psi=1"))
	other := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize)))

	refused("before any hub is known", arm(good), "no hub's key")
	if err := ask(boothelper.Request{Op: boothelper.OpPin, Node: "pi-1", Key: bootKey.Public().(ed25519.PublicKey)}); err != nil {
		t.Fatal(err)
	}
	refused("another hub's key", ask(boothelper.Request{Op: boothelper.OpPin, Node: "pi-1", Key: other.Public().(ed25519.PublicKey)}), "boot-helper --forget")
	refused("another node", ask(boothelper.Request{Op: boothelper.OpPin, Node: "pi-2", Key: bootKey.Public().(ed25519.PublicKey)}), "boot-helper --forget")

	unsigned := *good
	unsigned.Signature = nil
	refused("unsigned", arm(&unsigned), "not signed")
	refused("a foreign key", arm(wire.SignFirmware(other, "pi-1", "raspberrypi,4-model-b", 5, good.Document)), "not signed")
	refused("for another node", arm(wire.SignFirmware(bootKey, "pi-2", "raspberrypi,4-model-b", 5, good.Document)), "not signed")
	refused("for another board", arm(wire.SignFirmware(bootKey, "pi-1", "raspberrypi,5-model-b", 5, good.Document)), "not signed")
	later := *good
	later.Generation = 9
	refused("as if it were newer", arm(&later), "not signed")
	document := strings.Replace(string(good.Document), "psi=1", "init=/x", 1)
	refused("what no hub may sign", arm(wire.SignFirmware(bootKey, "pi-1", "raspberrypi,4-model-b", 5, []byte(document))), "is refused")
	for _, overlay := range []string{"../../etc/passwd", "a/b", "..", "/x", "w1-gpio\ninclude=x"} {
		c := bootConfig("psi=1")
		c.Config.DTOverlay = []string{overlay}
		refused("the overlay "+overlay, arm(signedBoot(t, 5, c)), "config.dtoverlay[0]")
	}
	missing := bootConfig("psi=1")
	missing.Config.DTOverlay = []string{"not-there"}
	refused("an overlay that is not there", inspect(signedBoot(t, 5, missing)), "has no overlay not-there")
	refused("keep without a trial", ask(boothelper.Request{Op: boothelper.OpKeep, Digest: good.Digest}), "is not what is tried")
	refused("undo of nothing", ask(boothelper.Request{Op: boothelper.OpUndo}), "nothing to undo")
	refused("an unknown operation", ask(boothelper.Request{Op: "write"}), "unknown operation")

	for name, text := range map[string]string{
		"10 MB":           strings.Repeat("x", 10<<20),
		"10 MB of a line": `{"op":"arm","digest":"` + strings.Repeat("x", 10<<20) + "\"}\n",
		"no JSON":         "hello\n",
		"a key too many":  `{"op":"status","path":"/etc/passwd"}` + "\n",
		"two requests":    `{"op":"status"}{"op":"undo"}` + "\n",
		"depth":           `{"op":` + strings.Repeat("[", 100000) + "\n",
	} {
		if a := askHelper(t, socket, []byte(text)); a.Error == "" {
			t.Errorf("%s is answered with %+v", name, a)
		}
	}
	slow, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	_, _ = slow.Write([]byte(`{"op"`))
	if err := ask(boothelper.Request{Op: boothelper.OpStatus}); err != nil { // it waits for the slow one to be cut off, and no longer
		t.Errorf("behind a slow one: %v", err)
	}

	// What the board itself speaks against.
	for _, c := range []struct{ name, file, text, want string }{
		{"a trial of somebody else's", "boot/firmware/tryboot.txt", "kernel=new.img\n", "tryboot.txt is there already"},
		{"A/B by autoboot.txt", "boot/firmware/autoboot.txt", "[all]\ntryboot_a_b=1\n", "autoboot.txt chooses"},
		{"RAUC", "etc/rauc/system.conf", "x", "RAUC owns"},
		{"Mender", "etc/mender/mender.conf", "x", "Mender owns"},
		{"SWUpdate", "etc/swupdate.cfg", "x", "SWUpdate owns"},
		{"balenaOS", "etc/os-release", "ID=balena-os\n", "balena-os"},
		{"another cmdline", "boot/firmware/config.txt", "cmdline=mine.txt\n", "chooses what is booted"},
		{"Ubuntu's A/B", "boot/firmware/config.txt", "[tryboot]\nos_prefix=new/\n", "owns the boot"},
		{"read-only", "proc/mounts", "/dev/mmcblk0p1 /boot/firmware vfat ro,relatime 0 0\n", "read-only"},
		{"not mounted", "proc/mounts", "/dev/mmcblk0p2 / ext4 rw 0 0\n", "not a mounted FAT"},
		{"undervoltage", "sys/class/hwmon/hwmon1/in0_lcrit_alarm", "1\n", "voltage is too low"},
		{"a broken section", "boot/firmware/config.txt", "# BEGIN flotilla\n", "# END flotilla"},
		{"two lines for the kernel", "boot/firmware/cmdline.txt", "a\nb\n", "more than one line"},
		{"no tryboot", "proc/device-tree/chosen/bootloader/tryboot", "", "flotilla-boot-restore.service is not enabled"},
		{"another board", "proc/device-tree/compatible", "raspberrypi,3-model-b\x00", "not signed"},
	} {
		name := filepath.Join(b.root, c.file)
		was, had := os.ReadFile(name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		refused(c.name, arm(good), c.want)
		if had != nil {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(name, was, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"config.txt", "cmdline.txt"} {
		if err := os.Rename(b.file(name), b.file(name)+".real"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(b.file(name)+".real", b.file(name)); err != nil {
			t.Fatal(err)
		}
		want := "is a link"
		if name == "config.txt" {
			want = "no regular file"
		}
		refused(name+" is a link", arm(good), want)
		if err := os.Rename(b.file(name)+".real", b.file(name)); err != nil {
			t.Fatal(err)
		}
	}

	if got := b.read("config.txt"); got != config || b.read("cmdline.txt") != cmdline || b.read("tryboot.txt") != "" {
		t.Fatalf("the boot files have changed: %q", got)
	}
	if _, err := os.Stat(filepath.Join(b.root, "run/systemd/reboot-param")); err == nil {
		t.Fatal("the board was to be rebooted")
	}
	if err := arm(good); err != nil {
		t.Fatalf("what is right is refused: %v", err)
	}
	if !strings.Contains(b.read("tryboot.txt"), good.Digest) || b.read("config.txt") != config {
		t.Error("no trial is armed, or config.txt was changed for it")
	}
	if err := ask(boothelper.Request{Op: boothelper.OpRestore}); err != nil {
		t.Error(err)
	}
	older := signedBoot(t, 4, bootConfig("psi=0"))
	refused("replay of an older generation", arm(older), "is older than 5")
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(b.dir, 0o755), os.Chmod(socket, 0o666)); err != nil { // let another user in: he is refused all the same
			t.Fatal(err)
		}
		cmd := exec.Command("/usr/bin/perl", "-MIO::Socket::UNIX", "-e", `$s=IO::Socket::UNIX->new($ARGV[0]) or die $!; print <$s>`, socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err == nil && !strings.Contains(string(out), "only root may") {
			t.Errorf("another user is answered: %s", out)
		} else if err != nil {
			t.Errorf("another user was not tried: %v: %s", err, out)
		}
	}
}

// The real helper is killed at any moment, again and again, while it arms a deadman's trial and gives it back: what the board
// would boot is always the old files or the new ones, and in the end it has the old ones.
func TestTheHelperIsKilledAtAnyMoment(t *testing.T) {
	dir, err := os.MkdirTemp("", "board") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bootBoard{t: t, program: buildDevice(t), dir: dir, root: filepath.Join(dir, "root"), helperDir: filepath.Join(dir, "helper"), said: &safeBuffer{}, way: "deadman"}
	for _, sub := range []string{"proc", "sys", "etc", "boot"} {
		if err := os.CopyFS(filepath.Join(b.root, sub), os.DirFS(filepath.Join("../../firmware-configs/testdata/raspberrypi-4/root", sub))); err != nil {
			t.Fatal(err)
		}
	}
	b.furnish()
	socket := filepath.Join(dir, "helper.sock")
	f := signedBoot(t, 1, bootConfig("psi=1", "cgroup_enable=memory"))
	// boots is what the firmware would read, without what says by which name.
	boots := func() (string, string) {
		config, cmdline := b.read("config.txt"), b.read("cmdline.txt")
		if before, ok := strings.CutSuffix(config, "[all]\ncmdline=cmdline-flotilla.txt\n"); ok {
			config, cmdline = before, b.read("cmdline-flotilla.txt")
		}
		return strings.TrimRight(config, "\n"), cmdline
	}
	oldConfig, oldCmdline := boots()
	newConfig, newCmdline, moments := "", "", 0
	pinned, reached := false, map[string]bool{}
	for n := range 60 {
		helper := b.run("boot-helper", "--root", b.root, "--state-dir", b.helperDir, "--socket", socket)
		var r boothelper.Request
		for _, r = range []boothelper.Request{{Op: boothelper.OpPin, Node: "pi-1", Key: bootKey.Public().(ed25519.PublicKey)}, {Op: boothelper.OpStatus}} {
			if r.Op == boothelper.OpPin && pinned {
				continue
			}
			for range 200 {
				a, err := boothelper.Ask(t.Context(), socket, r)
				if err == nil {
					pinned = true
					if s := a.Status; s != nil {
						reached[s.Phase] = true
					}
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		r = boothelper.Request{Op: boothelper.OpArm, Firmware: f}
		if n%2 == 1 {
			r = boothelper.Request{Op: boothelper.OpRestore}
		}
		done := make(chan error, 1)
		go func() {
			_, err := boothelper.Ask(context.Background(), socket, r)
			done <- err
		}()
		if n > 1 { // the first two come to their end
			time.Sleep(time.Duration(n*n%97) * 100 * time.Microsecond)
			_ = helper.Process.Kill()
			if <-done != nil {
				moments++
			}
		} else if err := <-done; err != nil {
			t.Fatalf("%s: %v", r.Op, err)
		}
		_ = helper.Process.Kill()
		_ = helper.Wait() // it was killed
		config, cmdline := boots()
		switch {
		case n == 0:
			if newConfig, newCmdline = config, cmdline; !strings.Contains(cmdline, "psi=1") {
				t.Fatalf("nothing is armed: %q", cmdline)
			}
		case config == oldConfig && cmdline == oldCmdline, config == newConfig && cmdline == newCmdline:
		default:
			t.Fatalf("killed at %s, the board would boot neither old nor new files:\n%q\n%q", r.Op, config, cmdline)
		}
	}
	if moments < 10 || !reached[boothelper.PhaseArmed] {
		t.Errorf("%d requests were cut off, and %v reached", moments, reached)
	}
	for n := range 3 { // then the board is booted as it is, and again
		b.write("proc/sys/kernel/random/boot_id", fmt.Sprintf("00000000-0000-4000-8000-%012d\n", 100+n))
		if err := b.run("boot-helper", "--restore", "--root", b.root, "--state-dir", b.helperDir).Wait(); err != nil {
			t.Error(err)
		}
	}
	if config, cmdline := boots(); config != oldConfig || cmdline != oldCmdline || b.read("cmdline-flotilla.txt") != "" {
		t.Errorf("in the end the board boots %q", cmdline)
	}
	t.Logf("%d requests were cut off, phases seen: %v", moments, reached)
}
