package firmware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/shared/wire"
)

// grubBoard is a PC of files, and a configuration that is signed for it.
func grubBoard(t *testing.T) (Machine, *wire.Firmware) {
	t.Helper()
	m := machine(t, pc, map[string]string{"proc/sys/kernel/random/boot_id": "boot-1\n", "proc/uptime": "100.00 0.00\n"})
	document, err := profileOf(byGrub).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return m, wire.SignFirmware(hubKey, "pi-1", "", 7, document)
}

// serve is a helper that listens.
func serve(t *testing.T, m Machine, stateDir string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "helper") // a socket's path is short
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

// Two helpers on one board, as one that systemd has started while the deadman looks, and many clients of both at once: each
// answer is one that one helper alone could have given, and in the end the board is as it was.
func TestTwoHelpersAndManyClients(t *testing.T) {
	m, f := grubBoard(t)
	dir := t.TempDir()
	sockets := []string{serve(t, m, dir), serve(t, m, dir)}
	ask := func(i int, r Request) error {
		a, err := Ask(t.Context(), sockets[i%len(sockets)], r)
		if err != nil && a.Error == "" {
			t.Errorf("client %d has no answer: %v", i, err)
		}
		return err
	}
	if err := ask(0, Request{Op: OpPin, Node: "pi-1", Key: hubsKey}); err != nil {
		t.Fatal(err)
	}
	bad := *f
	bad.Signature = bytes.Repeat([]byte{1}, 64)
	var g sync.WaitGroup
	for i := range 360 {
		g.Go(func() {
			var err error
			want := []string(nil) // what it may be refused with
			switch i / 2 % 6 {
			case 0:
				err = ask(i, Request{Op: OpArm, Firmware: f})
			case 1:
				err = ask(i, Request{Op: OpRestore})
			case 2:
				err = ask(i, Request{Op: OpStatus})
			case 3:
				err, want = ask(i, Request{Op: OpKeep, Digest: f.Digest}), []string{"is not what is tried here", "does not run the trial"}
			case 4:
				if err, want = ask(i, Request{Op: OpArm, Firmware: &bad}), []string{"not signed"}; err == nil {
					t.Error("what is not signed is armed")
				}
			case 5:
				err, want = ask(i, Request{Op: OpUndo, Digest: f.Digest}), []string{"nothing to undo"}
			}
			if err != nil && !slices.ContainsFunc(want, func(w string) bool { return strings.Contains(err.Error(), w) }) {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	g.Wait()
	if err := ask(1, Request{Op: OpRestore}); err != nil {
		t.Fatal(err)
	}
	a, err := Ask(t.Context(), sockets[0], Request{Op: OpStatus})
	if err != nil || a.Status.Phase != PhaseIdle || a.Status.Kept != "" || a.Status.Refused != "" {
		t.Errorf("%+v, %v", a.Status, err)
	}
	if got := bootFile(t, m, customCfg); got != "" || bootFile(t, m, grubEnv) != string(emptyEnv()) {
		t.Errorf("custom.cfg is %q", got)
	}
}

// Links that somebody has planted where the helper writes are taken away: what they point to is never written to.
func TestALinkThatWasPlantedIsNotWrittenThrough(t *testing.T) {
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
			h, err := NewHelper(Kernel{}, m, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(h.Pin("pi-1", hubsKey), h.Arm(f)); err != nil {
				t.Errorf("%s %s: %v", kind, name, err)
			}
			for file, text := range map[string]string{"proc/sys/kernel/random/boot_id": "boot-2\n", "proc/cmdline": "BOOT_IMAGE=/vmlinuz " + grubTrialOf + trialName(f.Digest) + "\n"} {
				if err := os.WriteFile(filepath.Join(m.Root, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(h.Settle(), h.Keep(f.Digest)); err != nil {
				t.Errorf("%s %s: %v", kind, name, err)
			}
			if text, err := os.ReadFile(victim); string(text) != "secret" {
				t.Errorf("%s %s: what it was linked to is %q, %v", kind, name, text, err)
			}
			if info, err := os.Lstat(filepath.Join(m.Root, "boot/grub", customCfg)); err != nil || !info.Mode().IsRegular() || !strings.Contains(bootFile(t, m, customCfg), grubSet) {
				t.Errorf("%s %s: it is not kept: %v", kind, name, err)
			}
		}
	}
}

// The real ENOSPC and EROFS, of a tmpfs, for the boot files and for what the helper remembers: it says so, the board is as
// it was, and when there is room again it goes on.
func TestARealDiskThatIsFullOrReadOnly(t *testing.T) {
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
					at, files = grub, map[string][]byte{grubCfg: []byte(debianCfg), grubEnv: emptyEnv()}
				}
				// 2 MiB are enough for what Refuses asks for; the helper's own directory needs no such room.
				if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=2m"); err != nil {
					t.Skipf("SKIPPED: no disk was filled: mount a tmpfs: %v", err)
				}
				t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(filepath.Join(at, "lock"), nil, 0o600); err != nil { // it is opened, not written to
					t.Fatal(err)
				}
				h, err := NewHelper(Kernel{}, m, dir)
				if err != nil {
					t.Fatal(err)
				}
				if err := h.Pin("pi-1", hubsKey); err != nil {
					t.Fatal(err)
				}
				want, filler := unix.ENOSPC, filepath.Join(at, "filler")
				switch how {
				case "full":
					if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
						t.Fatalf("it is not full: %v", err)
					}
				default:
					want = unix.EROFS
					if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
						t.Fatal(err)
					}
				}
				err = h.Arm(f)
				if said := where == "boot" && how == "full" && err != nil && strings.Contains(err.Error(), "KiB are needed"); !said && !errors.Is(err, want) {
					t.Errorf("it says %v, want %v", err, want)
				}
				if _, err := os.Stat(filepath.Join(m.Root, "run/systemd/reboot-param")); err == nil {
					t.Error("the board was to be rebooted")
				}
				if bootFile(t, m, customCfg) != "" || bootFile(t, m, grubEnv) != string(emptyEnv()) {
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
				if h, err = NewHelper(Kernel{}, m, dir); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(h.Settle(), h.Restore(), h.Arm(f)); err != nil {
					t.Errorf("with room again: %v", err)
				}
				if !strings.Contains(bootFile(t, m, grubEnv), grubTry) || !strings.Contains(bootFile(t, m, customCfg), grubBlock) {
					t.Error("with room again nothing is armed")
				}
			})
		}
	}
}

// A realBoard is a board whose boot partition is a directory.
type realBoard struct {
	*world
	at      string
	reboots int
}

func (b *realBoard) Boots() (string, string, error) { return b.backend(), b.at, nil }
func (b *realBoard) Reboot(string) error            { b.reboots++; return nil }

// A boot partition that a new kernel has filled to its last byte during the trial takes the old files back.
func TestADeadmanGivesBackOnARealDiskThatIsFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: no disk was filled: only root can mount a tmpfs")
	}
	w, f := newWorldOf(t, byDeadman, profileOf(byDeadman))
	b := &realBoard{world: w, at: t.TempDir()}
	if err := unix.Mount("tmpfs", b.at, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("SKIPPED: no disk was filled: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(b.at, unix.MNT_DETACH) })
	for name, text := range map[string][]byte{configTxt: w.old.Config, cmdlineTxt: w.old.Cmdline} {
		if err := os.WriteFile(filepath.Join(b.at, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h, err := NewHelper(Kernel{}, b, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.Pin("pi-1", hubsKey), h.Arm(f)); err != nil {
		t.Fatal(err)
	}
	w.boot, w.args = w.boot+1, string(w.new.Cmdline)
	if err := h.Settle(); err != nil || !h.Status().Tryboot {
		t.Fatalf("the trial does not run: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b.at, "initrd.img"), make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("it is not full: %v", err)
	}
	if err := h.Restore(); err != nil {
		t.Error(err)
	}
	if live, err := h.live(); err != nil || !live.equal(w.old) || b.reboots != 2 {
		t.Errorf("the old files are not there (%v), or the board was not rebooted (%d): %q", err, b.reboots, live.Cmdline)
	}
}

// The root of a Debian becomes read-only when its file system has an error: neither agent nor helper can remember anything
// then, and the deadman ends the trial all the same.
func TestTheDeadmanEndsATrialOnARootThatIsReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can mount a tmpfs")
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			w, f := newWorldOf(t, way, profileOf(way))
			b := &realBoard{world: w, at: t.TempDir()}
			for name, i := range w.names {
				if err := os.WriteFile(filepath.Join(b.at, filepath.Base(name)), i.text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
				t.Skipf("SKIPPED: mount a tmpfs: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			s := &Server{Disk: Kernel{}, Board: b, StateDir: dir, Log: slog.New(slog.DiscardHandler)}
			if err := s.with(func(h *Helper) error { return errors.Join(h.Pin("pi-1", hubsKey), h.Arm(f)) }); err != nil {
				t.Fatal(err)
			}
			w.boot, b.reboots, w.trying, w.args = w.boot+1, 0, way == byTryboot, ""
			if way == byGrub || way == byTryboot {
				w.args = "ro " + grubTrialOf + trialName(f.Digest)
			}
			if err := s.Restore(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // it looks once
			w.uptime = 5 * time.Minute
			if err := s.Deadman(ctx); err != nil || b.reboots != 0 {
				t.Fatalf("before the deadline: %v, %d reboots", err, b.reboots)
			}
			w.uptime = 13 * time.Minute
			if err := s.Deadman(ctx); err != nil || b.reboots == 0 {
				t.Errorf("after the deadline: %v, %d reboots", err, b.reboots)
			}
			if way == byTryboot || way == byGrub { // the boot loader tells of a trial, too
				*s = Server{Disk: Kernel{}, Board: b, StateDir: t.TempDir(), Log: s.Log}
				for i := range 2 {
					if err := os.WriteFile(filepath.Join(s.StateDir, fmt.Sprintf("boot-helper.%d.state", i)), []byte("damaged"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				b.reboots, w.uptime = 0, 62*time.Minute
				if err := s.Deadman(ctx); err != nil || b.reboots != 1 {
					t.Errorf("where what is remembered is lost: %v, %d reboots", err, b.reboots)
				}
				s.StateDir = dir
			}
			w.boot, b.reboots, w.trying, w.args = w.boot+1, 0, false, ""
			if err := s.Deadman(ctx); err != nil || b.reboots != 0 {
				t.Errorf("in the next boot, still read-only: %v, %d reboots", err, b.reboots)
			}
		})
	}
}

// The wall clock of a board says what it likes: 1970 until it is set, 2100 by a bad server. Nothing of a trial goes by it.
func TestATrialDoesNotGoByTheWallClock(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for n, clock := range []func(w *world) time.Time{
			func(*world) time.Time { return time.Unix(0, 0) },
			func(w *world) time.Time { return time.Date(2100-70*(w.boot%2)*2, 1, 1, 0, 0, 0, 0, time.UTC) },
			func(w *world) time.Time { // it is set in the middle of it
				if w.uptime < 3*time.Minute {
					return time.Unix(0, 0).Add(w.uptime)
				}
				return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Add(w.uptime)
			},
		} {
			w, f := newWorldOf(t, way, profileOf(way))
			o.befall(w)
			w.clock = clock
			st, j, h := w.live(f, o.fares)
			if w.check(st, j, h, o.want); w.uptime > time.Hour {
				t.Errorf("clock %d: it has taken %s", n, w.uptime)
			}
		}
	})
}

// FuzzTheHelpersSocket: whatever comes, nothing is done to the board without the hub's signature.
func FuzzTheHelpersSocket(f *testing.F) {
	for _, op := range []string{OpStatus, OpPin, OpInspect, OpArm, OpKeep, OpRestore, OpUndo, "x"} {
		f.Add([]byte(`{"op":"`+op+`"}`+"\n"), false)
		f.Add([]byte(`{"op":"`+op+`","digest":"sha256:0","node":"pi-1","key":"AAAA","firmware":{"generation":7,"digest":"sha256:0","document":"e30=","signature":"AAAA","try":true}}`+"\n"), true)
	}
	f.Add([]byte(`{"op":"arm","firmware":null}`+"\n"), true)
	f.Add([]byte(strings.Repeat("[", 1000)+"\n"), false)
	f.Add(bytes.Repeat([]byte("x"), maxRequest+2), false)
	f.Fuzz(func(t *testing.T, text []byte, pinned bool) {
		w, _ := newWorldOf(t, byGrub, profileOf(byGrub))
		h, err := NewHelper(w, w, "/var/helper")
		if err != nil {
			t.Fatal(err)
		}
		if pinned {
			if err := h.Pin("pi-1", hubsKey); err != nil {
				t.Fatal(err)
			}
		}
		was := snapshot(w)
		r, err := readRequest(bytes.NewReader(text))
		if err != nil {
			return
		}
		if !pinned && r.Op == OpPin {
			return // the first is believed
		}
		h.Do(r) // a reboot would panic
		if now := snapshot(w); !maps.Equal(was, now) {
			t.Errorf("%q has changed the board's files", text)
		}
		if h.state.Phase != PhaseIdle || h.state.Kept != "" {
			t.Errorf("%q is at %q %q", text, h.state.Phase, h.state.Kept)
		}
	})
}

func snapshot(w *world) map[string]string {
	out := map[string]string{}
	for name, i := range w.names {
		if strings.HasPrefix(name, "/boot") {
			out[name] = fmt.Sprintf("%q", i.text)
		}
	}
	return out
}
