package boothelper_test

import (
	"hash/crc32"
	"os"
	"testing"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/wire"
)

// onlyLong reports whether only make test-long runs the stop at call n. make test runs one stop of
// sixty, a different one for each way and outcome.
func onlyLong(t *testing.T, n int) bool {
	return os.Getenv("FLOTILLA_LONG") == "" && (n+int(crc32.ChecksumIEEE([]byte(t.Name()))%60))%60 > 0
}

// The power is cut, or the process killed, at every call that changes the disk.
func TestWhereverThePowerFails(t *testing.T) {
	runs := 0
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for k, how := range append(cuts, cut{text: -1}) {
			for n := 1; n < 500; n++ {
				if onlyLong(t, n+k) {
					continue
				}
				w, f := newBoardOf(t, way, boothelper.ProfileOf(way))
				o.applyTo(w)
				w.stopAt, w.stop, w.cut = n, errPower, how
				if how.text < 0 {
					w.stop = errCrash
				}
				st, j, h := w.live(f, o.health)
				runs++
				if w.stopAt != 0 { // the run has fewer than n calls
					if n < 20 {
						t.Fatalf("the run has only %d calls", n)
					}
					break
				}
				want := []string{o.want}
				if o.want != wire.FirmwareUpToDate || w.stop == errPower { // one of the three attempts was interrupted
					want = append(want, wire.FirmwareFailed)
				}
				if t.Failed() {
					t.Fatalf("call %d, %+v", n, how)
				}
				w.check(st, j, h, want...)
			}
		}
	})
	t.Logf("%d runs", runs)
}

// The recovery from the first stop is stopped too, and sometimes also the recovery from the second.
func TestWhereverThePowerFailsTwice(t *testing.T) {
	runs := 0
	stops := func(n, m int) []stop {
		out := []stop{{n, errPower, cuts[(n+m)%len(cuts)]}, {m, errPower, cuts[(n+2*m)%len(cuts)]}}
		if (n+m)%2 == 0 { // data of a killed process stays until the power is cut
			out[0].what = errCrash
		}
		if m%4 == 0 {
			out[1].what = errCrash
		}
		if (n+m)%3 == 0 {
			out = append(out, stop{1 + (n+m)%7, errPower, cuts[m%len(cuts)]})
		}
		return out
	}
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for undo := range 2 {
			for n := 1; n < 500; n++ {
				if onlyLong(t, n+undo) {
					continue
				}
				last := 0 // the last n at which the first stop happened
				for m := 1; m < 40; m++ {
					if way != boothelper.ByDeadman && (n+m)%3 > 0 || m > 8 && (n+2*m)%11 > 0 { // most recoveries need only a few calls
						continue
					}
					var w *fakeBoard
					var f *wire.Firmware
					if undo > 0 {
						w, f = undoing(t, way, o)
					} else {
						w, f = newBoardOf(t, way, boothelper.ProfileOf(way))
						o.applyTo(w)
					}
					w.then = stops(n, m)
					w.next()
					st, j, h := w.live(f, o.health)
					runs++
					toCome := len(w.then)
					if w.stopAt != 0 {
						toCome++
					}
					switch {
					case undo == 0 && o.want == wire.FirmwareUpToDate:
						w.check(st, j, h, wire.FirmwareUpToDate, wire.FirmwareFailed)
					case undo == 0:
						w.check(st, j, h, wire.FirmwareRolledBack, wire.FirmwareFailed)
					case o.want == wire.FirmwareUpToDate:
						w.goneBack(st, j, h, wire.FirmwareUpToDate, wire.FirmwareFailed)
					default:
						w.goneBack(st, j, h, wire.FirmwareFailed)
					}
					if toCome < len(stops(n, m)) {
						last = n
					} else {
						break // the run has fewer than n calls
					}
					if toCome == len(stops(n, m))-1 {
						break // the recovery has fewer than m calls
					}
				}
				if last < n {
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

func TestAnUndoSurvivesAPowerCutAtEveryCall(t *testing.T) {
	runs := 0
	eachWay(t, func(t *testing.T, way string, o outcome) {
		for k, how := range append(cuts, cut{text: -1}) {
			for n := 1; n < 500; n++ {
				if onlyLong(t, n+k) {
					continue
				}
				w, f := undoing(t, way, o)
				w.stopAt, w.stop, w.cut = w.calls+n, errPower, how
				if how.text < 0 {
					w.stop = errCrash
				}
				st, j, h := w.live(f, o.health)
				runs++
				if w.stopAt != 0 { // the run has fewer than n calls
					if n < 20 {
						t.Fatalf("the run has only %d calls", n)
					}
					break
				}
				want := []string{undone(o)}
				if o.want == wire.FirmwareUpToDate && w.stop == errPower {
					want = append(want, wire.FirmwareFailed)
				}
				w.goneBack(st, j, h, want...)
			}
		}
	})
	t.Logf("%d runs", runs)
}
