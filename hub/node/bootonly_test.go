package node_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// While a device is beyond its limit, the hub accepts only its Ready. Everything else stays:
// earlier reports, measurements, and what an administrator wrote.
func TestADeviceBeyondItsLimitKeepsItsState(t *testing.T) {
	const measured, dongle = fleet.LabelHardwarePrefix + "camera", "example.com/dongle"
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		r, seq := rand.New(rand.NewPCG(1, 2)), uint64(1)
		say := func(ready corev1.ConditionStatus, images int) {
			t.Helper()
			st := nodetest.Report("b", seq, ready)
			st.Registration.Labels = map[string]string{measured: "true"}
			for range images {
				st.Status.Images = append(st.Status.Images, corev1.ContainerImage{Names: []string{noise(r, 400)}})
			}
			if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, st); err != nil {
				t.Fatal(err)
			}
			seq++
		}
		check := func(when string) {
			t.Helper()
			n := l.Snapshot().Node("pi-1")
			if q := n.Status.Capacity[dongle]; n.Labels[measured] != "true" || q.Value() != 2 {
				t.Errorf("%s the node has the labels %v and the capacity %v", when, n.Labels, n.Status.Capacity)
			}
		}
		say("True", 0)
		if _, err := l.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			n := s.Node("pi-1").DeepCopy()
			if n.Status.Capacity == nil {
				n.Status.Capacity = corev1.ResourceList{}
			}
			n.Status.Capacity[dongle] = resource.MustParse("2")
			return []state.Change{state.Put(n, "")}, nil
		}); err != nil {
			t.Fatal(err)
		}
		for l.DeferredMessages() == 0 {
			if say("True", 80); seq > 2000 {
				t.Fatal("the device's messages are not limited")
			}
		}
		check("beyond the limit")
		say("False", 80)
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionFalse {
			t.Fatalf("Ready=%s", got)
		}
		check("with Ready=False")
		time.Sleep(time.Hour)
		say("True", 0)
		check("within the limit again")
	})
}

// A second device with a node's identity that exceeds the limit does not keep the silent node
// alive, and neither do its leases.
func TestADeferredStatusOfAnotherBootIsNoHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		r, seq := rand.New(rand.NewPCG(1, 2)), uint64(1)
		say := func(boot string, images int) {
			st := nodetest.Report(boot, seq, "True")
			for range images {
				st.Status.Images = append(st.Status.Images, corev1.ContainerImage{Names: []string{noise(r, 400)}})
			}
			_ = l.Status(t.Context(), node.Caller{Node: "pi-1"}, st)
			seq++
		}
		time.Sleep(time.Second)
		for say("b", 0); l.DeferredMessages() == 0; {
			if say("b", 80); seq > 2000 {
				t.Fatal("the device's messages are not limited")
			}
		}
		boot := func() string { return l.Liveness("pi-1").Boot }
		for n := 0; ; n++ { // until the limit is reached
			next := fmt.Sprint("other-", n)
			if say(next, 0); boot() != next {
				break
			}
		}
		silent, last := l.Liveness("pi-1").Seen, boot()
		time.Sleep(time.Second)
		say("stranger", 0)
		say("b", 0)
		if boot() != last {
			t.Fatalf("the node's boot is %s, want %s", boot(), last)
		}
		if seen := l.Liveness("pi-1").Seen; !seen.Equal(silent) {
			t.Errorf("the node stays alive for %s", seen.Sub(silent))
		}
	})
}
