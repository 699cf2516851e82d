package cli

import (
	"context"
	"crypto/ed25519"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// TestMain runs all boards at the same time on any number of processors: the tests mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func bootConfig(words ...string) *fleet.BootConfig {
	return &fleet.BootConfig{
		Profile: "raspberrypi-4", Revision: 1, Backend: fleet.BootConfigTxt,
		Cmdline: fleet.BootCmdline{Add: words},
		Health: fleet.BootHealth{Deadline: metav1.Duration{Duration: 30 * time.Minute},
			Checks: []string{fleet.CheckAgentRunning, fleet.CheckHubReconnected, fleet.CheckDiskWritable}},
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

// The real agent and the real helper work on the files of a board. Only the firmware, the kernel
// and the hub are simulated.
func TestABoardTriesABootConfiguration(t *testing.T) {
	t.Parallel()
	program := buildDevice(t)
	for way, trial := range map[string]string{"": fleet.TrialTryboot, "deadman": fleet.TrialDeadman,
		"grub": fleet.TrialGrub} {
		for _, c := range []struct {
			name    string
			effect  func(b *bootBoard, tried bool)
			want    string
			message string
		}{
			{"a working configuration is kept", nil, wire.FirmwareUpToDate, "kept"},
			{"a configuration without a network is rolled back", func(b *bootBoard, tried bool) {
				b.hub.Lock()
				defer b.hub.Unlock()
				b.hub.refuses = tried
			}, wire.FirmwareRolledBack, "the hub was connected before the trial and is not now"},
			{"a configuration with which the agent does not run is rolled back", func(b *bootBoard, tried bool) {
				b.noAgent = tried
			}, wire.FirmwareRolledBack, "the agent did not run"},
			{"a configuration with which the engine does not run is rolled back", func(b *bootBoard, tried bool) {
				b.noEngine.Store(tried)
			}, wire.FirmwareRolledBack, "engine"},
		} {
			if way != "" && c.message == "engine" {
				continue
			}
			t.Run(trial+": "+c.name, func(t *testing.T) {
				t.Parallel() // the test mostly waits
				triesOnABoard(t, program, way, trial, c.effect, c.want, c.message)
			})
		}
	}
}

func triesOnABoard(t *testing.T, program, way, trial string, effect func(*bootBoard, bool), want, message string) {
	hub := newBootHub(t)
	b := newBootBoard(t, program, hub, way)
	if b.engine == "none" && message == "engine" {
		t.Skip("SKIPPED: no real engine: DOCKER_SOCK is not set")
	}
	old := b.bootFiles()
	b.effect = effect
	config := bootConfig("psi=1", "cgroup_enable=memory")
	if b.engine != "none" {
		config.Health.Checks = append(config.Health.Checks, fleet.CheckEnginePing)
	}
	if way == "grub" {
		config.Backend = fleet.BootGrub
	}
	f := signedBoot(t, 1, config)
	f.Try = false
	hub.want(f)
	st := hub.until(wire.FirmwareStaged)
	for end := time.Now().Add(time.Minute); st.Diff == "" &&
		time.Now().Before(end); st = hub.until(wire.FirmwareStaged) {
		time.Sleep(50 * time.Millisecond)
	}
	if !strings.Contains(st.Diff, "+psi=1") || !maps.Equal(b.bootFiles(), old) {
		t.Fatalf("before the hub permits the trial: got %+v, want a diff and unchanged boot files", st)
	}
	try := *f
	try.Try = true
	hub.want(&try)
	st = hub.until(want)
	kept := want == wire.FirmwareUpToDate
	if !strings.Contains(st.Message, message) || st.Trial != trial || st.Backend != config.Backend ||
		kept != (st.Digest == f.Digest) || kept == slices.Contains(st.Bad, f.Digest) {
		t.Errorf("the status is %+v, want %q", st, message)
	}
	files := b.bootFiles()
	if !kept && !maps.Equal(files, old) {
		t.Errorf("the boot files after the rollback are %q, want the old files", files)
	}
	hub.Lock()
	t.Log(hub.states, b.boots)
	hub.Unlock()
	if !kept {
		return
	}
	changed := files["cmdline.txt"] + files["custom.cfg"]
	if !strings.Contains(changed, "psi=1") || strings.Contains(changed, "trial") || files["tryboot.txt"] != "" ||
		!strings.HasPrefix(files["config.txt"], old["config.txt"]) {
		t.Errorf("the boot files after a successful trial are %q, want psi=1 without the trial's lines", files)
	}
	undo := *f
	undo.Undo = true
	hub.want(&undo)
	for end := time.Now().Add(2 * time.Minute); st.Digest != "" &&
		time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		st = hub.until(wire.FirmwareUpToDate)
	}
	if st.Digest != "" || !maps.Equal(b.bootFiles(), old) {
		t.Errorf("after undo the status is %+v and the boot files are %q, want the old files", st, b.bootFiles())
	}
}

// The real helper is killed repeatedly while it arms and restores a deadman trial. The boot files
// are always either the old or the new files. After the restore they are the old files.
func TestAKilledHelperLeavesABootableBoard(t *testing.T) {
	dir, err := os.MkdirTemp("", "board") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bootBoard{t: t, program: buildDevice(t), dir: dir, root: filepath.Join(dir, "root"),
		helperDir: filepath.Join(dir, "helper"), output: &safeBuffer{}, way: "deadman"}
	b.writeFiles()
	socket := filepath.Join(dir, "helper.sock")
	f := signedBoot(t, 1, bootConfig("psi=1", "cgroup_enable=memory"))
	// boots returns the files that the firmware reads, without the lines of config.txt that select
	// the command line.
	boots := func() (string, string) {
		config, cmdline := b.read("config.txt"), b.read("cmdline.txt")
		if before, ok := strings.CutSuffix(config, "[all]\ncmdline=cmdline-flotilla.txt\n"); ok {
			config, cmdline = before, b.read("cmdline-flotilla.txt")
		}
		return strings.TrimRight(config, "\n"), cmdline
	}
	oldConfig, oldCmdline := boots()
	newConfig, newCmdline, cutOff := "", "", 0
	pinned, reached := false, map[string]bool{}
	for n := range 60 {
		helper := b.run("boot-helper", "--root", b.root, "--state-dir", b.helperDir, "--socket", socket)
		var r boothelper.Request
		for _, r = range []boothelper.Request{{Op: boothelper.OpPin, Node: "pi-1",
			Key: bootKey.Public().(ed25519.PublicKey)}, {Op: boothelper.OpStatus}} {
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
		if n > 1 { // the first two requests complete
			time.Sleep(time.Duration(n*n%97) * 100 * time.Microsecond)
			_ = helper.Process.Kill()
			if <-done != nil {
				cutOff++
			}
		} else if err := <-done; err != nil {
			t.Fatalf("%s: %v", r.Op, err)
		}
		_ = helper.Process.Kill()
		_ = helper.Wait() // the error says that the process was killed
		config, cmdline := boots()
		switch {
		case n == 0:
			if newConfig, newCmdline = config, cmdline; !strings.Contains(cmdline, "psi=1") {
				t.Fatalf("the command line is %q, want psi=1", cmdline)
			}
		case config == oldConfig && cmdline == oldCmdline, config == newConfig && cmdline == newCmdline:
		default:
			t.Fatalf("after a kill during %s the boot files are neither the old nor the new files:\n%q\n%q",
				r.Op, config,
				cmdline)
		}
	}
	if cutOff < 10 || !reached[boothelper.PhaseArmed] {
		t.Errorf("the test cut off %d requests and saw the phases %v, want at least 10 requests and the phase armed",
			cutOff, reached)
	}
	for n := range 3 { // the board boots twice, then once more
		b.write("proc/sys/kernel/random/boot_id", fmt.Sprintf("00000000-0000-4000-8000-%012d\n", 100+n))
		if err := b.run("boot-helper", "--restore", "--root", b.root, "--state-dir", b.helperDir).Wait(); err != nil {
			t.Error(err)
		}
	}
	if config, cmdline := boots(); config != oldConfig || cmdline != oldCmdline ||
		b.read("cmdline-flotilla.txt") != "" {
		t.Errorf("after the restore the board boots %q, want the old files", cmdline)
	}
	t.Logf("cut off %d requests, saw the phases %v", cutOff, reached)
}
