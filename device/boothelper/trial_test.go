package boothelper_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/device/firmware"
	"flotilla.dev/shared/wire"
)

func TestATrialEndsKeptOrRolledBack(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, o outcome) {
		w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
		o.applyTo(w)
		st, j, h := w.live(f, o.health)
		w.check(st, j, h, o.want)
		if o.want == wire.FirmwareUpToDate {
			return
		}
		if bad := st.State == wire.FirmwareRolledBack; bad != slices.Equal(st.Bad, []string{f.Digest}) || !bad &&
			len(st.Bad) > 0 || st.Message == "" {
			t.Errorf("the status is %+v", st)
		}
		boots := w.boots
		if w.live(f, well); w.boots != boots {
			t.Error("a failed configuration is tried again by itself")
		}
		again := *f
		again.Retry, w.hangs, w.dies = 1, nil, nil
		st, j, h = w.live(&again, well)
		w.check(st, j, h, wire.FirmwareUpToDate)
	})
}

// undoing returns a board that has kept a configuration and is asked to undo it. The outcome
// applies to the undo.
func undoing(t *testing.T, way string, o outcome) (*fakeBoard, *wire.Firmware) {
	w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
	st, j, h := w.live(f, well)
	w.check(st, j, h, wire.FirmwareUpToDate)
	if h.Kept != f.Digest {
		t.Fatalf("the configuration is not kept: %+v", h)
	}
	w.kept = true
	o.applyTo(w)
	undo := *f
	undo.Undo = true
	return w, &undo
}

// goneBack checks that an undo has ended.
func (w *fakeBoard) goneBack(st *wire.FirmwareStatus, j firmware.Journal, h boothelper.Status, want ...string) {
	w.t.Helper()
	w.check(st, j, h, want...)
	if (st.State == wire.FirmwareUpToDate) != (h.Kept == "") || st.Candidate != "" || len(st.Bad) > 0 ||
		st.Digest != h.Kept {
		w.t.Fatalf("after the undo the status is %+v, and the helper has kept %q", st, h.Kept)
	}
}

func undone(o outcome) string {
	if o.want == wire.FirmwareRolledBack {
		return wire.FirmwareFailed
	}
	return o.want
}

// An undo tries the files from before a kept configuration, because they may no longer work.
func TestAnUndoIsATrial(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, o outcome) {
		w, f := undoing(t, way, o)
		st, j, h := w.live(f, o.health)
		w.goneBack(st, j, h, undone(o))
		if o.want != wire.FirmwareRolledBack {
			return
		}
		if st.Message == "" {
			t.Errorf("the status is %+v", st)
		}
		boots := w.boots
		if st, _, _ = w.live(f, well); w.boots != boots {
			t.Error("a failed configuration is tried again by itself")
		}
		w.goneBack(st, j, h, wire.FirmwareFailed)
		keep := *f
		keep.Undo = false
		if st, _, _ = w.live(&keep, well); st.State != wire.FirmwareUpToDate || w.boots != boots {
			t.Errorf("after the undo was withdrawn the status is %+v", st)
		}
		again := *f
		again.Retry, w.hangs, w.dies = 1, nil, nil
		st, j, h = w.live(&again, well)
		w.goneBack(st, j, h, wire.FirmwareUpToDate)
	})
}

func TestATrialWithoutAVerdictIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name          string
		ignores, dies int
		want          string
		trials        int
	}{
		{"the firmware boots the trial", 0, 0, wire.FirmwareUpToDate, 1},
		{"the firmware ignores the first trial", 1, 0, wire.FirmwareUpToDate, 2},
		{"the firmware ignores two trials, and boots the third", 2, 0, wire.FirmwareUpToDate, 3},
		{"the power is cut in the first trial", 0, 1, wire.FirmwareUpToDate, 2},
		{"the firmware ignores a trial, and the power is cut in the next one", 1, 1, wire.FirmwareUpToDate, 3},
		{"the firmware ignores every trial", 100, 0, wire.FirmwareFailed, 3},
		{"the power is cut in two trials, and the firmware ignores the third", 0, 2, wire.FirmwareUpToDate, 3},
		{"the power is cut in every trial", 0, 100, wire.FirmwareRolledBack, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, f := newBoardOf(t, boothelper.ByTryboot, boothelper.ProfileOf(boothelper.ByTryboot))
			trials := 0
			w.ignores, w.armed = c.ignores, func() { trials++ }
			w.dies = func(runs boothelper.Files) bool {
				if !w.trying || c.dies == 0 {
					return false
				}
				c.dies--
				return true
			}
			st, j, h := w.live(f, well)
			w.check(st, j, h, c.want)
			if trials != c.trials || (len(st.Bad) > 0) != (c.want == wire.FirmwareRolledBack) {
				t.Errorf("after %d trials, want %d, the status is %+v", trials, c.trials, st)
			}
			if c.want == wire.FirmwareFailed && !strings.HasPrefix(st.Message, "was not tried in 3 attempts: ") {
				t.Errorf("the message is %q", st.Message)
			}
			boots := w.boots
			w.ignores, w.dies = 0, nil
			if st, _, _ = w.live(f, well); w.boots != boots {
				t.Errorf("the configuration is tried again by itself: %+v", st)
			}
			again := *f
			again.Retry = 1
			st, j, h = w.live(&again, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
		})
	}
}

// A trial does not use the wall clock, which may be 1970 until it is set, or 2100 from a bad
// server.
func TestATrialIgnoresTheWallClock(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for n, clock := range []func(w *fakeBoard) time.Time{
			func(*fakeBoard) time.Time { return time.Unix(0, 0) },
			func(w *fakeBoard) time.Time { return time.Date(2100-70*(w.boot%2)*2, 1, 1, 0, 0, 0, 0, time.UTC) },
			func(w *fakeBoard) time.Time { // the clock is set during the trial
				if w.uptime < 3*time.Minute {
					return time.Unix(0, 0).Add(w.uptime)
				}
				return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Add(w.uptime)
			},
		} {
			w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
			o.applyTo(w)
			w.clock = clock
			st, j, h := w.live(f, o.health)
			if w.check(st, j, h, o.want); w.uptime > time.Hour {
				t.Errorf("clock %d: the trial has taken %s", n, w.uptime)
			}
		}
	})
}

func TestAnAgentThatNeverRunsIsRolledBackByTheDeadman(t *testing.T) {
	w, f := newBoard(t, boothelper.TrialProfile())
	helper, err := boothelper.New(w, w, "/var/helper")
	if err != nil {
		t.Fatal(err)
	}
	reboots := func(do func() error) {
		t.Helper()
		defer func() {
			if p := recover(); p != errReboot {
				t.Fatalf("the board does not reboot: %v", p)
			}
			w.start()
		}()
		t.Fatal(do())
	}
	if trial, _ := helper.Overdue(); trial {
		t.Error("a trial is overdue before the first trial")
	}
	if err := helper.Pin("pi-1", boothelper.HubsKey); err != nil {
		t.Fatal(err)
	}
	reboots(func() error { return helper.Arm(f) })
	if helper, err = boothelper.New(w, w, "/var/helper"); err != nil {
		t.Fatal(err)
	}
	trial, left := helper.Overdue()
	if !trial || left <= 10*time.Minute {
		t.Fatalf("Overdue returns %v, %s; want a trial with more than 10m left", trial, left)
	}
	if w.uptime += left; !w.runs.Equal(w.new) {
		t.Fatal("the trial does not run")
	}
	if _, left = helper.Overdue(); left > 0 {
		t.Fatalf("after the deadline Overdue returns %s, want no time left", left)
	}
	reboots(helper.Restore)
	// The agent restarts with its journal.
	agent := &boothelper.Slots{Disk: w, Dir: "/var/agent", Name: "firmware"}
	if err := agent.Save([]byte(`{"phase":"arming","boot":"boot-1","candidate":"` + f.Digest +
		`","attempts":1}`)); err != nil {
		t.Fatal(err)
	}
	st, j, h := w.live(f, well)
	w.check(st, j, h, wire.FirmwareRolledBack)
	if !strings.Contains(st.Message, "the agent did not run") {
		t.Errorf("the message is %q", st.Message)
	}
}

func fine() string { return "" }

func TestATrialIsJudgedByTheRunningCommandLine(t *testing.T) {
	plain := func(w *fakeBoard) { w.args = "root=/dev/mmcblk0p2 rootwait" }
	for _, c := range []struct {
		name, way string
		boots     func(w *fakeBoard, trial bool)
		want      string
	}{
		{"the firmware reports a trial, and has booted the old files", boothelper.ByTryboot, func(w *fakeBoard, trial bool) {
			if trial {
				w.runs = w.old
				plain(w)
			}
		}, wire.FirmwareFailed},
		{"the firmware reports a trial, and has booted another configuration's trial", boothelper.ByTryboot, func(w *fakeBoard, trial bool) {
			if trial {
				w.args = trialWord.ReplaceAllString(w.args, " "+boothelper.GrubTrialOf+"0123456789abcdef")
			}
		}, wire.FirmwareFailed},
		{"the firmware reports no trial, but the kernel has the trial's command line", boothelper.ByTryboot, func(w *fakeBoard, _ bool) { w.trying = false }, wire.FirmwareUpToDate},
		{"the board boots from another card", boothelper.ByDeadman, func(w *fakeBoard, _ bool) { plain(w) }, wire.FirmwareFailed},
		{"the board's firmware renames its console", boothelper.ByDeadman, func(w *fakeBoard, _ bool) {
			w.args = strings.ReplaceAll(w.args, "console=serial0,115200", "console=ttyS0,115200")
		}, wire.FirmwareUpToDate},
		{"U-Boot boots from the eMMC, not from the card", boothelper.ByUEnv, func(w *fakeBoard, _ bool) { plain(w) }, wire.FirmwareFailed},
		{"GRUB boots another entry, without the trial's words", boothelper.ByGrub, func(w *fakeBoard, _ bool) { plain(w) }, wire.FirmwareFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := boothelper.ProfileOf(c.way)
			if c.way == boothelper.ByDeadman {
				b.Cmdline.Add = append(b.Cmdline.Add, "console=serial0,115200")
			}
			w, f := newBoardOf(t, c.way, b)
			w.booted = func() { c.boots(w, w.trying) }
			st, j, h := w.live(f, well)
			if st.State != c.want || len(st.Bad) > 0 || j.Phase != firmware.Idle || h.Phase != boothelper.PhaseIdle {
				t.Fatalf("the status is %+v, want state %s without a bad configuration", st, c.want)
			}
			if files := w.files(); !files.Equal(w.old) && c.want == wire.FirmwareFailed || w.trialsLeft() {
				t.Errorf("the boot files are not the old ones, or a trial is left:\n%s", files.Config)
			}
			w.booted = nil
			again := *f
			again.Retry = 1
			st, j, h = w.live(&again, well)
			w.check(st, j, h, wire.FirmwareUpToDate)
		})
	}
}
