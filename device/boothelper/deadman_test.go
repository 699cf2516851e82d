package boothelper_test

import (
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
)

// armed returns a board whose deadman trial was armed; a power cut at call stopAt interrupts it.
func armed(t *testing.T, stopAt int) (w *fakeBoard, h *boothelper.Helper) {
	w, f := newBoardOf(t, boothelper.ByDeadman, boothelper.ProfileOf(boothelper.ByDeadman))
	h = again(t, w)
	if err := h.Pin("pi-1", boothelper.HubsKey); err != nil {
		t.Fatal(err)
	}
	defer func() {
		switch p := recover(); p {
		case errPower:
			w.lose(cut{names: true, text: 2})
		case errReboot:
			w.lose(cut{names: true, text: 2}) // all files were written
		default:
			t.Fatalf("Arm panics with %v", p)
		}
		h = again(t, w)
	}()
	if stopAt > 0 {
		w.stopAt, w.stop = w.calls+stopAt, errPower
	}
	t.Fatal(h.Arm(f))
	return
}

func again(t *testing.T, w *fakeBoard) *boothelper.Helper {
	t.Helper()
	h, err := boothelper.New(w, w, "/var/helper")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A trial whose files were never written has not run, so its configuration is not bad.
func TestADeadmansTrialWithoutFilesIsNotBad(t *testing.T) {
	w, h := armed(t, 4) // storing the state takes three calls
	if err := h.Settle(); err != nil {
		t.Fatal(err)
	}
	if s := h.Status(); s.Phase != boothelper.PhaseIdle || s.Left != "" || s.Tryboot || !like(w.runs, w.old) {
		t.Errorf("the helper's status is %+v, want no trial and the old files", s)
	}
}

func TestTheBootAfterADeadmansTrialRestoresTheOldFiles(t *testing.T) {
	w, h := armed(t, 0)
	if err := h.Settle(); err != nil {
		t.Fatal(err)
	}
	if s := h.Status(); !s.Tryboot || s.Phase != boothelper.PhaseArmed || !like(w.runs, w.new) {
		t.Fatalf("the trial does not run: %+v", s)
	}
	if trial, left := h.Overdue(); !trial || left < time.Minute {
		t.Errorf("Overdue returns %v, %s; want a trial with at least a minute left", trial, left)
	}
	w.lose(cut{})
	func() {
		defer func() {
			if p := recover(); p != errReboot {
				t.Fatalf("the board does not reboot out of the ended trial: %v", p)
			}
		}()
		t.Fatal(again(t, w).Settle())
	}()
	w.lose(cut{})
	h = again(t, w)
	if err := h.Settle(); err != nil {
		t.Fatal(err)
	}
	if s := h.Status(); s.Phase != boothelper.PhaseIdle || s.Left == "" || s.Tryboot || !like(w.runs, w.old) {
		t.Errorf("the helper's status is %+v, want no trial and the old files", s)
	}
}

// A trial that is restored before the board boots it needs no reboot, unless the power is cut
// during the restore.
func TestADeadmansTrialCanBeRestoredBeforeItRuns(t *testing.T) {
	for stopAt := range 40 {
		w, f := newBoardOf(t, boothelper.ByDeadman, boothelper.ProfileOf(boothelper.ByDeadman))
		h := again(t, w)
		if err := h.Pin("pi-1", boothelper.HubsKey); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() { _ = recover() }() // the test suppresses the reboot
			t.Fatal(h.Arm(f))
		}()
		cutOff := false
		func() {
			defer func() {
				if p := recover(); p != nil {
					cutOff = true
					w.lose(cuts[stopAt%len(cuts)])
				}
			}()
			w.stopAt, w.stop = w.calls+stopAt, errPower
			if err := again(t, w).Restore(); err != nil {
				t.Fatal(err)
			}
		}()
		w.stopAt = 0
		for range 4 { // up to four boots
			func() {
				defer func() {
					if p := recover(); p != nil {
						w.lose(cuts[stopAt%len(cuts)])
					}
				}()
				h = again(t, w)
				if err := h.Settle(); err != nil {
					t.Fatal(err)
				}
				if h.Status().Phase == boothelper.PhaseArmed { // the restore was not stored yet: repeat it
					if err := h.Restore(); err != nil {
						t.Fatal(err)
					}
				}
				if err := h.Leave(); err != nil {
					t.Fatal(err)
				}
			}()
		}
		if s := h.Status(); s.Phase != boothelper.PhaseIdle || !like(w.runs, w.old) || !w.files().Equal(w.old) ||
			!cutOff && s.Left != "" {
			t.Errorf("power cut at call %d: the status is %+v, the board runs %q; want the old files", stopAt, s,
				w.runs.Cmdline)
		}
	}
}
