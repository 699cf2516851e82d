package boothelper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/wire"
)

// One or several calls in a row fail: the disk is full (removals still work), read-only, or returns
// I/O errors. Affected are the boot files, the stored state, or all files.
func TestWhereverTheDiskFails(t *testing.T) {
	runs := 0
	kinds := []struct {
		name string
		err  error
		full bool
	}{{"full", unix.ENOSPC, true}, {"read-only", unix.EROFS, false}, {"gives errors", unix.EIO, false}}
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for undo := range 2 {
			for n := 1; n < 500; n++ {
				if onlyLong(t, n+undo) {
					continue
				}
				beyond := true // the run has fewer than n calls
				for k, calls := range [][]int{{1, 30}, {4}}[n%2] {
					kind := kinds[(n+k)%len(kinds)]
					var w *fakeBoard
					var f *wire.Firmware
					if undo > 0 {
						w, f = undoing(t, way, o)
					} else {
						w, f = newBoardOf(t, way, boothelper.ProfileOf(way))
						o.applyTo(w)
					}
					where := []string{"", w.dir(), "/var/helper", "/var/agent"}[(n/2)%4]
					from, failed := w.calls+n, 0
					w.fails = func(call int, dir string, frees bool) error {
						if call >= from {
							beyond = false
						}
						if call < from || failed >= calls || where != "" && dir != where || frees && kind.full {
							return nil
						}
						failed++
						return kind.err
					}
					st, j, h := w.live(f, o.health)
					runs++
					want := []string{o.want, wire.FirmwareFailed}
					if o.want == wire.FirmwareUpToDate {
						want = append(want, wire.FirmwareRolledBack)
					}
					if undo > 0 {
						if want = append(want, wire.FirmwareFailed); o.want == wire.FirmwareRolledBack {
							want = []string{wire.FirmwareFailed}
						}
						w.goneBack(st, j, h, want...)
					} else {
						w.check(st, j, h, want...)
					}
					if t.Failed() {
						t.Fatalf("undo %d, first failing call %d of %d, %s: %s", undo, n, calls, where, kind.name)
					}
				}
				if beyond {
					if n < 20 {
						t.Fatalf("the run has only %d calls", n)
					}
					break
				}
			}
		}
	})
	t.Logf("%d runs", runs)
}

// During a trial that breaks the network, the boot partition becomes read-only until the next boot,
// as after an error of the file system, or full for good, as by a new kernel.
func TestATrialEndsOnAFullOrReadOnlyBootPartition(t *testing.T) {
	for _, way := range ways {
		for _, kind := range []struct {
			name string
			err  error
		}{{"read-only", unix.EROFS}, {"full", unix.ENOSPC}} {
			for undo := range 2 {
				t.Run(fmt.Sprintf("%s: %s, undo %d", way, kind.name, undo), func(t *testing.T) {
					var w *fakeBoard
					var f *wire.Firmware
					if undo > 0 {
						w, f = undoing(t, way, outcomes[1])
					} else {
						w, f = newBoardOf(t, way, boothelper.ProfileOf(way))
					}
					prev := func() (n int) {
						for name := range w.names {
							if path.Dir(name) == w.dir() && strings.HasSuffix(name, ".prev") {
								n += len(w.names[name].text)
							}
						}
						return n
					}
					boot, before := 0, 0
					w.fails = func(_ int, dir string, frees bool) error {
						if boot == 0 && w.tried(w.runs) && !w.early {
							boot, before = w.boot, prev()
						}
						switch {
						case boot == 0 || dir != w.dir():
							return nil
						case kind.err == unix.EROFS && w.boot != boot:
							return nil
						case kind.err == unix.ENOSPC && (frees || prev() < before):
							return nil // a removal has made room
						case kind.err == unix.ENOSPC && w.boot != boot && (way == boothelper.ByTryboot || way == boothelper.ByGrub):
							return nil // the next boot has room again
						}
						return kind.err
					}
					st, j, h := w.live(f, worse)
					if boot == 0 {
						t.Fatal("the trial did not run")
					}
					if undo > 0 {
						w.goneBack(st, j, h, wire.FirmwareFailed)
					} else {
						w.check(st, j, h, wire.FirmwareRolledBack)
					}
				})
			}
		}
	}
}

// A realBoard is a board whose boot partition is a directory.
type realBoard struct {
	*fakeBoard
	at      string
	reboots int
}

func (b *realBoard) Boots() (string, string, error) { return b.backend(), b.at, nil }
func (b *realBoard) Reboot(string) error            { b.reboots++; return nil }

// armedOn returns a helper on the real disk with an armed trial.
func armedOn(t *testing.T, b boothelper.Board, dir string, f *wire.Firmware) *boothelper.Helper {
	t.Helper()
	h, err := boothelper.New(boothelper.Kernel{}, b, dir)
	if err == nil {
		err = errors.Join(h.Pin("pi-1", boothelper.HubsKey), h.Arm(f))
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// During the trial a new kernel has filled the boot partition to its last byte. The old files are
// still restored.
func TestADeadmanRestoresOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: no disk was filled: only root can mount a tmpfs")
	}
	w, f := newBoardOf(t, boothelper.ByDeadman, boothelper.ProfileOf(boothelper.ByDeadman))
	b := &realBoard{fakeBoard: w, at: t.TempDir()}
	if err := unix.Mount("tmpfs", b.at, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("SKIPPED: no disk was filled: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(b.at, unix.MNT_DETACH) })
	for name, text := range map[string][]byte{boothelper.ConfigTxt: w.old.Config, boothelper.CmdlineTxt: w.old.Cmdline} {
		if err := os.WriteFile(filepath.Join(b.at, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := armedOn(t, b, t.TempDir(), f)
	w.boot, w.args = w.boot+1, string(w.new.Cmdline)
	if err := h.Settle(); err != nil || !h.Status().Tryboot {
		t.Fatalf("the trial does not run: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b.at, "initrd.img"), make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := h.Restore(); err != nil {
		t.Error(err)
	}
	for name, old := range map[string][]byte{boothelper.ConfigTxt: w.old.Config, boothelper.CmdlineTxt: w.old.Cmdline} {
		if text, err := os.ReadFile(filepath.Join(b.at, name)); !bytes.Equal(text, old) || b.reboots != 2 {
			t.Errorf("after %d reboots %s is %q (%v), want %q after 2", b.reboots, name, text, err, old)
		}
	}
}

// Debian makes the root read-only after an error of the file system. Agent and helper cannot store
// anything then, but the deadman still ends the trial.
func TestTheDeadmanEndsATrialOnAReadOnlyRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can mount a tmpfs")
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
			b := &realBoard{fakeBoard: w, at: t.TempDir()}
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
			s := &boothelper.Server{Disk: boothelper.Kernel{}, Board: b, StateDir: dir, Log: slog.New(slog.DiscardHandler)}
			armedOn(t, b, dir, f)
			w.boot, b.reboots, w.trying, w.args = w.boot+1, 0, way == boothelper.ByTryboot, ""
			if way == boothelper.ByGrub || way == boothelper.ByTryboot {
				w.args = "ro " + boothelper.GrubTrialOf + boothelper.TrialName(f.Digest)
			}
			if err := s.Restore(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // with an ended context Deadman checks once
			w.uptime = 5 * time.Minute
			if err := s.Deadman(ctx); err != nil || b.reboots != 0 {
				t.Fatalf("before the deadline: %v, %d reboots, want none", err, b.reboots)
			}
			w.uptime = 13 * time.Minute
			if err := s.Deadman(ctx); err != nil || b.reboots == 0 {
				t.Errorf("after the deadline: %v, %d reboots, want at least one", err, b.reboots)
			}
			if way == boothelper.ByTryboot ||
				way == boothelper.ByGrub { // these boot loaders report the trial even if the stored state is lost
				*s = boothelper.Server{Disk: boothelper.Kernel{}, Board: b, StateDir: t.TempDir(), Log: s.Log}
				for i := range 2 {
					if err := os.WriteFile(filepath.Join(s.StateDir, fmt.Sprintf("boot-helper.%d.state", i)), []byte("damaged"),
						0o600); err != nil {
						t.Fatal(err)
					}
				}
				b.reboots, w.uptime = 0, 62*time.Minute
				if err := s.Deadman(ctx); err != nil || b.reboots != 1 {
					t.Errorf("with a lost state: %v, %d reboots, want one", err, b.reboots)
				}
				s.StateDir = dir
			}
			w.boot, b.reboots, w.trying, w.args = w.boot+1, 0, false, ""
			if err := s.Deadman(ctx); err != nil || b.reboots != 0 {
				t.Errorf("in the next boot, with a read-only state: %v, %d reboots, want none", err, b.reboots)
			}
		})
	}
}
