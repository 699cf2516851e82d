package node_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
)

func TestExtendedResourcesOfAnAdministratorStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		patch := func(name corev1.ResourceName, q string) {
			if _, err := l.Do(context.Background(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
				n := s.Node("pi-1").DeepCopy()
				if n.Status.Capacity == nil {
					n.Status.Capacity = corev1.ResourceList{}
				}
				n.Status.Capacity[name] = resource.MustParse(q)
				return []state.Change{state.Put(n, "")}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		patch("example.com/dongle", "4")
		patch("node.kubernetes.io/dongle", "4")
		patch("cpu", "64")
		seq := uint64(1)
		check := func(when, want string) {
			t.Helper()
			seq++
			st := nodetest.Report("b", seq, "True")
			st.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("2"), "example.com/own": resource.MustParse("1")}
			st.Status.Allocatable = st.Status.Capacity.DeepCopy()
			if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, st); err != nil {
				t.Fatal(err)
			}
			n := l.Snapshot().Node("pi-1")
			for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
				if got := list["example.com/dongle"]; got.String() != want || list.Cpu().String() != "2" || len(list) != 3 {
					t.Errorf("%s: %v, want %s dongles", when, list, want)
				}
			}
			if commits, _, _ := book.Counts(); seq > 3 && commits == 0 {
				t.Error("the extended resource was not stored")
			}
		}
		check("after a report", "4")
		patch("example.com/dongle", "7")
		check("raised", "7")
		patch("example.com/dongle", "0")
		check("none left", "0")
		before, _, _ := book.Counts()
		check("a report without changes", "0")
		if after, _, _ := book.Counts(); after != before {
			t.Errorf("the report caused %d writes", after-before)
		}
	})
}
