package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A listener is a running hub with its store in memory. A test sends messages to it.
type listener struct {
	t    *testing.T
	l    *node.Devices
	book *nodetest.Notebook
	seq  uint64
}

func listening(t *testing.T, name string, play func(*listener)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, book, stop := nodetest.Start(t, nil)
			defer stop()
			play(&listener{t: t, l: l, book: book})
		})
	})
}

// hear sends a status of pi-1.
func (h *listener) hear(edits ...func(*wire.Status)) {
	h.t.Helper()
	h.seq++
	st := nodetest.Report("b", h.seq, "True")
	for _, edit := range edits {
		edit(&st)
	}
	if err := h.l.Status(h.t.Context(), node.Caller{Node: "pi-1"}, st); err != nil {
		h.t.Fatal(err)
	}
}

func (h *listener) node() *corev1.Node { return h.l.Snapshot().Node("pi-1") }

// write stores an object, as a user's request does.
func (h *listener) write(o state.Object) {
	h.t.Helper()
	if _, err := h.l.Do(h.t.Context(), func(state.Snapshot, time.Time) ([]state.Change,
		error) {
		return []state.Change{state.Put(o, "")}, nil
	}); err != nil {
		h.t.Fatal(err)
	}
}

// events returns the messages of the events about pi-1 with a reason.
func (h *listener) events(reason string) (out []string) {
	for e := range state.Each[*corev1.Event](h.l.Snapshot(), state.Events, "") {
		if e.Reason == reason && e.InvolvedObject.UID == h.node().UID && e.InvolvedObject.Kind == "Node" {
			for range e.Count {
				out = append(out, e.Message)
			}
		}
	}
	return out
}

func labels(kv ...string) func(*wire.Status) {
	return func(st *wire.Status) {
		st.Registration.Labels = maps.Clone(st.Registration.Labels)
		for i := 0; i < len(kv); i += 2 {
			st.Registration.Labels[kv[i]] = kv[i+1]
		}
	}
}

func taints(taints ...corev1.Taint) func(*wire.Status) {
	return func(st *wire.Status) { st.Registration.Taints = taints }
}

func system(os, arch string) func(*wire.Status) {
	return func(st *wire.Status) {
		st.Status.NodeInfo.OperatingSystem, st.Status.NodeInfo.Architecture = os, arch
	}
}

var mine = corev1.Taint{Key: "mine", Value: "v", Effect: corev1.TaintEffectNoSchedule}

func keys(n *corev1.Node) string {
	var out []string
	for _, t := range n.Spec.Taints {
		out = append(out, t.ToString())
	}
	return strings.Join(out, " ")
}

func byHand(labels map[string]string, spec corev1.NodeSpec) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: metav1.Now(), Labels: labels},
		Spec: spec}
}

func TestScenarioDefaultLabels(t *testing.T) {
	const betaOS, betaArch = "beta.kubernetes.io/os", "beta.kubernetes.io/arch"
	want := func(h *listener, kv ...string) {
		h.t.Helper()
		for i := 0; i < len(kv); i += 2 {
			if got := h.node().Labels[kv[i]]; got != kv[i+1] {
				h.t.Errorf("label %s is %q, want %q", kv[i], got, kv[i+1])
			}
		}
	}
	listening(t, "T7 the beta labels of OS and architecture follow the stable ones", func(h *listener) {
		h.hear(system("linux", "arm64"))
		n := h.node().DeepCopy()
		n.Labels[betaOS] = "wrong"
		delete(n.Labels, betaArch)
		h.write(n)
		h.hear(system("linux", "arm64"))
		want(h, corev1.LabelOSStable, "linux", betaOS, "linux", corev1.LabelArchStable, "arm64", betaArch, "arm64")
	})
	listening(t, "S11.labels.1 labels of the administrator are never removed", func(h *listener) {
		h.hear(system("linux", "arm64"))
		n := h.node().DeepCopy()
		n.Labels["mine"] = "yes"
		h.write(n)
		h.hear(system("linux", "arm64"))
		want(h, "mine", "yes", corev1.LabelHostname, "pi-1", corev1.LabelTopologyZone, "oslo")
	})
	listening(t, "S11.labels.2 a wrong hostname is corrected", func(h *listener) {
		h.hear()
		n := h.node().DeepCopy()
		n.Labels[corev1.LabelHostname] = "old-name"
		h.write(n)
		h.hear()
		want(h, corev1.LabelHostname, "pi-1")
	})
	listening(t, "S11.labels.3 a Node without any label gets the default ones", func(h *listener) {
		h.write(byHand(nil, corev1.NodeSpec{}))
		h.hear(system("linux", "arm"))
		want(h, corev1.LabelHostname, "pi-1", corev1.LabelOSStable, "linux", corev1.LabelArchStable, "arm")
	})
}

func TestScenarioRegistration(t *testing.T) {
	listening(t, "S5.11 the first status of a node makes exactly one event RegisteredNode with the node's uid",
		func(h *listener) {
			h.hear()
			h.hear()
			if got := h.events("RegisteredNode"); len(got) != 1 || h.node().UID == "" {
				t.Errorf("events %q", got)
			}
		})
	listening(t, "S5.11 the first status of an Unknown Node made by hand makes one event too", func(h *listener) {
		h.write(byHand(nil, corev1.NodeSpec{}))
		time.Sleep(time.Hour)
		if got := state.ReadyOf(h.node()); got != corev1.ConditionUnknown {
			h.t.Errorf("Ready %q", got)
		}
		h.hear()
		h.hear()
		if got := h.events("RegisteredNode"); len(got) != 1 || !strings.Contains(got[0], "which was made by hand") {
			h.t.Errorf("events %q", got)
		}
	})
	listening(t, "S11.register.1 an unknown device becomes a Node", func(h *listener) {
		h.hear()
		if n := h.node(); n == nil || state.ReadyOf(n) != corev1.ConditionTrue || keys(n) != "" {
			h.t.Errorf("node %+v", n)
		}
	})
	listening(t, "S11.register.2 a Node that exists is adopted: cordon, taints and labels survive", func(h *listener) {
		h.write(byHand(map[string]string{"mine": "yes"}, corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{mine}}))
		uid := h.node().UID
		h.hear(taints(corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoExecute}), labels("other", "x"))
		n := h.node()
		if n.UID != uid || n.Labels["mine"] != "yes" || n.Labels["other"] != "" || !n.Spec.Unschedulable ||
			keys(n) != "mine=v:NoSchedule node.kubernetes.io/unschedulable:NoSchedule" {
			h.t.Errorf("labels %v, taints %s", n.Labels, keys(n))
		}
	})
	listening(t,
		"S11.register.3 ours: without registration a device is refused with the next step, and a Node made by hand is adopted", func(h *listener) {
			book := nodetest.NewNotebook()
			l := node.New(node.Config{Broker: book, LeaseInterval: 10 * time.Second, Grace: 40 * time.Second, Manual: true},
				control.Config{Store: book, Start: state.Empty("x", time.Now())})
			ctx, stop := context.WithCancel(h.t.Context())
			defer func() { stop(); synctest.Wait() }()
			go l.Run(ctx)
			err := l.Status(ctx, node.Caller{Node: "pi-1"}, nodetest.Report("b", 1, "True"))
			if !errors.Is(err, node.ErrRefused) || !strings.Contains(err.Error(), "create the Node first") ||
				l.Snapshot().Node("pi-1") != nil {
				h.t.Errorf("refused with %v", err)
			}
			if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(byHand(nil, corev1.NodeSpec{}), "")}, nil
			}); err != nil {
				h.t.Fatal(err)
			}
			if err := l.Status(ctx, node.Caller{Node: "pi-1"}, nodetest.Report("b", 2, "True")); err != nil ||
				state.ReadyOf(l.Snapshot().Node("pi-1")) != corev1.ConditionTrue {
				h.t.Errorf("adopted with %v", err)
			}
		})
	listening(t,
		"S11.lease.4 a lease of a device without a Node creates neither a Node nor a lease, and a status is requested",
		func(h *listener) {
			h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1})
			if _, _, requests := h.book.Counts(); requests != 1 || h.node() != nil || h.l.NodeLease("pi-1") != nil ||
				len(h.l.NodeLeases()) != 0 {
				h.t.Errorf("%d requests, node %v", requests, h.node())
			}
		})
	listening(t, "S11.extended.1 an extended resource that the device no longer reports is removed from the Node",
		func(h *listener) {
			h.hear(func(st *wire.Status) {
				st.Status.Capacity = corev1.ResourceList{"example.com/door": resource.MustParse("2"), "cpu": resource.MustParse("4")}
				st.Status.Allocatable = st.Status.Capacity
			})
			h.hear(func(st *wire.Status) {
				st.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")}
				st.Status.Allocatable = st.Status.Capacity
			})
			if q := h.node().Status.Allocatable["example.com/door"]; !q.IsZero() || len(h.node().Status.Capacity) != 1 {
				h.t.Errorf("status %+v", h.node().Status)
			}
		})
	listening(t, "S11.setters.6 a changed boot id makes one event Rebooted", func(h *listener) {
		boot := func(boot, id string) func(*wire.Status) {
			return func(st *wire.Status) { st.Boot, st.Status.NodeInfo.BootID = boot, id }
		}
		h.hear(boot("b", "first"))
		h.hear(boot("c", "first")) // only the agent has restarted
		if got := h.events("Rebooted"); len(got) != 0 {
			h.t.Errorf("events %q", got)
		}
		h.hear(boot("d", "second"))
		h.hear(boot("d", "second"))
		if got := h.events("Rebooted"); len(got) != 1 ||
			!strings.HasSuffix(got[0], "node pi-1 has been rebooted, boot id: second") {
			h.t.Errorf("events %q", got)
		}
	})
	listening(t, "S11.setters.6 another machine in its place has not rebooted", func(h *listener) {
		machine := func(boot, id string) func(*wire.Status) {
			return func(st *wire.Status) {
				st.Boot, st.Status.NodeInfo.BootID, st.Status.NodeInfo.MachineID = boot, "boot of "+id, id
			}
		}
		h.hear(machine("b", "old"))
		h.hear(machine("c", "new"))
		if got := h.events("Rebooted"); len(got) != 0 {
			h.t.Errorf("events %q", got)
		}
		if got := h.events("RegisteredNode"); len(got) != 2 ||
			!strings.Contains(got[1], "node pi-1 is now machine new, which replaces machine old: ") {
			h.t.Errorf("events %q", got)
		}
	})
}

func TestScenarioWhatADeviceMay(t *testing.T) {
	forbidden := []string{"node-restriction.kubernetes.io/x", "kubernetes.io/x", "x.k8s.io/y",
		"node-role.kubernetes.io/control-plane"}
	listening(t, "S9.restrict.1 a device creates its own Node and updates its status", func(h *listener) {
		h.hear()
		h.hear(func(st *wire.Status) { st.Status.Conditions[0].Status = corev1.ConditionFalse })
		if got := state.ReadyOf(h.node()); got != corev1.ConditionFalse {
			h.t.Errorf("Ready %s", got)
		}
	})
	listening(t, "S9.restrict.2 a device may register with taints", func(h *listener) {
		h.hear(taints(mine))
		if got := keys(h.node()); got != "mine=v:NoSchedule" {
			h.t.Errorf("taints %s", got)
		}
	})
	listening(t, "S9.restrict.3 a device may register with labels", func(h *listener) {
		h.hear(labels("camera", "yes", "example.com/door", "north"))
		if l := h.node().Labels; l["camera"] != "yes" || l["example.com/door"] != "north" {
			h.t.Errorf("labels %v", l)
		}
	})
	listening(t, "S9.restrict.4 ours: after its registration a device changes no label of its Node, not even its own",
		func(h *listener) {
			h.hear(labels("camera", "yes"))
			h.hear(labels("camera", "no", "more", "x"))
			if l := h.node().Labels; l["camera"] != "yes" || l["more"] != "" {
				h.t.Errorf("labels %v", l)
			}
		})
	listening(t, "S9.restrict.5 an administrator's labels that are forbidden to devices stay", func(h *listener) {
		h.hear()
		n := h.node().DeepCopy()
		for _, k := range forbidden {
			n.Labels[k] = "admin"
		}
		h.write(n)
		h.hear(labels(forbidden[0], "device"))
		for _, k := range forbidden {
			if got := h.node().Labels[k]; got != "admin" {
				h.t.Errorf("label %s is %q", k, got)
			}
		}
	})
	for _, c := range []struct {
		name string
		then []corev1.Taint
	}{
		{"S9.restrict.6 a device cannot add a taint to its Node", []corev1.Taint{mine, {Key: "more", Effect: corev1.TaintEffectNoExecute}}},
		{"S9.restrict.7 a device cannot remove a taint of its Node", nil},
		{"S9.restrict.8 a device cannot change a taint of its Node", []corev1.Taint{{Key: "mine", Value: "w", Effect: corev1.TaintEffectNoSchedule}}},
	} {
		listening(t, c.name, func(h *listener) {
			h.hear(taints(mine))
			h.hear(taints(c.then...))
			if got := keys(h.node()); got != "mine=v:NoSchedule" {
				h.t.Errorf("taints %s", got)
			}
		})
	}
	listening(t, "S9.restrict.9 forbidden labels are refused at registration", func(h *listener) {
		h.hear(labels(forbidden[0], "x", forbidden[1], "x", forbidden[2], "x", forbidden[3], "x"))
		for _, k := range forbidden {
			if got, ok := h.node().Labels[k]; ok {
				h.t.Errorf("label %s is %q", k, got)
			}
		}
	})
	listening(t, "S9.restrict.10 forbidden labels are refused later", func(h *listener) {
		h.hear()
		before := fmt.Sprint(h.node().Labels)
		h.hear(labels(forbidden[0], "x", forbidden[3], "x", corev1.LabelTopologyZone, "bergen"))
		if got := fmt.Sprint(h.node().Labels); got != before {
			h.t.Errorf("labels %s became %s", before, got)
		}
	})
	listening(t, "S9.restrict.15 a device cannot set the hub's conditions, and without Ready it is not ready",
		func(h *listener) {
			h.hear()
			h.hear(func(st *wire.Status) {
				st.Status.Conditions = []corev1.NodeCondition{{Type: "Flapping", Status: corev1.ConditionTrue},
					{Type: "IdentityConflict", Status: corev1.ConditionTrue}}
			})
			n := h.node()
			if state.NodeCondition(n, "Flapping") != nil || state.NodeCondition(n, "IdentityConflict") != nil ||
				state.ReadyOf(n) != corev1.ConditionFalse {
				h.t.Errorf("conditions %+v", n.Status.Conditions)
			}
			h.hear(func(st *wire.Status) { st.Status.Conditions[0].Status = corev1.ConditionUnknown })
			if got := state.ReadyOf(h.node()); got != corev1.ConditionFalse {
				h.t.Errorf("a device that reports is not Unknown: Ready %s", got)
			}
		})
}

func TestScenarioPodsAreMarkedAgain(t *testing.T) {
	listening(t, "S5.5 a failed write is repeated: the pods of a silent node are not ready once the disk is back",
		func(h *listener) {
			h.hear()
			h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
				Spec:   corev1.PodSpec{NodeName: "pi-1"},
				Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}})
			ready := func() corev1.ConditionStatus {
				return state.PodCondition(h.l.Snapshot().Pod("default", "kiosk"), corev1.PodReady).Status
			}
			time.Sleep(39 * time.Second)
			h.book.FailWith(errors.New("disk full"))
			time.Sleep(5 * time.Second)
			if got := ready(); got != corev1.ConditionTrue {
				h.t.Errorf("Ready=%s was shown before it was stored", got)
			}
			h.book.FailWith(nil)
			time.Sleep(2 * time.Second)
			if got := ready(); got != corev1.ConditionFalse {
				h.t.Errorf("Ready=%s once the disk is back", got)
			}
		})
	listening(t, "ours: a condition of another writer stays on a pod, and opens its readiness gate", func(h *listener) {
		h.hear()
		h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1, Status: 1})
		synctest.Wait()
		h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
			Spec: corev1.PodSpec{NodeName: "pi-1",
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.org/served"}}}})
		now := func() *corev1.Pod { return h.l.Snapshot().Pod("default", "kiosk") }
		var seq uint64
		say := func(containers corev1.ConditionStatus) {
			h.t.Helper()
			seq++
			st := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: containers}, {Type: corev1.ContainersReady, Status: containers}}}
			if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"},
				wire.Pods{Boot: "b", Seq: seq, Generation: h.book.LastDesired(h.t).Generation,
					Pods: []wire.PodStatus{{UID: now().UID, Namespace: "default", Name: "kiosk", Status: st}}}); err != nil {
				h.t.Fatal(err)
			}
		}
		expect := func(status corev1.ConditionStatus, reason string) {
			h.t.Helper()
			if c := state.PodCondition(now(), corev1.PodReady); c == nil || c.Status != status || c.Reason != reason {
				h.t.Errorf("Ready is %+v, want %s %s", c, status, reason)
			}
		}
		say(corev1.ConditionTrue)
		expect(corev1.ConditionFalse, "ReadinessGatesNotReady")
		since := state.PodCondition(now(), corev1.PodReady).LastTransitionTime
		commits, _, _ := h.book.Counts()
		time.Sleep(20 * time.Second)
		say(corev1.ConditionTrue)
		if again, _, _ := h.book.Counts(); again != commits ||
			!state.PodCondition(now(), corev1.PodReady).LastTransitionTime.Equal(&since) {
			h.t.Errorf("the same status again: %d commits more, not ready since %s, was %s", again-commits,
				state.PodCondition(now(), corev1.PodReady).LastTransitionTime, since)
		}
		p := now().DeepCopy()
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: "example.org/served", Status: corev1.ConditionTrue, Message: "by hand"})
		h.write(p)
		say(corev1.ConditionTrue)
		expect(corev1.ConditionTrue, "")
		say(corev1.ConditionFalse)
		expect(corev1.ConditionFalse, "")
		if c := state.PodCondition(now(), "example.org/served"); c == nil || c.Message != "by hand" {
			h.t.Errorf("the condition of the other writer is %+v", c)
		}
	})
	listening(t,
		"S5.10 ours: a device with heartbeats is not silent, so its list of pods counts although its node is still Unknown",
		func(h *listener) {
			h.hear()
			h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1, Status: 1}) // the hub has stored no status yet
			synctest.Wait()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
				Spec: corev1.PodSpec{NodeName: "pi-1"}}
			h.write(pod)
			time.Sleep(time.Minute)
			st := corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			bound := h.book.LastDesired(h.t)
			if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"},
				wire.Pods{Boot: "b", Seq: 1, Generation: bound.Generation, Pods: []wire.PodStatus{
					{UID: bound.Pods[0].UID, Namespace: "default", Name: "kiosk", Status: st}}}); err != nil {
				h.t.Fatal(err)
			}
			if c := state.PodCondition(h.l.Snapshot().Pod("default", "kiosk"),
				corev1.PodReady); state.ReadyOf(h.node()) != corev1.ConditionUnknown || c == nil ||
				c.Status != corev1.ConditionTrue {
				h.t.Errorf("node %s, pod %+v", state.ReadyOf(h.node()), c)
			}
		})
}

// A user may overwrite a node's status. That stays until the device reports again, which takes at
// most ten seconds, as with a kubelet. A Ready=False that only a user wrote would otherwise evict
// the node's pods.
func TestAnOverwrittenStatusIsRequestedAgain(t *testing.T) {
	ready := func(n *corev1.Node) { state.NodeCondition(n, corev1.NodeReady).Status = corev1.ConditionFalse }
	for _, c := range []struct {
		what  string
		by    string
		write func(*corev1.Node)
		asked bool
	}{
		{"a status written by a user", "anna", ready, true},
		{"a capacity written by a user", "anna", func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "6.1" }, true},
		{"a taint written by a user", "anna", func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, mine) }, false},
		{"a status written by the hub", "", ready, false},
	} {
		listening(t, c.what, func(h *listener) {
			lease := func(seq uint64) (asked int) {
				time.Sleep(10 * time.Second)
				h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: seq, Status: h.seq, Pods: 1})
				synctest.Wait()
				for _, r := range h.book.Requests() {
					if r.Type == wire.RequestRefresh {
						asked++
					}
				}
				return asked
			}
			list := func(seq uint64) {
				if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"}, wire.Pods{Boot: "b", Seq: seq}); err != nil {
					h.t.Fatal(err)
				}
			}
			h.hear()
			list(1)
			before := lease(1)
			n := h.node().DeepCopy()
			c.write(n)
			put := state.Put(n, "")
			put.By = c.by
			if _, err := h.l.Do(h.t.Context(), func(state.Snapshot, time.Time) ([]state.Change,
				error) {
				return []state.Change{put}, nil
			}); err != nil {
				h.t.Fatal(err)
			}
			list(2) // a changed list of pods does not restore the status
			asked := lease(2)
			if (asked > before) != c.asked {
				h.t.Fatalf("the device was asked %d times, before %d", asked, before)
			}
			if !c.asked {
				return
			}
			h.hear()
			list(3)
			if again := lease(3); state.ReadyOf(h.node()) != corev1.ConditionTrue || again != asked {
				h.t.Errorf("the node is Ready=%s, and the device was asked %d times, at first %d", state.ReadyOf(h.node()), again,
					asked)
			}
		})
	}
}

// A device reports only its own conditions, like a kubelet. Conditions of other writers, such as a
// kernel monitor, stay. If the device no longer reports one of its conditions, the hub removes it.
func TestConditionsOfOtherWritersStay(t *testing.T) {
	listening(t, "", func(h *listener) {
		of := func(n *corev1.Node) (out []string) {
			for _, c := range n.Status.Conditions {
				out = append(out, fmt.Sprint(c.Type, "=", c.Status))
			}
			slices.Sort(out)
			return out
		}
		want := func(when, conditions string) {
			h.t.Helper()
			if got := strings.Join(of(h.node()), " "); got != conditions {
				h.t.Errorf("%s the node has %s, want %s", when, got, conditions)
			}
		}
		reporting := func(types ...corev1.NodeConditionType) func(*wire.Status) {
			return func(st *wire.Status) {
				for _, t := range types {
					st.Status.Conditions = append(st.Status.Conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse})
				}
			}
		}
		h.hear(reporting("Odd", fleet.ConditionPowerOK))
		n := h.node().DeepCopy()
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: "KernelDeadlock", Status: corev1.ConditionTrue},
			corev1.NodeCondition{Type: fleet.ConditionStorageHealthy, Status: corev1.ConditionFalse})
		h.write(n)
		h.hear(reporting("Odd", fleet.ConditionPowerOK))
		want("as before,", "KernelDeadlock=True Odd=False PowerOK=False Ready=True")
		h.hear()
		want("after a report with fewer conditions", "KernelDeadlock=True Ready=True")
		h.hear(reporting("KernelDeadlock"))
		want("after the same report", "KernelDeadlock=False Ready=True")
		h.hear()
		want("after a report without the condition", "Ready=True")

		n = h.node().DeepCopy()
		for i := range bound.MaxConditions - len(n.Status.Conditions) {
			n.Status.Conditions = append(n.Status.Conditions,
				corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprint("X", i)), Status: corev1.ConditionTrue})
		}
		h.write(n)
		var many []corev1.NodeConditionType
		for i := range 20 {
			many = append(many, corev1.NodeConditionType(fmt.Sprint("Y", i)))
		}
		h.hear(reporting(many...))
		if n := h.node(); len(n.Status.Conditions) != maxConditions || state.ReadyOf(n) != corev1.ConditionTrue {
			h.t.Errorf("the node has %d conditions, want %d at most", len(n.Status.Conditions), maxConditions)
		}
	})
}

const maxConditions = bound.MaxConditions - 8 // limit of conditions of a status

// The pods of a node that was silent count as not ready until its device lists them. A list that
// refers to an earlier list, from before the silence, does not list the unchanged pods. The device
// sends such a list if its link to an external broker lasted while the hub's link broke.
func TestAListThatRefersToAnEarlierOneDoesNotEndASilence(t *testing.T) {
	listening(t, "ours: a list of changed pods", func(h *listener) {
		h.hear()
		h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
			Spec: corev1.PodSpec{NodeName: "pi-1"}})
		podStatus := func() wire.PodStatus {
			return wire.PodStatus{UID: h.l.Snapshot().Pod("default", "kiosk").UID, Namespace: "default", Name: "kiosk",
				Status: corev1.PodStatus{
					Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
		}
		list := func(seq, base uint64, p wire.PodStatus) {
			h.t.Helper()
			if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"},
				wire.Pods{Boot: "b", Seq: seq, Base: base, Generation: h.l.Snapshot().Record("pi-1").Generation,
					Pods: []wire.PodStatus{p}}); err != nil {
				h.t.Fatal(err)
			}
		}
		lease := func(seq, pods uint64) (asked int) {
			h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: seq, Status: h.seq, Pods: pods,
				Desired: h.l.Snapshot().Record("pi-1").Generation})
			synctest.Wait()
			for _, r := range h.book.Requests() {
				if r.Type == wire.RequestRefresh {
					asked++
				}
			}
			return asked
		}
		ready := func() corev1.ConditionStatus {
			return state.PodCondition(h.l.Snapshot().Pod("default", "kiosk"), corev1.PodReady).Status
		}
		list(1, 0, podStatus())
		before := lease(1, 1)
		time.Sleep(time.Minute)
		if got := ready(); got != corev1.ConditionFalse {
			h.t.Fatalf("the pod is Ready=%s after a minute of silence", got)
		}
		h.hear()
		list(2, 1, wire.PodStatus{UID: podStatus().UID})
		asked := lease(2, 2)
		if asked == before {
			h.t.Fatalf("the device is not asked for its pods, and a pod is Ready=%s", ready())
		}
		list(3, 0, podStatus())
		time.Sleep(10 * time.Second)
		if again := lease(3, 3); again != asked || ready() != corev1.ConditionTrue {
			h.t.Errorf("the device was asked %d times, want %d, and its pod is Ready=%s", asked, again, ready())
		}
	})
}

// A user may overwrite the device's part of a pod's status. That stays until the device reports it
// again, as with a kubelet. Conditions of other writers, for example for readiness gates, need no
// new report.
func TestOverwrittenPodsAreRequestedAgain(t *testing.T) {
	for _, c := range []struct {
		what  string
		by    string
		gates []corev1.PodReadinessGate
		write func(*corev1.Pod)
		asked bool
	}{
		{"the Ready condition", "anna", nil, func(p *corev1.Pod) { state.PodCondition(p, corev1.PodReady).Status = corev1.ConditionFalse }, true},
		{"its address", "anna", nil, func(p *corev1.Pod) { p.Status.PodIP = "10.1.2.3" }, true},
		{"a status written by the hub", "", nil, func(p *corev1.Pod) { state.PodCondition(p, corev1.PodReady).Status = corev1.ConditionFalse }, false},
		{"a label", "anna", nil, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, false},
		{"the condition of a readiness gate", "anna", []corev1.PodReadinessGate{{ConditionType: "example.org/served"}},
			func(p *corev1.Pod) {
				state.SetPodCondition(p, corev1.PodCondition{Type: "example.org/served", Status: corev1.ConditionTrue}, time.Now())
				state.SettleReady(p, time.Now())
			}, false},
	} {
		listening(t, c.what, func(h *listener) {
			h.hear()
			h.write(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
				Spec: corev1.PodSpec{NodeName: "pi-1", ReadinessGates: c.gates}})
			now := func() *corev1.Pod { return h.l.Snapshot().Pod("default", "kiosk") }
			list := func(seq, base uint64, p wire.PodStatus) {
				h.t.Helper()
				if err := h.l.Pods(h.t.Context(), node.Caller{Node: "pi-1"},
					wire.Pods{Boot: "b", Seq: seq, Base: base, Generation: h.l.Snapshot().Record("pi-1").Generation,
						Pods: []wire.PodStatus{p}}); err != nil {
					h.t.Fatal(err)
				}
			}
			lease := func(seq, pods uint64) (asked int) {
				time.Sleep(10 * time.Second)
				h.l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: seq, Status: h.seq, Pods: pods,
					Desired: h.l.Snapshot().Record("pi-1").Generation})
				synctest.Wait()
				for _, r := range h.book.Requests() {
					if r.Type == wire.RequestRefresh {
						asked++
					}
				}
				return asked
			}
			reported := wire.PodStatus{UID: now().UID, Namespace: "default", Name: "kiosk",
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}}}
			list(1, 0, reported)
			before := lease(1, 1)
			was, p := now().Status, now().DeepCopy()
			c.write(p)
			put := state.Put(p, "")
			put.By = c.by
			if _, err := h.l.Do(h.t.Context(), func(state.Snapshot, time.Time) ([]state.Change,
				error) {
				return []state.Change{put}, nil
			}); err != nil {
				h.t.Fatal(err)
			}
			list(2, 1, wire.PodStatus{UID: p.UID}) // the pod has not changed for the device
			asked := lease(2, 2)
			if (asked > before) != c.asked {
				h.t.Fatalf("the device was asked %d times, before %d", asked, before)
			}
			if !c.asked {
				return
			}
			list(3, 0, reported)
			if again := lease(3, 3); again != asked || now().Status.PodIP != was.PodIP ||
				state.PodCondition(now(), corev1.PodReady).Status != corev1.ConditionTrue {
				h.t.Errorf("the device was asked %d times, want %d, and its pod is %+v", asked, again, now().Status)
			}
		})
	}
}
