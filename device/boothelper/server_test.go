package boothelper

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"flotilla.dev/shared/wire"
)

// grubBoard returns a PC that boots by GRUB, and a configuration signed for it.
func grubBoard(t *testing.T) (Machine, *wire.Firmware) {
	t.Helper()
	m := machine(t, pc, map[string]string{"proc/sys/kernel/random/boot_id": "boot-1\n", "proc/uptime": "100.00 0.00\n"})
	document, err := ProfileOf(ByGrub).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return m, wire.SignFirmware(HubKey, "pi-1", "", 7, document)
}

// serve starts a helper that listens on a socket.
func serve(t *testing.T, m Machine, stateDir string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "helper") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Disk: Kernel{}, Board: m, StateDir: stateDir, Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln, 0) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func bootFile(t *testing.T, m Machine, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Root, "boot/grub", name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// Two helpers run on one board, for example when systemd starts one while the deadman checks, and
// many clients ask at once. Each reply must be valid for a single helper, and at the end the board
// is unchanged.
func TestTwoHelpersAndManyClients(t *testing.T) {
	m, f := grubBoard(t)
	dir := t.TempDir()
	sockets := []string{serve(t, m, dir), serve(t, m, dir)}
	ask := func(i int, r Request) error {
		a, err := Ask(t.Context(), sockets[i%len(sockets)], r)
		if err != nil && a.Error == "" {
			t.Errorf("client %d got no reply: %v", i, err)
		}
		return err
	}
	if err := ask(0, Request{Op: OpPin, Node: "pi-1", Key: HubsKey}); err != nil {
		t.Fatal(err)
	}
	bad := *f
	bad.Signature = bytes.Repeat([]byte{1}, 64)
	var g sync.WaitGroup
	for i := range 360 {
		g.Go(func() {
			var err error
			want := []string(nil) // allowed errors
			switch i / 2 % 6 {
			case 0:
				err = ask(i, Request{Op: OpArm, Firmware: f})
			case 1:
				err = ask(i, Request{Op: OpRestore})
			case 2:
				err = ask(i, Request{Op: OpStatus})
			case 3:
				err, want = ask(i, Request{Op: OpKeep, Digest: f.Digest}),
					[]string{"is not the trial of this board", "does not run the trial"}
			case 4:
				if err, want = ask(i, Request{Op: OpArm, Firmware: &bad}), []string{"not signed"}; err == nil {
					t.Error("an unsigned configuration was armed")
				}
			case 5:
				err, want = ask(i, Request{Op: OpUndo, Digest: f.Digest}), []string{"nothing to undo"}
			}
			if err != nil && !slices.ContainsFunc(want, func(w string) bool { return strings.Contains(err.Error(), w) }) {
				t.Errorf("client %d: got error %v, want none or one of %q", i, err, want)
			}
		})
	}
	g.Wait()
	if err := ask(1, Request{Op: OpRestore}); err != nil {
		t.Fatal(err)
	}
	a, err := Ask(t.Context(), sockets[0], Request{Op: OpStatus})
	if err != nil || a.Status.Phase != PhaseIdle || a.Status.Kept != "" || a.Status.Refused != "" {
		t.Errorf("at the end the status is %+v, %v; want no trial and nothing kept", a.Status, err)
	}
	if got := bootFile(t, m, customCfg); got != "" || bootFile(t, m, grubEnv) != string(EmptyEnv()) {
		t.Errorf("at the end custom.cfg is %q, want none, and an empty grubenv", got)
	}
}

// If links are planted where the helper writes, the helper removes them and never writes to their
// targets.
func TestAPlantedLinkIsNotFollowed(t *testing.T) {
	for kind, link := range map[string]func(old, name string) error{"symbolic": os.Symlink, "hard": os.Link} {
		for _, name := range []string{customCfg + ".new", customCfg + ".prev", customCfg + ".prev.new", grubEnv + ".new"} {
			m, f := grubBoard(t)
			victim := filepath.Join(m.Root, "etc-shadow")
			if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := link(victim, filepath.Join(m.Root, "boot/grub", name)); err != nil {
				t.Fatal(err)
			}
			h, err := New(Kernel{}, m, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(h.Pin("pi-1", HubsKey), h.Arm(f)); err != nil {
				t.Errorf("%s link %s: %v", kind, name, err)
			}
			for file, text := range map[string]string{"proc/sys/kernel/random/boot_id": "boot-2\n",
				"proc/cmdline": "BOOT_IMAGE=/vmlinuz " + grubTrialOf + trialName(f.Digest) + "\n"} {
				if err := os.WriteFile(filepath.Join(m.Root, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(h.Settle(), h.Keep(f.Digest)); err != nil {
				t.Errorf("%s link %s: %v", kind, name, err)
			}
			if text, err := os.ReadFile(victim); string(text) != "secret" {
				t.Errorf("%s link %s: its target is %q, %v", kind, name, text, err)
			}
			if info, err := os.Lstat(filepath.Join(m.Root, "boot/grub", customCfg)); err != nil || !info.Mode().IsRegular() ||
				!strings.Contains(bootFile(t, m, customCfg), grubSet) {
				t.Errorf("%s link %s: the configuration is not kept: %v", kind, name, err)
			}
		}
	}
}

// A tmpfs gives real ENOSPC and EROFS for the boot files or the stored state. The helper reports
// the error, leaves the board unchanged, and continues when the disk is writable again.
func TestAFullOrReadOnlyDiskIsReported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: no disk was filled: only root can mount a tmpfs")
	}
	for _, where := range []string{"boot", "state"} {
		for _, how := range []string{"full", "read-only"} {
			t.Run(where+" "+how, func(t *testing.T) {
				m, f := grubBoard(t)
				dir := t.TempDir()
				at, grub := dir, filepath.Join(m.Root, "boot/grub")
				var files map[string][]byte
				if where == "boot" {
					at, files = grub, map[string][]byte{grubCfg: []byte(debianCfg), grubEnv: EmptyEnv()}
				}
				// 2 MiB are enough for Refuses; the stored state has no such limit.
				if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=2m"); err != nil {
					t.Skipf("SKIPPED: no disk was filled: mount a tmpfs: %v", err)
				}
				t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(filepath.Join(at, "lock"), nil,
					0o600); err != nil { // the helper opens the lock file and never writes to it
					t.Fatal(err)
				}
				h, err := New(Kernel{}, m, dir)
				if err != nil {
					t.Fatal(err)
				}
				if err := h.Pin("pi-1", HubsKey); err != nil {
					t.Fatal(err)
				}
				want, filler := unix.ENOSPC, filepath.Join(at, "filler")
				switch how {
				case "full":
					if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
						t.Fatalf("the disk is not full: %v", err)
					}
				default:
					want = unix.EROFS
					if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
						t.Fatal(err)
					}
				}
				err = h.Arm(f)
				if refused := where == "boot" && how == "full" && err != nil &&
					strings.Contains(err.Error(), "KiB are needed"); !refused && !errors.Is(err, want) {
					t.Errorf("Arm returns %v, want %v", err, want)
				}
				if _, err := os.Stat(filepath.Join(m.Root, "run/systemd/reboot-param")); err == nil {
					t.Error("the helper requested a reboot")
				}
				if bootFile(t, m, customCfg) != "" || bootFile(t, m, grubEnv) != string(EmptyEnv()) {
					t.Error("the boot files have changed")
				}
				if how == "full" {
					err = os.Remove(filler)
				} else {
					err = unix.Mount("", at, "", unix.MS_REMOUNT, "size=2m")
				}
				if err != nil {
					t.Fatal(err)
				}
				if h, err = New(Kernel{}, m, dir); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(h.Settle(), h.Restore(), h.Arm(f)); err != nil {
					t.Errorf("when the disk is writable again: %v", err)
				}
				if !strings.Contains(bootFile(t, m, grubEnv), grubTry) || !strings.Contains(bootFile(t, m, customCfg), grubBlock) {
					t.Error("when the disk is writable again, the trial is not armed")
				}
			})
		}
	}
}
