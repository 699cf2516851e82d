package node_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func TestTheTransactionThatDeletesANodeEndsItsEnrolment(t *testing.T) {
	for _, c := range []struct {
		name string
		do   control.News
	}{
		{"a person deletes the Node", func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			c := state.Remove(s.Node("pi-1"), "delete node pi-1")
			c.By = "kari"
			return []state.Change{c}, nil
		}},
		{"a person deletes and recreates the Node in one transaction", func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			c := state.Remove(s.Node("pi-1"), "replace node pi-1")
			c.By = "kari"
			return []state.Change{c, state.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}, "")}, nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, book, stop := nodetest.Start(t, nil)
				defer stop()
				apply(t, l, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: "k1", Enrolled: metav1.Now(),
					Expires: metav1.NewTime(time.Now().Add(time.Hour)), Site: "oslo"})
				who := node.Caller{Node: "pi-1", Key: "k1", Machine: "0123456789abcdef", Boot: "b"}
				if err := l.Status(t.Context(), who, nodetest.Report("b", 1, "True")); err != nil {
					t.Fatal(err)
				}
				book.FailWith(errors.New("the power fails"))
				if _, err := l.Do(t.Context(), c.do); err == nil || !l.Speaks(who) || l.Dismissed("k1") != nil {
					t.Errorf("the enrolment ended although its end could not be stored: %v", err)
				}
				book.FailWith(nil)
				before, _, _ := book.Counts()
				if _, err := l.Do(t.Context(), c.do); err != nil {
					t.Fatal(err)
				}
				if after, _, _ := book.Counts(); after != before+1 || l.Speaks(who) ||
					book.Rows()[state.Key{Kind: state.Records, Name: "pi-1"}] != nil ||
					book.Rows()[state.Key{Kind: state.Dismissals, Name: "k1"}] == nil {
					t.Errorf("%d transactions, speaks %t, rows %v", after-before, l.Speaks(who), book.Rows())
				}
				if d := l.Dismissed("k1"); d == nil || d.By != "kari" || d.Reason != "Node pi-1 was deleted" {
					t.Errorf("the device's dismissal is %+v", d)
				}
				if len(book.Cut()) == 0 {
					t.Error("the device's session was not closed")
				}
				// Messages on their way are refused.
				for what, err := range map[string]error{
					"status": l.Status(t.Context(), who, nodetest.Report("b2", 1, "True")),
					"event":  l.Event(t.Context(), who, wire.Event{Boot: "b", Type: "Normal", Reason: "Pulled"}),
				} {
					if !errors.Is(err, node.ErrStranger) {
						t.Errorf("the device's %s: %v", what, err)
					}
				}
				if l.Lease(who, wire.Lease{Boot: "b", Seq: 9}); !l.Liveness("pi-1").Seen.IsZero() {
					t.Error("the device's lease is accepted")
				}
				if rec := l.Snapshot().Record("pi-1"); rec != nil {
					t.Errorf("record %+v", rec)
				}
			})
		})
	}
}

func TestACloneIsRefusedWithinTheSitesGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		apply(t, l, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"},
			Spec: fleet.SiteSpec{NodeMonitorGracePeriod: &metav1.Duration{Duration: 5 * time.Minute}}})
		nodetest.Greet(t, l, "pi-1")
		time.Sleep(2 * time.Minute)
		other := node.Caller{Node: "pi-1", Machine: "fedcba9876543210", Boot: "c"}
		clone := nodetest.Report("c", 1, "True")
		clone.MachineID = other.Machine
		if err := l.Connect(other); !errors.Is(err, node.ErrConflict) {
			t.Errorf("a clone may connect within the site's grace period: %v", err)
		}
		if err := l.Status(t.Context(), other, clone); !errors.Is(err, node.ErrConflict) {
			t.Errorf("a clone may report within the site's grace period: %v", err)
		}
		time.Sleep(3*time.Minute + time.Second)
		if err := errors.Join(l.Connect(other), l.Status(t.Context(), other, clone)); err != nil {
			t.Errorf("after the grace period: %v", err)
		}
	})
}

func TestADeviceWithoutAMachineIDReplacesOnlyDevicesWithoutOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		bare := node.Caller{Node: "pi-1"}
		if err := l.Connect(bare); !errors.Is(err, node.ErrConflict) || l.Snapshot().Record("pi-1").Conflict != "unknown" {
			t.Errorf("a device without a machine ID takes over a live session: %v, %+v", err, l.Snapshot().Record("pi-1"))
		}
		st := nodetest.Report("b", 1, "True")
		st.MachineID = ""
		if err := l.Status(t.Context(), node.Caller{Node: "pi-2"}, st); err != nil {
			t.Fatal(err)
		}
		if err := l.Connect(node.Caller{Node: "pi-2"}); err != nil {
			t.Errorf("a device is refused although the incumbent has no machine ID either: %v", err)
		}
	})
}
