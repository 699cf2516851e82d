package control_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/address"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// apply puts objects into the fleet as an administrator does.
func apply(t *testing.T, l *control.Loop, objects ...state.Object) {
	t.Helper()
	if _, err := l.Do(t.Context(), func(_ state.Snapshot, now time.Time) (changes []state.Change, err error) {
		for _, o := range objects {
			if at := o.GetCreationTimestamp(); at.IsZero() {
				o.SetCreationTimestamp(metav1.NewTime(now))
			}
			changes = append(changes, state.Put(o, ""))
		}
		return changes, nil
	}); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, l *control.Loop, node string) {
	t.Helper()
	if _, err := l.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(s.Node(node), "")}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, l *control.Loop, node string, st wire.Status) *corev1.Node {
	t.Helper()
	if err := l.Status(t.Context(), node, st); err != nil {
		t.Fatal(err)
	}
	return l.Snapshot().Node(node)
}

// a device's own report of itself.
func from(boot string, seq uint64) wire.Status {
	st := report(boot, seq, "True")
	st.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "arm64"}
	st.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")}
	st.Registration.Labels[fleet.LabelBoard] = "raspberrypi4"
	return st
}

func taintKeys(n *corev1.Node) (keys []string) {
	for _, t := range n.Spec.Taints {
		keys = append(keys, t.Key+":"+string(t.Effect))
	}
	slices.Sort(keys)
	return keys
}

func events(l *control.Loop, reason string) (messages []string) {
	for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
		if e.Reason == reason {
			messages = append(messages, e.Type+" "+e.Message)
		}
	}
	return messages
}

func TestANodeMadeByHandIsKeptAndCheckedUntilItIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := start(t, nil)
		defer stop()
		apply(t, l, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hand"}})
		if got := taintKeys(l.Snapshot().Node("hand")); !slices.Equal(got, []string{"node.kubernetes.io/not-ready:NoSchedule"}) {
			t.Errorf("at first its taints are %v: nothing may be sent there yet", got)
		}
		time.Sleep(lifecycle.Defaults.StartupGrace)
		synctest.Wait()
		if got := state.ReadyOf(l.Snapshot().Node("hand")); got != "" {
			t.Errorf("within its startup grace Ready is %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		n := l.Snapshot().Node("hand")
		c := state.NodeCondition(n, corev1.NodeReady)
		if c == nil || c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusNeverUpdated" || !c.LastHeartbeatTime.Equal(&n.CreationTimestamp) {
			t.Errorf("after it Ready is %+v", c)
		}
		if got := events(l, "NodeNotReady"); len(got) != 1 || !strings.Contains(got[0], "it has never reported") {
			t.Errorf("events are %q", got)
		}
		time.Sleep(30 * 24 * time.Hour)
		synctest.Wait()
		if l.Snapshot().Node("hand") == nil {
			t.Error("after a month it is gone by itself")
		}
		remove(t, l, "hand")
		time.Sleep(time.Hour)
		if l.Snapshot().Node("hand") != nil || l.Snapshot().Site("default") != nil {
			t.Error("deleted, and something of it is left")
		}
	})
}

func TestADeviceThatJoinsLaterAdoptsItsNode(t *testing.T) {
	for _, when := range []struct {
		rule string
		wait time.Duration
	}{{"at once", 0}, {"after its startup grace, when it is Unknown", 5 * time.Minute}} {
		t.Run(when.rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, stop := start(t, nil)
				defer stop()
				hand := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1",
					Labels:      map[string]string{"shop": "oslo", corev1.LabelTopologyZone: "bergen", corev1.LabelArchStable: "amd64", "tier": "mine"},
					Annotations: map[string]string{"note": "shelf 4"}}}
				hand.Spec.Unschedulable = true
				hand.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "shop", Effect: corev1.TaintEffectNoSchedule}}
				hand.Spec.PodCIDR, hand.Spec.PodCIDRs = "10.9.0.0/24", []string{"10.9.0.0/24"}
				hand.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("64")}
				apply(t, l, hand)
				uid := l.Snapshot().Node("pi-1").UID
				time.Sleep(when.wait)

				st := from("b", 1)
				st.Registration.Labels["tier"] = "the device's"
				st.Registration.Labels["camera"] = "yes"
				st.Registration.Taints = []corev1.Taint{{Key: "camera", Effect: corev1.TaintEffectNoSchedule}}
				n := hear(t, l, "pi-1", st)
				want := map[string]string{
					"shop": "oslo", "tier": "mine", corev1.LabelTopologyZone: "bergen", // the administrator's
					corev1.LabelHostname: "pi-1", corev1.LabelOSStable: "linux", "beta.kubernetes.io/os": "linux", // refreshed
					corev1.LabelArchStable: "arm64", "beta.kubernetes.io/arch": "arm64", fleet.LabelBoard: "raspberrypi4",
				}
				if !maps.Equal(n.Labels, want) {
					t.Errorf("labels are %v, want %v", n.Labels, want)
				}
				if got := taintKeys(n); !slices.Equal(got, []string{"dedicated:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule"}) {
					t.Errorf("taints are %v", got)
				}
				if !n.Spec.Unschedulable || n.Spec.PodCIDR != "10.9.0.0/24" || n.Annotations["note"] != "shelf 4" || n.UID != uid {
					t.Errorf("of the administrator's node is left %+v", n)
				}
				if state.ReadyOf(n) != corev1.ConditionTrue || n.Status.Capacity.Cpu().Value() != 4 {
					t.Errorf("of the device's report is taken %+v", n.Status)
				}
				if got := events(l, "RegisteredNode"); len(got) != 1 || !strings.Contains(got[0], "which was made by hand") {
					t.Errorf("events are %q", got)
				}

				// What the administrator changes afterwards stays as well.
				next := n.DeepCopy()
				next.Labels["shop"] = "narvik"
				next.Spec.Unschedulable = false
				apply(t, l, next)
				st = from("b", 2)
				st.Status.NodeInfo.Architecture = "arm"
				n = hear(t, l, "pi-1", st)
				if n.Labels["shop"] != "narvik" || n.Spec.Unschedulable || n.Labels[corev1.LabelArchStable] != "arm" {
					t.Errorf("after the next report it is %v, unschedulable=%v", n.Labels, n.Spec.Unschedulable)
				}
			})
		})
	}
}

func TestWithoutRegistrationOnlyNodesMadeByHandJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &notebook{rows: map[state.Key][]byte{}}
		l := control.New(control.Config{Store: book, Broker: book, Start: state.Empty("test", time.Now()), Grace: 40 * time.Second, Deliver: control.Deliver{}, Manual: true})
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		defer func() { stop(); <-over }()
		if err := l.Status(t.Context(), "pi-1", from("b", 1)); !errors.Is(err, control.ErrRefused) || !strings.Contains(err.Error(), "create the Node first") {
			t.Errorf("the error is %v", err)
		}
		apply(t, l, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}})
		if n := hear(t, l, "pi-1", from("b", 2)); state.ReadyOf(n) != corev1.ConditionTrue {
			t.Errorf("Ready is %q", state.ReadyOf(n))
		}
	})
}

func TestWhatADeviceMayGiveItself(t *testing.T) {
	given := map[string]string{
		"camera": "yes", "example.org/shelf": "4", corev1.LabelTopologyZone: "oslo", fleet.LabelBoard: "raspberrypi4", // fine
		corev1.LabelHostname: "another", corev1.LabelArchStable: "s390x", // the hub sets them by the status
		"node-restriction.kubernetes.io/secret": "1", "kubernetes.io/os-of-mine": "1", "k8s.io/x": "1", "apps.k8s.io/x": "1",
		"node-role.kubernetes.io/control-plane": "", fleet.LabelExcludeDisruption: "", corev1.LabelTopologyRegion: "north",
		"not a key": "1", "key": "not a value!", strings.Repeat("k", 64): "1",
	}
	notkubernetes := map[string]string{"mykubernetes.io/x": "1"}
	maps.Copy(given, notkubernetes)
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := start(t, nil)
		defer stop()
		st := from("b", 1)
		st.Registration = wire.Registration{Labels: given, Unschedulable: true, Taints: []corev1.Taint{
			{Key: "camera", Value: "true", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: time.Unix(0, 0)}},
			{Key: "camera", Value: "again", Effect: corev1.TaintEffectNoSchedule},
			{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute},
			{Key: "boom", Effect: "Explode"}, {Key: "a b", Effect: corev1.TaintEffectNoSchedule},
		}}
		n := hear(t, l, "pi-1", st)
		want := map[string]string{
			"camera": "yes", "example.org/shelf": "4", corev1.LabelTopologyZone: "oslo", fleet.LabelBoard: "raspberrypi4", "mykubernetes.io/x": "1",
			corev1.LabelHostname: "pi-1", corev1.LabelOSStable: "linux", "beta.kubernetes.io/os": "linux", corev1.LabelArchStable: "arm64", "beta.kubernetes.io/arch": "arm64",
		}
		if !maps.Equal(n.Labels, want) {
			t.Errorf("labels are %v\nwant %v", n.Labels, want)
		}
		if got := taintKeys(n); !slices.Equal(got, []string{"camera:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule"}) || !n.Spec.Unschedulable {
			t.Errorf("taints are %v", got)
		}
		for _, taint := range n.Spec.Taints {
			if taint.Key == "camera" && (taint.Value != "true" || taint.TimeAdded != nil) {
				t.Errorf("its taint is %+v", taint)
			}
		}
		got := events(l, "RegisteredNode")
		if len(got) != 1 || !strings.HasPrefix(got[0], corev1.EventTypeWarning) || !strings.Contains(got[0], `not its own to give, and left out: label "apps.k8s.io/x"`) {
			t.Errorf("events are %q", got)
		}

		// Once it is registered, what it says of labels and taints counts for nothing.
		st = from("b", 2)
		st.Registration.Labels["camera"], st.Registration.Labels["late"] = "no", "1"
		st.Registration.Taints = []corev1.Taint{{Key: "late", Effect: corev1.TaintEffectNoSchedule}}
		st.Status.Conditions = append(st.Status.Conditions, corev1.NodeCondition{Type: fleet.ConditionIdentityConflict, Status: corev1.ConditionTrue})
		n = hear(t, l, "pi-1", st)
		if n.Labels["camera"] != "yes" || n.Labels["late"] != "" || !n.Spec.Unschedulable || len(n.Spec.Taints) != 2 {
			t.Errorf("after its second status it is %v %v", n.Labels, n.Spec)
		}
		if state.NodeCondition(n, fleet.ConditionIdentityConflict) != nil {
			t.Error("a condition of the hub's is the device's to set")
		}
	})
}

func TestADeviceWithATokenHasTheSiteAndLabelsOfTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := start(t, nil)
		defer stop()
		apply(t, l, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Enrolled: metav1.Now(), Site: "bergen", Labels: map[string]string{"tier": "gold", "node-restriction.kubernetes.io/secret": "1"}})
		st := from("b", 1) // it says oslo
		st.Registration.Labels["tier"] = "lead"
		n := hear(t, l, "pi-1", st)
		if n.Labels[corev1.LabelTopologyZone] != "bergen" || n.Labels["tier"] != "gold" || n.Labels["node-restriction.kubernetes.io/secret"] != "1" {
			t.Errorf("labels are %v", n.Labels)
		}
		apply(t, l, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-2"}, Enrolled: metav1.Now()})
		if n = hear(t, l, "pi-2", from("b", 1)); n.Labels[corev1.LabelTopologyZone] != "" {
			t.Errorf("its token says of no site, and it put itself on %q", n.Labels[corev1.LabelTopologyZone])
		}
	})
}

func TestANodesBlockIsToldToItsDeviceAndKeptWhateverItReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &notebook{rows: map[state.Key][]byte{}}
		l := control.New(control.Config{
			Store: book, Broker: book, Start: state.Empty("test", time.Now()), Grace: 40 * time.Second, Deliver: control.Deliver{},
			Deciders: []control.Decider{lifecycle.Decider{Settings: lifecycle.Defaults},
				address.Decider{Cluster: netip.MustParsePrefix("10.64.0.0/24"), Bits: 24}, eviction.Decider{Grace: 40 * time.Second}},
		})
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		defer func() { stop(); <-over }()

		hear(t, l, "pi-1", from("b", 1))
		l.Lease("pi-1", wire.Lease{Boot: "b", Seq: 1, Status: 1})
		synctest.Wait()
		if d := book.lastDesired(t); d.PodCIDR != "10.64.0.0/24" || d.Generation != 1 {
			t.Errorf("the first desired state, of generation %d, has the addresses %q", d.Generation, d.PodCIDR)
		}
		n := hear(t, l, "pi-2", from("b", 1))
		l.Lease("pi-2", wire.Lease{Boot: "b", Seq: 1, Status: 1})
		synctest.Wait()
		c := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable)
		if n.Spec.PodCIDR != "" || c == nil || c.Status != corev1.ConditionFalse || state.ReadyOf(n) != corev1.ConditionTrue || len(n.Spec.Taints) > 0 {
			t.Errorf("a full range is no failed registration: %+v %+v", n.Spec, n.Status.Conditions)
		}
		if got := events(l, "CIDRNotAvailable"); len(got) != 1 || !strings.HasPrefix(got[0], corev1.EventTypeWarning) {
			t.Errorf("events are %q", got)
		}
		st := from("b", 2)
		st.Status.NodeInfo.OSImage = "another"
		if n = hear(t, l, "pi-2", st); state.NodeCondition(n, fleet.ConditionPodCIDRAvailable) == nil {
			t.Error("the next report takes the condition away")
		}
		for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
			if e.Reason == "CIDRNotAvailable" && e.Count != 1 {
				t.Errorf("with the next report it is told again: %d times", e.Count)
			}
		}
		remove(t, l, "pi-1")
		n = l.Snapshot().Node("pi-2")
		if n.Spec.PodCIDR != "10.64.0.0/24" || state.NodeCondition(n, fleet.ConditionPodCIDRAvailable) != nil {
			t.Errorf("given back, the block is not pi-2's: %+v %+v", n.Spec, n.Status.Conditions)
		}
		synctest.Wait()
		if d := book.lastDesired(t); d.PodCIDR != "10.64.0.0/24" || d.Generation != 2 {
			t.Errorf("told was generation %d with the addresses %q", d.Generation, d.PodCIDR)
		}
		if n = hear(t, l, "pi-2", from("b", 3)); n.Spec.PodCIDR != "10.64.0.0/24" || len(n.Spec.PodCIDRs) != 1 {
			t.Errorf("after a report its block is %q", n.Spec.PodCIDR)
		}
	})
}
