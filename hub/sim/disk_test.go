package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// ail makes each commit of the hub's disk return the error of how; nil repairs the disk.
func (w *world) ail(how func(rows []control.Row) error) {
	if how == nil {
		w.sick.Store(nil)
		return
	}
	w.sick.Store(&how)
}

// known tells whether the hub has a row's object.
func (w *world) known(r control.Row) bool { return w.snapshot().Get(r.Key) != nil }

// isNew tells whether a row adds an object that a full disk refuses.
func (w *world) isNew(r control.Row) bool {
	return r.Object != nil && !r.Key.Kind.Row().Expendable && !w.known(r)
}

// Whatever the disk does, no lease is lost, and no live device becomes Unknown. The hub tries once
// a second and logs once a minute.
func TestFleetAFailingDiskMakesNoNodeUnknown(t *testing.T) {
	t.Parallel()
	third := func(err error) func(*world) func([]control.Row) error {
		return func(*world) func([]control.Row) error {
			n := 0
			return func([]control.Row) error {
				if n++; n%3 > 0 {
					return nil
				}
				return err
			}
		}
	}
	always := func(err error) func(*world) func([]control.Row) error {
		return func(*world) func([]control.Row) error { return func([]control.Row) error { return err } }
	}
	for _, c := range []struct {
		name    string
		how     func(w *world) func([]control.Row) error
		lasting bool // the disk stores nothing while the failure lasts
	}{
		{"the disk is full", always(store.ErrFull), true},
		{"the disk is remounted read-only", always(syscall.EROFS), true},
		{"the disk returns an I/O error", always(syscall.EIO), true},
		{"every third commit fails", third(syscall.EIO), false},
		{"the disk accepts changes, but no new objects", func(w *world) func([]control.Row) error {
			return func(rows []control.Row) error {
				if slices.ContainsFunc(rows, w.isNew) {
					return store.ErrFull
				}
				return nil
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				each, rounds := 20, 100
				if !long {
					each, rounds = 8, 40
				}
				lights := slices.Concat(w.newLights("oslo", each), w.newLights("bergen", each))
				newcomer := w.newLight("bergen-new", "bergen")
				w.lightUp(lights, int32(2*each))
				silent := lights[0]
				w.join(false, silent) // the deadline of the silent node makes the hub write
				time.Sleep(25 * time.Second)
				w.ail(c.how(w))
				w.light(newcomer) // a device registers meanwhile
				began := time.Now()
				for n := range rounds {
					time.Sleep(3 * time.Second)
					w.restart(n, silent) // a device reports a new status
				}
				synctest.Wait()
				if tries, most := w.sickened.Load(), int64(3*time.Since(began)/time.Second); tries > most {
					t.Errorf("%d commits failed in %s, want at most three a second", tries, time.Since(began))
				}
				if n := w.lines.excuse("pass failed, will try again"); n > 6 && c.lasting || n > int(w.sickened.Load()) {
					t.Errorf("the log has %d lines about the failure in at most five minutes", n)
				}
				for _, l := range lights[1:] {
					if w.ready(l.name) != corev1.ConditionTrue {
						t.Errorf("%s is %s", l.name, w.ready(l.name))
					}
				}
				if n := w.snapshot().Node(newcomer.name); c.lasting && n != nil {
					t.Error("a node that is not stored is shown")
				}
				w.ail(nil)
				time.Sleep(2 * time.Second)
				w.lines.excuse("pass failed, will try again")
				w.lines.excuse("new objects cannot be stored")
				for _, s := range w.look.sentences("Ready=Unknown") {
					if s.text[:len("node "+silent.name+" ")] != "node "+silent.name+" " {
						t.Errorf("%s", s.text)
					}
				}
				if w.ready(silent.name) != corev1.ConditionUnknown {
					t.Errorf("the silent node is %s", w.ready(silent.name))
				}
				w.rejoin(silent)
				if w.ready(newcomer.name) != corev1.ConditionTrue {
					t.Error("the new device is not registered")
				}
			})
		})
	}
}

// restart makes one device after the other report a new boot.
func (w *world) restart(n int, but *light) {
	names := make([]string, 0, len(w.lights))
	for name, l := range w.lights {
		if l != but && l.lit {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	l := w.lights[names[n%len(names)]]
	l.post(func() {
		if loop := l.hub(); loop != nil {
			l.say(loop)
		}
	})
}

// Users can free space although the deciders want to add an object.
func TestFleetUsersCanFreeSpaceOnAFullDisk(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		lights := w.newLights("oslo", 3)
		w.lightUp(lights, 3)
		w.deploy("spare", 2)
		time.Sleep(10 * time.Second)
		w.ail(func(rows []control.Row) error {
			if slices.ContainsFunc(rows, w.isNew) {
				return store.ErrFull
			}
			return nil
		})
		w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) { // the pod's replacement cannot be stored
			d := s.Deployment("default", "kiosk").DeepCopy()
			five := int32(5)
			d.Spec.Replicas = &five
			d.Generation++
			return []state.Change{state.Put(d, "")}, nil
		})
		time.Sleep(5 * time.Second)
		w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(s.Deployment("default", "spare"), "")}, nil
		})
		if w.snapshot().Deployment("default", "spare") != nil {
			t.Error("the deleted pod still exists")
		}
		_, err := w.hub.Loop.Do(context.Background(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			d := s.Deployment("default", "kiosk").DeepCopy()
			d.Name, d.UID = "another", ""
			return []state.Change{state.Put(d, "")}, nil
		})
		if !errors.Is(err, store.ErrFull) {
			t.Errorf("an addition gets the error %v", err)
		}
		w.ail(nil)
		time.Sleep(30 * time.Second)
		w.lines.excuse("pass failed, will try again")
		if n := len(w.pods("kiosk")); n != 5 {
			t.Errorf("the disk has space again, and %d pods exist", n)
		}
	})
}

// A hub can start while its disk is full, and keeps its fleet.
func TestFleetAHubStartsOnAFullDisk(t *testing.T) {
	t.Parallel()
	for _, with := range []error{store.ErrFull, syscall.EIO} {
		t.Run(fmt.Sprint(with), func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				lights := w.newLights("oslo", 5)
				w.lightUp(lights, 5)
				w.join(false, lights[0])
				time.Sleep(20 * time.Second)
				w.crashHub()
				w.ail(func([]control.Row) error { return with })
				time.Sleep(time.Minute)
				w.startHub()
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for _, l := range lights[1:] {
					if w.ready(l.name) != corev1.ConditionTrue {
						t.Errorf("%s is %s", l.name, w.ready(l.name))
					}
				}
				w.ail(nil)
				time.Sleep(2 * time.Second)
				w.lines.excuse("pass failed, will try again")
				if said := w.look.sentences("Ready=Unknown"); len(said) != 1 {
					t.Errorf("%v", said)
				}
				w.rejoin(lights[0])
			})
		})
	}
}
