package cli

import (
	"bytes"
	"fmt"
	"io"
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
)

// A bootBoard is a directory tree with the files of a Raspberry Pi 4, and simulates its firmware.
type bootBoard struct {
	t                  *testing.T
	program, dir, root string
	hub                *bootHub
	// called at each boot; tried: the kernel has the trial's command line
	effect              func(b *bootBoard, tried bool)
	noAgent             bool
	agent, helper       *exec.Cmd
	output              *safeBuffer
	boots               []string
	stop                chan struct{}
	stopped             chan struct{}
	booted              time.Time
	uptimeAhead         time.Duration
	config, cmdline     string // the files with which the board has booted
	agentDir, helperDir string
	engine              string      // socket of its container engine, or "none"
	noEngine            atomic.Bool // the engine's socket exists and does not answer
	way                 string      // kind of board: "" (firmware with tryboot), "deadman" (firmware without), "grub"
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
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the tests' own build settings, so that the build cache is used
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build flotilla-device: %v\n%s", err, out)
	}
	return program
}

func newBootBoard(t *testing.T, program string, hub *bootHub, way string) *bootBoard {
	dir, err := os.MkdirTemp("", "board") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	b := &bootBoard{
		t: t, program: program, dir: dir, root: filepath.Join(dir, "root"), hub: hub, output: &safeBuffer{},
		stop: make(chan struct{}), stopped: make(chan struct{}),
		agentDir: filepath.Join(dir, "agent"), helperDir: filepath.Join(dir, "helper"), way: way, engine: "none",
	}
	if real := os.Getenv("DOCKER_SOCK"); real != "" {
		b.engine = filepath.Join(dir, "engine.sock")
		b.relay(real)
	}
	b.writeFiles()
	t.Cleanup(func() {
		close(b.stop)
		<-b.stopped
		b.kill()
		if t.Failed() {
			t.Logf("%s", b.output.String())
		}
		unmount(t, filepath.Base(dir))
		_ = os.RemoveAll(dir)
	})
	b.start("")
	go b.live()
	return b
}

// relay forwards the board's engine socket to a real engine.
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

// unmount unmounts the volatile directory that a killed agent has left. Otherwise the next agent
// with the same state directory would use it.
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

func (b *bootBoard) read(name string) string { return b.readFile(b.file(name)) }
func (b *bootBoard) readGrub(name string) string {
	return b.readFile(filepath.Join(b.root, "boot/grub", name))
}

func (b *bootBoard) readFile(name string) string {
	text, err := os.ReadFile(name)
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

// start boots the board and starts its programs.
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
		b.effect(b, strings.Contains(b.cmdline, "psi=1"))
	}
	if early := b.run("boot-helper", "--restore", "--root", b.root, "--state-dir", b.helperDir); early.Wait() != nil {
		b.t.Error("flotilla-boot-restore fails")
	}
	b.helper = b.run("boot-helper", "--root", b.root, "--state-dir", b.helperDir, "--socket",
		filepath.Join(b.dir, "helper.sock"))
	if b.noAgent {
		b.agent = b.run("boot-helper", "--deadman", "--root", b.root, "--state-dir", b.helperDir)
		return
	}
	b.agent = b.run("run", "--state-dir", b.agentDir, "--engine", b.engine, "--hub", "mqtt://"+b.hub.addr,
		"--node-name", "pi-1", "--boot-helper", filepath.Join(b.dir, "helper.sock"))
}

func (b *bootBoard) run(args ...string) *exec.Cmd {
	cmd := exec.Command(b.program, args...)
	cmd.Stdout, cmd.Stderr = b.output, b.output
	if err := cmd.Start(); err != nil {
		b.t.Error(err)
	}
	return cmd
}

func (b *bootBoard) kill() {
	for _, c := range []*exec.Cmd{b.agent, b.helper} {
		_ = c.Process.Kill()
		_ = c.Wait() // the error says that the process was killed
	}
}

// tick writes an uptime that advances one minute per second.
func (b *bootBoard) tick() {
	up := 20*time.Second + 60*time.Since(b.booted) + b.uptimeAhead
	b.write("proc/uptime", fmt.Sprintf("%.2f 0.00\n", up.Seconds()))
}

// live reboots the board whenever the agent or the helper requests a reboot.
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
		time.Sleep(50 * time.Millisecond) // the helper's answer is sent first
		b.kill()
		_ = os.Remove(param)
		b.start(string(argument))
	}
}

// writeFiles writes the files of a Raspberry Pi 4, or of the board kind in way.
func (b *bootBoard) writeFiles() {
	for _, sub := range []string{"proc", "sys", "etc", "boot"} {
		from := os.DirFS(filepath.Join("../../firmware-configs/testdata/raspberrypi-4/root", sub))
		if err := os.CopyFS(filepath.Join(b.root, sub), from); err != nil {
			b.t.Fatal(err)
		}
	}
	remove := func(names ...string) {
		for _, n := range names {
			if err := os.RemoveAll(filepath.Join(b.root, n)); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(b.root, name)), 0o755); err != nil {
			b.t.Fatal(err)
		}
		b.write(name, text)
	}
	switch b.way {
	case "deadman":
		remove("proc/device-tree/chosen")
		write("etc/systemd/system/sysinit.target.wants/flotilla-boot-restore.service", "")
	case "grub":
		remove("boot", "proc/device-tree/chosen")
		write("proc/mounts", "/dev/sda1 / ext4 rw,relatime 0 0\n")
		write("proc/cmdline", "BOOT_IMAGE=/vmlinuz ro\n")
		write("boot/grub/grub.cfg", "load_env\n\tlinux /vmlinuz ro ${flotilla_args}\nsource $prefix/custom.cfg\n")
		write("boot/grub/grubenv", "# GRUB Environment Block\n"+strings.Repeat("#", 999))
	}
}

// startOther boots a board whose firmware lacks tryboot.
func (b *bootBoard) startOther() (kind string) {
	if b.way != "grub" {
		b.write("proc/cmdline", b.cmdline)
		return "plain"
	}
	words := func(text string) string {
		_, text, _ = strings.Cut(text, `set flotilla_args="`)
		text, _, _ = strings.Cut(text, `"`)
		return text
	}
	custom, env := b.readGrub("custom.cfg"), b.readGrub("grubenv")
	kind, b.cmdline = "plain", words(custom)
	_, try, armed := strings.Cut(env, "\nflotilla_try=")
	try, _, _ = strings.Cut(try, "\n")
	if _, block, ok := strings.Cut(custom, `if [ "${flotilla_try}" = "`+try+`" ]; then`); ok && armed {
		kind, b.cmdline = "trial", words(block)
		b.write("boot/grub/grubenv", "# GRUB Environment Block\n"+strings.Repeat("#", 999))
	}
	b.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz ro "+b.cmdline+"\n")
	return kind
}

// bootFiles returns the files that the firmware or boot loader reads.
func (b *bootBoard) bootFiles() map[string]string {
	if b.way == "grub" {
		return map[string]string{"custom.cfg": b.readGrub("custom.cfg"), "grubenv": b.readGrub("grubenv")}
	}
	files := map[string]string{}
	for _, name := range []string{"config.txt", "cmdline.txt", "tryboot.txt", "cmdline-flotilla.txt"} {
		files[name] = b.read(name)
	}
	return files
}
