package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A device that has stored a newer desired state is paused. The pause does not apply to the machine
// that replaces it, unless that machine reports the same.
func TestAPauseDoesNotApplyToAReplacement(t *testing.T) {
	for name, stored := range map[string]int64{"a new card": 0, "a card of another hub": 1 << 40} {
		listening(t, name, func(h *listener) {
			nodetest.Greet(h.t, h.l, "pi-1")
			h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
				Spec: corev1.PodSpec{NodeName: "pi-1", Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
			time.Sleep(10 * time.Second)
			h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 2, Status: 1, Desired: 1 << 50})
			synctest.Wait()
			if rec := h.l.Snapshot().Record("pi-1"); !rec.Paused {
				h.t.Fatalf("the device is not paused: %+v", rec)
			}
			time.Sleep(time.Hour) // the paused card is thrown away
			st := nodetest.Report("c", 1, "True")
			st.MachineID = "fedcba9876543210"
			if err := h.l.Status(h.t.Context(), node.Caller{Node: "pi-1"}, st); err != nil {
				h.t.Fatal(err)
			}
			_, before, _ := h.book.Counts()
			for seq := range uint64(5) {
				h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "c", Seq: seq + 1, Status: 1, Desired: stored})
				time.Sleep(10 * time.Second)
			}
			_, after, _ := h.book.Counts()
			if rec := h.l.Snapshot().Record("pi-1"); rec.Paused != (stored > 0) || rec.Stored != stored || rec.StoredUnknown ||
				(after > before) != (stored == 0) {
				h.t.Errorf("the new device has stored %d: published %d times, %+v", stored, after-before, rec)
			}
			if c := state.NodeCondition(h.node(), corev1.NodeReady); c.Status != corev1.ConditionTrue {
				h.t.Error(c)
			}
		})
	}
}

// A device that was reset, for example a virtual machine to a snapshot, continues counting its
// leases from the snapshot. The hub requests a new boot before the grace period ends.
func TestAResetDeviceIsAskedForANewBoot(t *testing.T) {
	for _, c := range []struct {
		rule string
		seqs []uint64
		anew bool
	}{
		{"the device continues counting from the snapshot", []uint64{60, 61, 62}, true},
		{"one lease comes twice", []uint64{100, 100, 100, 100}, false},
		{"one lease comes again and again", []uint64{60, 60, 60, 60}, false},
		{"some leases come late", []uint64{98, 99, 101, 97, 100, 102}, false},
		{"some leases come again out of order", []uint64{60, 61, 60, 61, 60, 61}, false},
	} {
		listening(t, c.rule, func(h *listener) {
			nodetest.Greet(h.t, h.l, "pi-1")
			h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 100, Status: 1})
			for _, seq := range c.seqs {
				time.Sleep(10 * time.Second)
				h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: seq, Status: 1})
			}
			synctest.Wait()
			anew := false
			for _, r := range h.book.Requests() {
				anew = anew || r.NewBoot
			}
			if anew != c.anew {
				h.t.Errorf("a new boot is requested: %v", anew)
			}
		})
	}
}
