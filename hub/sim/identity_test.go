package sim

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// secured starts a hub with TLS, and devices on oslo.
func (w *world) secured(names ...string) []*simDevice {
	w.t.Helper()
	time.Sleep(40 * 365 * 24 * time.Hour) // devices do not accept a time before their program was built
	w.tls = true
	w.startHub()
	for _, name := range names {
		d := w.newDevice(name, "oslo")
		if err := d.join(w.token("")); err != nil {
			w.t.Fatal(err)
		}
		d.start()
	}
	w.settleWithin(15*time.Second, "joining")
	return w.devices
}

// token creates a join token for oslo, optionally for one node.
func (w *world) token(node string) string {
	w.t.Helper()
	k, err := w.hub.Guard.CreateJoinToken(context.Background(),
		access.NewJoinToken{Site: "oslo", Node: node, Uses: 1, Life: time.Hour, By: "someone"})
	if err != nil {
		w.t.Fatal(err)
	}
	return k.Text()
}

// deleteNode deletes a Node as user kari.
func (w *world) deleteNode(name string) {
	w.t.Helper()
	w.do(func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		c := state.Remove(s.Node(name), "delete node "+name)
		c.By = "kari"
		return []state.Change{c}, nil
	})
}

// cloned copies a device's state directory, as a copied card does.
func (w *world) cloned(d *simDevice, key string) *simDevice {
	w.t.Helper()
	c := w.newClone(key, d.name, d.site)
	if err := os.CopyFS(filepath.Join(c.dir, "state"), os.DirFS(filepath.Join(d.dir, "state"))); err != nil {
		w.t.Fatal(err)
	}
	w.alter(func() { w.devices = w.devices[:len(w.devices)-1] }) // the clone does not count as a device of the fleet
	return c
}

func (w *world) conflict(node string) string {
	if c := state.NodeCondition(w.node(node), fleet.ConditionIdentityConflict); c != nil &&
		c.Status == corev1.ConditionTrue {
		return c.Message
	}
	return ""
}

// A device without a key uses the development listener. After its Node is deleted, it becomes a
// node again at once and gets its pods, because the hub knows that it made the device's desired
// state.
func TestFleetADeviceWithoutAKeyComesBackWhenItsNodeIsDeleted(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.startHub()
		w.fleet(2, "oslo")
		w.deploy("kiosk", 4)
		w.settleWithin(10*time.Second, "the deployment")
		d := w.devices[0]
		for range 2 {
			w.deleteNode(d.name)
			w.until(20*time.Second, "the node is ready again",
				func() bool { return w.snapshot().Node(d.name) != nil && w.ready(d.name) == corev1.ConditionTrue })
			w.deploy("later", 4)
			w.settleWithin(twoLeases, "another deployment")
			if rec := w.snapshot().Record(d.name); rec.Paused || rec.Generation != d.agent.StoredGeneration() {
				t.Errorf("the record has paused %t, generation %d, stored %d", rec.Paused, rec.Generation,
					d.agent.StoredGeneration())
			}
		}
	})
}

func TestFleetADeviceWhoseNodeIsDeletedIsDismissed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(w *world, d *simDevice)
	}{
		{"while the device is connected", func(w *world, d *simDevice) { w.deleteNode(d.name) }},
		{"although the hub crashes at that moment", func(w *world, d *simDevice) {
			w.deleteNode(d.name)
			w.crashHub()
			time.Sleep(20 * time.Second)
			w.startHub()
		}},
		{"while the device is cut off for a day", func(w *world, d *simDevice) {
			w.cut(d)
			half := 10 * time.Minute // half of the outage, in which nothing expires
			if long {
				half = 12 * time.Hour
			}
			time.Sleep(half)
			w.deleteNode(d.name)
			time.Sleep(half)
			w.restartHub(10 * time.Second)
			w.heal(d)
		}},
		{"although a Node of that name was made by hand since", func(w *world, d *simDevice) {
			w.cut(d)
			w.deleteNode(d.name)
			time.Sleep(time.Minute) // until its pods count as gone
			w.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.name,
				Labels: map[string]string{corev1.LabelTopologyZone: "oslo"}}})
			time.Sleep(time.Minute)
			w.heal(d)
		}},
		{"although another device has taken the name since", func(w *world, d *simDevice) {
			w.cut(d)
			w.deleteNode(d.name)
			other := w.newClone("other", d.name, "oslo")
			if err := other.join(w.token("")); err != nil {
				w.t.Fatal(err)
			}
			other.start()
			time.Sleep(2 * time.Minute)
			w.heal(d)
		}},
		{"although its certificate has expired meanwhile", func(w *world, d *simDevice) {
			w.cut(d)
			w.deleteNode(d.name)
			for _, d := range w.devices {
				d.powerCut()
			}
			w.stopHub()
			time.Sleep(370 * 24 * time.Hour)
			w.startHub()
			for _, d := range w.devices {
				d.powerOn()
			}
		}},
		{"although agent and device restart meanwhile", func(w *world, d *simDevice) {
			w.cut(d)
			w.deleteNode(d.name)
			d.powerCut()
			time.Sleep(time.Hour)
			d.powerOn()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				d := w.secured("pi-1", "pi-2")[0]
				w.deploy("kiosk", 4)
				w.settleWithin(10*time.Second, "the deployment")
				c.do(w, d)
				w.until(2*time.Minute, "the device is dismissed", func() bool { return d.dismissed() != nil })
				if told := d.dismissed(); told.By != "kari" || told.Reason != "Node pi-1 was deleted" || told.Time.IsZero() {
					t.Errorf("the device's dismissal is %+v", told)
				}
				w.until(45*time.Second, "the device's workloads are gone", func() bool { return len(d.running()) == 0 })
				if s := w.hub.Broker; s.Online("pi-1") && w.snapshot().Record("pi-1") == nil {
					t.Error("the dismissed device is connected")
				}
				time.Sleep(2 * time.Minute)
				if n := len(d.running()); n != 0 {
					t.Errorf("%d pods run again", n)
				}
				// The device joins again. The agent's main waits for that.
				d.stop()
				if err := os.RemoveAll(filepath.Join(d.dir, "state")); err != nil {
					t.Fatal(err)
				}
				if err := d.join(w.token("pi-1")); err != nil {
					t.Fatal(err)
				}
				d.start()
				w.until(time.Minute, "the device is a node again", func() bool {
					n := w.snapshot().Node("pi-1")
					return n != nil && state.ReadyOf(n) == corev1.ConditionTrue && w.snapshot().Record("pi-1").MachineID == d.machine
				})
			})
		})
	}
}

func TestFleetADismissedDevicesReportEndsItsPods(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		d := w.secured("pi-1", "pi-2")[0]
		w.deploy("kiosk", 4, func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(2)) })
		w.settleWithin(10*time.Second, "the deployment")
		w.deleteNode("pi-1")
		took := w.until(30*time.Second, "the device's pods are removed from the hub", func() bool {
			for p := range w.snapshot().PodsOn("pi-1") {
				_ = p
				return false
			}
			return true
		})
		t.Logf("after %s", took)
		if n := len(d.running()); n != 0 {
			t.Errorf("%d of the pods still run", n)
		}
	})
}

func TestFleetAReplacedDeviceIsRefused(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		stolen := w.secured("pi-1", "pi-2")[0]
		w.deploy("kiosk", 4)
		w.settleWithin(10*time.Second, "the deployment")
		before := w.snapshot().Record("pi-1")
		thief := node.Caller{Node: "pi-1", Key: before.Key, Machine: before.MachineID, Boot: "thief"}
		fresh := w.newClone("fresh", "pi-1", "oslo")
		if err := fresh.join(w.token("pi-1")); err != nil {
			t.Fatal(err)
		}
		// The second join was answered, so messages of the first key no longer count.
		if w.hub.Loop.Speaks(thief) || w.hub.Loop.Connect(thief) == nil {
			t.Error("the replaced device may act for the node")
		}
		w.until(5*time.Second, "the session of the replaced device is closed",
			func() bool { return !w.hub.Broker.Online("pi-1") })
		boot := w.snapshot().Record("pi-1").Boot
		time.Sleep(time.Minute)
		if rec := w.snapshot().Record("pi-1"); rec.Boot != boot {
			t.Errorf("the replaced device became the node again: boot %q", rec.Boot)
		}
		if told := stolen.dismissed(); told == nil || !strings.HasPrefix(told.By, "join token ") ||
			len(stolen.running()) != 0 {
			t.Errorf("the replaced device has the dismissal %+v and runs %d pods", told, len(stolen.running()))
		}
		fresh.start()
		w.until(time.Minute, "the new device is the node", func() bool {
			return w.snapshot().Record("pi-1").MachineID == fresh.machine && len(fresh.running()) == 2
		})
		w.crashHub()
		w.startHub()
		w.until(time.Minute, "the new device is the node after a crash",
			func() bool { return w.hub.Broker.Online("pi-1") && w.ready("pi-1") == corev1.ConditionTrue })
		if w.hub.Loop.Speaks(thief) {
			t.Error("after a crash the replaced device may act for the node")
		}
	})
}

func TestFleetACloneIsRefusedAndReported(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{false, true} {
		name := "with another machine id"
		if same {
			name = "with the same machine id"
		}
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, w *world) {
				d := w.secured("pi-1", "pi-2")[0]
				w.deploy("kiosk", 2)
				w.settleWithin(10*time.Second, "the deployment")
				boot := w.snapshot().Record("pi-1").Boot
				clone := w.cloned(d, "clone")
				if same {
					clone.machine = d.machine
				}
				clone.start()
				w.until(time.Minute, "the clone is shown", func() bool { return w.conflict("pi-1") != "" })
				w.look.mu.Lock()
				turns := w.look.ready["pi-1"]
				w.look.mu.Unlock()
				time.Sleep(10 * time.Minute)
				w.look.mu.Lock()
				if n := w.look.ready["pi-1"]; n != turns {
					t.Errorf("the node's health changed %d times", n-turns)
				}
				w.look.mu.Unlock()
				if rec := w.snapshot().Record("pi-1"); rec.Boot != boot {
					t.Error("the clone took the node over")
				}
				// The original is cut off. After its grace period the clone may be the node.
				w.cut(d)
				w.until(2*time.Minute, "the clone is the node", func() bool { return w.snapshot().Record("pi-1").Boot != boot })
				w.until(time.Minute, "it is ready", func() bool { return w.ready("pi-1") == corev1.ConditionTrue })
				// The original comes back. No device has to restart, although its boot is past.
				w.heal(d)
				clone.kill()
				w.until(3*time.Minute, "the original is the node again", func() bool {
					rec := w.snapshot().Record("pi-1")
					return rec.MachineID == d.machine && w.hub.Broker.Online("pi-1") && w.ready("pi-1") == corev1.ConditionTrue &&
						rec.Boot != clone.boot
				})
				w.until(15*time.Minute, "the conflict is removed", func() bool { return w.conflict("pi-1") == "" })
				for _, b := range w.snapshot().Record("pi-1").PastBoots {
					if b == w.snapshot().Record("pi-1").Boot {
						t.Error("a past boot is current again")
					}
				}
			})
		})
	}
}

func TestFleetTheDevelopmentListenerIsRefusedForJoinedNodes(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.secured("pi-1")
		for _, c := range []node.Caller{{Node: "pi-1"}, {Node: "pi-1", Machine: w.devices[0].machine},
			{Node: "pi-1", Key: "another"}} {
			if err := w.hub.Loop.Connect(c); err == nil || w.hub.Loop.Speaks(c) {
				t.Errorf("%+v may act for the node: %v", c, err)
			}
		}
		if err := w.hub.Loop.Connect(node.Caller{Node: "new"}); err != nil {
			t.Error(err)
		}
	})
}
