package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

func TestFleetARestartOfTheHubMovesNoDeadline(t *testing.T) {
	t.Parallel()
	t.Run("a restart during a toleration keeps the deadline", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			_, pod, tainted := w.oneSilent()
			time.Sleep(2 * time.Minute)
			w.crashHub()
			time.Sleep(20 * time.Second)
			w.startHub()
			w.until(5*time.Minute, "the eviction", func() bool { return len(w.look.sentences("evict "+pod)) > 0 })
			at := w.born.Add(w.look.sentences("evict " + pod)[0].at)
			if after := at.Sub(tainted); after < 5*time.Minute || after > 5*time.Minute+detection {
				t.Errorf("evicted %s after the taint, want 5 min", after)
			}
		})
	})
	t.Run("after a deadline has passed the hub first waits for the grace period", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			_, pod, _ := w.oneSilent()
			time.Sleep(4*time.Minute + 50*time.Second)
			w.crashHub()
			time.Sleep(time.Minute)
			w.startHub()
			began := w.clock()
			w.until(time.Minute, "the eviction", func() bool { return len(w.look.sentences("evict "+pod)) > 0 })
			if after := w.look.sentences("evict " + pod)[0].at - began; after < 40*time.Second ||
				after > 40*time.Second+detection {
				t.Errorf("evicted %s after the start, want 40 s", after)
			}
		})
	})
	t.Run("a device that returns in that time keeps its pod", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			d, pod, _ := w.oneSilent()
			time.Sleep(4*time.Minute + 50*time.Second)
			w.crashHub()
			time.Sleep(time.Minute)
			d.kill()
			w.heal(d)
			w.startHub()
			d.start()
			w.until(70*time.Second, "all connected", func() bool { return w.connected() == len(w.devices) })
			w.settleWithin(twoLeases, "the start")
			if n := len(w.look.sentences("evict " + pod)); n > 0 {
				t.Error("the pod was evicted")
			}
		})
	})
	t.Run("many restarts change nothing", func(t *testing.T) {
		simulate(t, func(t *testing.T, w *world) {
			w.startHub()
			w.fleet(2, "oslo", "bergen")
			w.deploy("kiosk", 4)
			w.settleWithin(10*time.Second, "the deployment")
			for range 12 {
				w.crashHub()
				time.Sleep(time.Duration(w.rand.Int64N(int64(90 * time.Second))))
				w.startHub()
				time.Sleep(time.Duration(w.rand.Int64N(int64(90 * time.Second))))
			}
			w.until(70*time.Second, "all connected", func() bool { return w.connected() == len(w.devices) })
			w.settleWithin(twoLeases, "the last start")
			for _, said := range []string{"evict ", "has stopped"} {
				if all := w.look.sentences(said); len(all) > 0 {
					t.Errorf("%v", all)
				}
			}
		})
	})
}

// oneSilent advances to the moment at which a node with a pod gets NoExecute.
func (w *world) oneSilent() (d *simDevice, pod string, tainted time.Time) {
	w.t.Helper()
	w.startHub()
	w.fleet(2, "oslo", "bergen")
	w.deploy("kiosk", 4)
	w.settleWithin(10*time.Second, "the deployment")
	p := w.pods("kiosk")[0]
	d = w.on(p.Spec.NodeName)
	w.cut(d)
	w.until(time.Minute, "NoExecute", func() bool { return ours(w.node(d.name)) != nil })
	return d, p.Name, ours(w.node(d.name)).TimeAdded.Time
}

func TestFleetARestoredHubChangesNothingBeforeResume(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"restored from a backup", "its disk reset to an older image", "began empty"} {
		t.Run(lost, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				slow := make(chan bool, 1)
				w.tap = func(p *packet) []time.Duration {
					if p.kind == "lease" && len(slow) > 0 {
						return []time.Duration{5 * time.Second}
					}
					return untouched
				}
				w.startHub()
				w.fleet(2, "oslo")
				w.deploy("kiosk", 2)
				w.settleWithin(10*time.Second, "the deployment")
				time.Sleep(time.Second)
				backup := filepath.Join(w.dir, "backup.db")
				if err := w.hub.Store.Backup(context.Background(), backup); err != nil {
					t.Fatal(err)
				}
				old := w.saveDisk("older")
				for n := range 5 { // the copy lacks these generations
					w.deploy(fmt.Sprint("later-", n), 2)
					w.settleWithin(10*time.Second, "a later deployment")
				}
				had := w.running()
				w.stopHub()
				switch lost {
				case "restored from a backup":
					if err := store.Restore(context.Background(), store.Options{Dir: w.cfg.DataDir, Version: "test", Log: w.log},
						backup); err != nil {
						t.Fatal(err)
					}
				case "began empty":
					w.loadDisk(t.TempDir())
				default:
					w.loadDisk(old)
				}
				slow <- true // the hub decides before the devices report
				w.startHub()
				w.until(70*time.Second, "all connected", func() bool { return w.connected() == 2 })
				w.deploy("hasty", 2)
				<-slow
				time.Sleep(10 * time.Minute)
				if now := w.running(); now != had {
					t.Errorf("without a resume the devices run\n%s\ninstead of\n%s", now, had)
				}
				for _, d := range w.devices {
					if rec := w.snapshot().Record(d.name); !rec.Paused {
						t.Errorf("%s is not paused: generation %d, stored %d", d.name, rec.Generation, d.agent.StoredGeneration())
					}
				}
				if _, err := w.hub.Loop.Resume(context.Background()); err != nil {
					t.Fatal(err)
				}
				w.settleWithin(twoLeases, "resume")
			})
		})
	}
}

// A hub that lost its newest generations reuses their numbers for other content.
func TestFleetARestoredHubDoesNotRepeatGenerations(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"restored from a backup", "the end of its database lost",
		"its machine reset, and one device reports it"} {
		t.Run(lost, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				w.startHub()
				w.fleet(2, "oslo")
				w.deploy("kiosk", 2)
				w.settleWithin(10*time.Second, "the deployment")
				time.Sleep(time.Second)
				backup := filepath.Join(w.dir, "backup.db")
				if err := w.hub.Store.Backup(context.Background(), backup); err != nil {
					t.Fatal(err)
				}
				old := w.saveDisk("older")
				w.deploy("later", 2)
				w.settleWithin(10*time.Second, "a later deployment")
				had := w.running()
				w.stopHub()
				away := w.devices // away while the hub continues
				switch lost {
				case "restored from a backup":
					if err := store.Restore(context.Background(), store.Options{Dir: w.cfg.DataDir, Version: "test", Log: w.log},
						backup); err != nil {
						t.Fatal(err)
					}
				case "the end of its database lost":
					witness, err := os.ReadFile(filepath.Join(w.cfg.DataDir, "hub.rev"))
					if err != nil {
						t.Fatal(err)
					}
					w.loadDisk(old)
					if err := os.WriteFile(filepath.Join(w.cfg.DataDir, "hub.rev"), witness, 0o600); err != nil {
						t.Fatal(err)
					}
				default:
					w.loadDisk(old)
					away = w.devices[1:]
				}
				w.cut(away...)
				w.startHub()
				w.lines.excuse("DATABASE IS OLDER than it was: changes are lost")
				if len(away) < len(w.devices) {
					w.until(time.Minute, "a device is paused", func() bool { return w.snapshot().Record(w.devices[0].name).Paused })
				}
				for n := range 5 {
					w.deploy(fmt.Sprint("hasty-", n), 2)
					time.Sleep(2 * time.Second)
				}
				w.stopHub() // the hub has stored what it knows of the devices
				w.startHub()
				w.heal(w.devices...)
				w.until(70*time.Second, "all connected", func() bool { return w.connected() == 2 })
				time.Sleep(10 * time.Minute)
				if now := w.running(); now != had {
					t.Errorf("without a resume the devices run\n%s\ninstead of\n%s", now, had)
				}
				for _, d := range w.devices {
					if rec := w.snapshot().Record(d.name); !rec.Paused {
						t.Errorf("%s is not paused: generation %d, stored %d", d.name, rec.Generation, d.agent.StoredGeneration())
					}
				}
				if _, err := w.hub.Loop.Resume(context.Background()); err != nil {
					t.Fatal(err)
				}
				w.settleWithin(twoLeases, "resume")
			})
		})
	}
}

func TestFleetTheHubsClockMayStartInThePast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var newest time.Time
	simulateIn(t, dir, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo", "bergen")
		w.deploy("kiosk", 4)
		w.settleWithin(10*time.Second, "the deployment")
		time.Sleep(time.Hour)
		w.deploy("later", 4)
		w.settleWithin(10*time.Second, "another deployment")
		newest = w.hub.Loop.Now()
	})
	// Every bubble begins at the same moment. This world is an hour in the past of the first.
	simulateIn(t, dir, func(t *testing.T, w *world) {
		w.life = 2
		w.startHub()
		w.fleet(2, "oslo", "bergen")
		if now := w.hub.Loop.Now(); now.Before(newest.Add(-10 * time.Second)) {
			t.Errorf("the hub's time is %s, and it has stored %s", now, newest)
		}
		time.Sleep(time.Minute)
		if v := w.hub.Loop.Liveness("oslo-1"); w.hub.Loop.Now().Sub(v.Seen) > 11*time.Second || v.Skew > -time.Hour/2 {
			t.Errorf("seen at %s, skew %s", v.Seen, v.Skew)
		}
		pod := w.pods("kiosk")[0]
		began := w.hub.Loop.Now()
		w.cut(w.on(pod.Spec.NodeName))
		w.until(45*time.Second, "Ready=Unknown", func() bool { return w.ready(pod.Spec.NodeName) == corev1.ConditionUnknown })
		if late := w.hub.Loop.Now().Sub(began); late < 25*time.Second {
			t.Errorf("the node is Unknown %s after its link was cut", late)
		}
		w.until(5*time.Minute+12*time.Second+detection, "the eviction",
			func() bool { return len(w.look.sentences("evict "+pod.Name)) > 0 })
	})
}

// A hub with a full disk continues with changes and deletions: nodes become Unknown, pods are
// evicted, and users delete objects. Additions follow when there is space again.
func TestFleetAHubWithAFullDiskKeepsHeartbeats(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		oslo, bergen := w.newLights("oslo", 20), w.newLights("bergen", 20)
		w.lightUp(slices.Concat(oslo, bergen), 40)
		w.deploy("spare", 2)
		time.Sleep(10 * time.Second)
		w.full.Store(true)
		replicas := func(n int32) {
			w.do(func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
				d := s.Deployment("default", "kiosk").DeepCopy()
				d.Spec.Replicas, d.Generation = &n, d.Generation+1
				return []state.Change{state.Put(d, "")}, nil
			})
		}
		replicas(41) // from now on the deciders want to add a pod
		w.join(false, oslo[0])
		time.Sleep(50 * time.Second)
		if w.ready("oslo-01") != corev1.ConditionUnknown {
			t.Errorf("a silent node is %s", w.ready("oslo-01"))
		}
		w.do(func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(s.Deployment("default", "spare"), "")}, nil
		})
		time.Sleep(time.Minute)
		for _, p := range w.pods("spare") {
			if p.DeletionTimestamp == nil {
				t.Errorf("pod %s of a deleted workload is not asked to leave", p.Name)
			}
		}
		if _, err := w.hub.Loop.Do(context.Background(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			d := s.Deployment("default", "kiosk").DeepCopy()
			d.Name, d.UID = "another", ""
			return []state.Change{state.Put(d, "")}, nil
		}); !errors.Is(err, control.ErrFull) {
			t.Errorf("an addition gets the error %v", err)
		}
		told := func() (open bool) {
			for i := range state.Each[*fleet.Incident](w.snapshot(), state.Incidents, "") {
				open = open || i.Cause == diagnose.HubDiskFull && i.State == fleet.IncidentOpen
			}
			return open
		}
		if !told() || !w.snapshot().DiskFull() {
			t.Error("no event reports the full disk")
		}
		w.until(7*time.Minute, "the eviction", func() bool { return len(w.look.sentences("evict kiosk")) > 0 })
		if n := len(w.pods("kiosk")); n > 40 {
			t.Errorf("the disk is full, and %d pods exist", n)
		}
		if n := w.lines.excuse("pass failed, will try again"); n > 0 {
			t.Errorf("the log has %d lines about failed passes", n)
		}
		w.full.Store(false)
		w.until(time.Minute, "the pod that could not be added", func() bool { return len(w.pods("kiosk")) >= 41 })
		time.Sleep(2 * time.Minute)
		if told() || w.snapshot().DiskFull() {
			t.Error("no event reports that the disk has space again")
		}
		w.rejoin(oslo[0])
	})
}
