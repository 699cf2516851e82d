package node_test

import (
	"encoding/json"
	"fmt"
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

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// apply stores objects, as an administrator's requests do.
func apply(t *testing.T, l *node.Devices, objects ...state.Object) {
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

func remove(t *testing.T, l *node.Devices, name string) {
	t.Helper()
	if _, err := l.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(s.Node(name), "")}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, l *node.Devices, name string, st wire.Status) *corev1.Node {
	t.Helper()
	if err := l.Status(t.Context(), node.Caller{Node: name}, st); err != nil {
		t.Fatal(err)
	}
	return l.Snapshot().Node(name)
}

// from returns a device's own status.
func from(boot string, seq uint64) wire.Status {
	st := nodetest.Report(boot, seq, "True")
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

func events(l *node.Devices, reason string) (messages []string) {
	for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
		if e.Reason == reason {
			messages = append(messages, e.Type+" "+e.Message)
		}
	}
	return messages
}

func TestANodeMadeByHandIsKeptUntilItIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		apply(t, l, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hand"}})
		if got := taintKeys(l.Snapshot().Node("hand")); !slices.Equal(got,
			[]string{"node.kubernetes.io/not-ready:NoSchedule"}) {
			t.Errorf("the first taints are %v, want one that keeps pods away", got)
		}
		time.Sleep(lifecycle.Defaults.StartupGrace)
		synctest.Wait()
		if got := state.ReadyOf(l.Snapshot().Node("hand")); got != "" {
			t.Errorf("within its startup grace period Ready is %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		n := l.Snapshot().Node("hand")
		c := state.NodeCondition(n, corev1.NodeReady)
		if c == nil || c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusNeverUpdated" ||
			!c.LastHeartbeatTime.Equal(&n.CreationTimestamp) {
			t.Errorf("after the startup grace period Ready is %+v", c)
		}
		if got := events(l, "NodeNotReady"); len(got) != 1 || !strings.Contains(got[0], "it has never reported") {
			t.Errorf("events are %q", got)
		}
		time.Sleep(30 * 24 * time.Hour)
		synctest.Wait()
		if l.Snapshot().Node("hand") == nil {
			t.Error("after a month the Node was removed")
		}
		remove(t, l, "hand")
		time.Sleep(time.Hour)
		if l.Snapshot().Node("hand") != nil || l.Snapshot().Site("default") != nil {
			t.Error("the Node is deleted, but its objects exist")
		}
	})
}

func TestADeviceAdoptsANodeMadeByHand(t *testing.T) {
	for _, when := range []struct {
		rule string
		wait time.Duration
	}{{"at once", 0}, {"after its startup grace period, when it is Unknown", 5 * time.Minute}} {
		t.Run(when.rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, stop := nodetest.Start(t, nil)
				defer stop()
				hand := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1",
					Labels: map[string]string{"shop": "oslo", corev1.LabelTopologyZone: "bergen", corev1.LabelArchStable: "amd64",
						"tier": "mine"},
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
					"shop": "oslo", "tier": "mine", corev1.LabelTopologyZone: "bergen", // labels of the administrator
					// labels that the hub corrects
					corev1.LabelHostname: "pi-1", corev1.LabelOSStable: "linux", "beta.kubernetes.io/os": "linux",
					corev1.LabelArchStable: "arm64", "beta.kubernetes.io/arch": "arm64", fleet.LabelBoard: "raspberrypi4",
				}
				if !maps.Equal(n.Labels, want) {
					t.Errorf("labels are %v, want %v", n.Labels, want)
				}
				if got := taintKeys(n); !slices.Equal(got, []string{"dedicated:NoSchedule",
					"node.kubernetes.io/unschedulable:NoSchedule"}) {
					t.Errorf("taints are %v", got)
				}
				if !n.Spec.Unschedulable || n.Spec.PodCIDR != "10.9.0.0/24" || n.Annotations["note"] != "shelf 4" || n.UID != uid {
					t.Errorf("the administrator's node is now %+v", n)
				}
				if state.ReadyOf(n) != corev1.ConditionTrue || n.Status.Capacity.Cpu().Value() != 4 {
					t.Errorf("the device's report became %+v", n.Status)
				}
				if got := events(l, "RegisteredNode"); len(got) != 1 || !strings.Contains(got[0], "which was made by hand") {
					t.Errorf("events are %q", got)
				}

				// Later changes of the administrator also stay.
				next := n.DeepCopy()
				next.Labels["shop"] = "narvik"
				next.Spec.Unschedulable = false
				apply(t, l, next)
				st = from("b", 2)
				st.Status.NodeInfo.Architecture = "arm"
				n = hear(t, l, "pi-1", st)
				if n.Labels["shop"] != "narvik" || n.Spec.Unschedulable || n.Labels[corev1.LabelArchStable] != "arm" {
					t.Errorf("after the next report the node has %v, unschedulable=%v", n.Labels, n.Spec.Unschedulable)
				}
			})
		})
	}
}

func TestWithoutRegistrationOnlyNodesMadeByHandJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.ClusterCIDR, cfg.NodeCIDRMaskSize = netip.MustParsePrefix("10.64.0.0/24"), 24
		l, book, stop := nodetest.StartWith(t, cfg, nil)
		defer stop()

		hear(t, l, "pi-1", from("b", 1))
		l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1, Status: 1})
		synctest.Wait()
		if d := book.LastDesired(t); d.PodCIDR != "10.64.0.0/24" || d.Generation != 1 {
			t.Errorf("the first desired state, generation %d, has the addresses %q", d.Generation, d.PodCIDR)
		}
		n := hear(t, l, "pi-2", from("b", 1))
		l.Lease(node.Caller{Node: "pi-2"}, wire.Lease{Boot: "b", Seq: 1, Status: 1})
		synctest.Wait()
		c := state.NodeCondition(n, fleet.ConditionPodCIDRAvailable)
		if n.Spec.PodCIDR != "" || c == nil || c.Status != corev1.ConditionFalse ||
			state.ReadyOf(n) != corev1.ConditionTrue || len(n.Spec.Taints) > 0 {
			t.Errorf("a full range made the registration fail: %+v %+v", n.Spec, n.Status.Conditions)
		}
		if got := events(l, "CIDRNotAvailable"); len(got) != 1 || !strings.HasPrefix(got[0], corev1.EventTypeWarning) {
			t.Errorf("events are %q", got)
		}
		st := from("b", 2)
		st.Status.NodeInfo.OSImage = "another"
		if n = hear(t, l, "pi-2", st); state.NodeCondition(n, fleet.ConditionPodCIDRAvailable) == nil {
			t.Error("the next report removes the condition")
		}
		for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
			if e.Reason == "CIDRNotAvailable" && e.Count != 1 {
				t.Errorf("the next report publishes the desired state again: %d times", e.Count)
			}
		}
		remove(t, l, "pi-1")
		n = l.Snapshot().Node("pi-2")
		if n.Spec.PodCIDR != "10.64.0.0/24" || state.NodeCondition(n, fleet.ConditionPodCIDRAvailable) != nil {
			t.Errorf("the released block is not pi-2's: %+v %+v", n.Spec, n.Status.Conditions)
		}
		synctest.Wait()
		if d := book.LastDesired(t); d.PodCIDR != "10.64.0.0/24" || d.Generation != 2 {
			t.Errorf("generation %d was published with the addresses %q", d.Generation, d.PodCIDR)
		}
		if n = hear(t, l, "pi-2", from("b", 3)); n.Spec.PodCIDR != "10.64.0.0/24" || len(n.Spec.PodCIDRs) != 1 {
			t.Errorf("after a report the node's block is %q", n.Spec.PodCIDR)
		}
	})
}

// Measured labels follow the device; an administrator's labels do not.
func TestMeasuredLabelsFollowTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		st := nodetest.Report("b", 1, "True")
		st.Registration.Labels = map[string]string{fleet.LabelHardwarePrefix + "i2c": "true", "room": "cellar"}
		hear(t, l, "pi-1", st)
		st.Seq, st.Registration.Labels = 2, map[string]string{fleet.LabelHardwarePrefix + "spi": "true", "room": "attic"}
		n := hear(t, l, "pi-1", st)
		if _, still := n.Labels[fleet.LabelHardwarePrefix+"i2c"]; still ||
			n.Labels[fleet.LabelHardwarePrefix+"spi"] != "true" || n.Labels["room"] != "cellar" {
			t.Errorf("the node's labels are %v", n.Labels)
		}
	})
}

// A changed profile updates existing nodes and removes its old labels and taints.
func TestAChangedProfileUpdatesItsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		l.Profile = func(state.Snapshot, corev1.NodeStatus, json.RawMessage) string { return "rpi" }
		profile := func(label string, taints ...corev1.Taint) *fleet.BoardProfile {
			return &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "rpi"},
				Spec: fleet.BoardProfileSpec{Labels: map[string]string{label: "true"}, Taints: taints}}
		}
		camera := corev1.Taint{Key: "camera", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
		apply(t, l, profile("gpio", camera))
		n := hear(t, l, "pi-1", nodetest.Report("b", 1, "True"))
		has := func(label string) bool { return n.Labels[fleet.LabelBoardPrefix+label] == "true" }
		tainted := func() bool {
			return slices.ContainsFunc(n.Spec.Taints, func(x corev1.Taint) bool { return x.Key == camera.Key })
		}
		if !has("gpio") || !tainted() {
			t.Fatalf("registered with %v, %v", n.Labels, n.Spec.Taints)
		}
		apply(t, l, profile("i2c"))
		n = l.Snapshot().Node("pi-1")
		if has("gpio") || !has("i2c") || tainted() {
			t.Errorf("after a change the node has %v, %v", n.Labels, n.Spec.Taints)
		}
	})
}

// The hub names the labels that a registering device may not set. A token's labels take precedence.
func TestLabelsThatARegisteringDeviceMaySet(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rec    *state.Record // nil: the device uses the development listener
		zone   string
		labels map[string]string
	}{
		{"with a token", &state.Record{Key: "k1", Enrolled: metav1.Now(), Site: "oslo", Labels: map[string]string{"tier": "token's", "rack": "4"}}, "bergen", map[string]string{corev1.LabelTopologyZone: "oslo", "tier": "token's", "rack": "4", "room": "attic"}},
		{"with a token without a site", &state.Record{Key: "k1", Enrolled: metav1.Now()}, "bergen", map[string]string{"tier": "mine", "room": "attic"}},
		{"without one", nil, "bergen", map[string]string{corev1.LabelTopologyZone: "bergen", "tier": "mine", "room": "attic"}},
		{"without a token, with an invalid site", nil, "not a site!", map[string]string{"tier": "mine", "room": "attic"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, stop := nodetest.Start(t, nil)
				defer stop()
				who := node.Caller{Node: "pi-1"}
				if tt.rec != nil {
					rec := tt.rec.DeepCopy()
					rec.Name, who.Key = "pi-1", "k1"
					rec.Expires = metav1.NewTime(time.Now().Add(time.Hour))
					apply(t, l, rec)
				}
				st := nodetest.Report("b", 1, "True")
				old := metav1.NewTime(time.Now().Add(-24 * time.Hour))
				st.Registration.Labels = map[string]string{corev1.LabelTopologyZone: tt.zone, "tier": "mine", "room": "attic",
					corev1.LabelHostname: "pi-2", corev1.LabelArchStable: "arm64", "node-restriction.kubernetes.io/a": "b",
					"node-role.kubernetes.io/control-plane": ""}
				st.Registration.Taints = []corev1.Taint{
					{Key: "mine", Effect: corev1.TaintEffectNoExecute, TimeAdded: &old}, {Key: "mine", Value: "again", Effect: corev1.TaintEffectNoExecute},
					{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}, {Key: "bad key", Effect: corev1.TaintEffectNoSchedule}, {Key: "odd", Effect: "Never"}}
				if err := l.Status(t.Context(), who, st); err != nil {
					t.Fatal(err)
				}
				n := l.Snapshot().Node("pi-1")
				got := maps.Clone(n.Labels)
				delete(got, corev1.LabelHostname)
				if tt.labels[corev1.LabelTopologyZone] == "" && got[corev1.LabelTopologyZone] != tt.zone {
					delete(got, corev1.LabelTopologyZone) // the site is the hub's default
				}
				if n.Labels[corev1.LabelHostname] != "pi-1" || !maps.Equal(got, tt.labels) {
					t.Errorf("the node's labels are %v, want %v", n.Labels, tt.labels)
				}
				if keys := taintKeys(n); !slices.Equal(keys, []string{"mine:NoExecute"}) ||
					n.Spec.Taints[0].TimeAdded != nil && n.Spec.Taints[0].TimeAdded.Time.Before(time.Now().Add(-time.Hour)) {
					t.Errorf("the node's taints are %v", n.Spec.Taints)
				}
				message := strings.Join(events(l, "RegisteredNode"), "")
				if strings.Contains(message, corev1.LabelHostname) ||
					!strings.Contains(message, "node-restriction.kubernetes.io/a") ||
					!strings.Contains(message, "node.kubernetes.io/unreachable") {
					t.Errorf("the event is %q", message)
				}
			})
		})
	}
}

// The event for a device that takes over a Node made by hand comes once. This holds for a token
// that names the machine before the first report, and for an unknown machine.
func TestTakingOverANodeIsReportedOnce(t *testing.T) {
	for name, machine := range map[string]string{"a machine that is known": "0123456789abcdef",
		"a machine that is not known": ""} {
		for _, joined := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, joined: %t", name, joined), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l, _, stop := nodetest.Start(t, nil)
					defer stop()
					apply(t, l, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}})
					who := node.Caller{Node: "pi-1", Machine: machine}
					if joined {
						who.Key = "k1"
						apply(t, l, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: "k1", MachineID: machine,
							Enrolled: metav1.Now(), Expires: metav1.NewTime(time.Now().Add(time.Hour)), Site: "oslo"})
					}
					for _, boot := range []string{"b", "c", "d"} { // the agent is restarted twice
						st := nodetest.Report(boot, 1, "True")
						st.MachineID = machine
						if err := l.Status(t.Context(), who, st); err != nil {
							t.Fatal(err)
						}
					}
					messages, times := events(l, "RegisteredNode"), int32(0)
					for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
						if e.Reason == "RegisteredNode" {
							times += e.Count
						}
					}
					if times != 1 || len(messages) != 1 || !strings.Contains(messages[0], "made by hand") {
						t.Errorf("there are %d events, %q", times, messages)
					}
				})
			})
		}
	}
}
