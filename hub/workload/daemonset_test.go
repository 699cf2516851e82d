package workload

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
	fleetapi "flotilla.dev/shared/fleet"
)

// Kubernetes' test cases for DaemonSets: section S12 of hub/testdata/scenarios.txt.
func TestDaemonSetLaunches(t *testing.T) {
	mark := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Effect: effect}
	}
	no := corev1.TaintEffectNoSchedule
	for _, c := range []struct {
		name string
		node *corev1.Node
		edit func(*appsv1.DaemonSet)
		runs bool
	}{
		{"S12 on a ready node", node("pi"), nil, true},
		{"S12 on a node that is not ready", node("pi", mark(corev1.TaintNodeNotReady, no), mark(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)), nil, true},
		{"not on an unreachable node, which still counts as desired", node("pi", mark(corev1.TaintNodeUnreachable, no)), nil, false},
		{"S12 on an unschedulable node", node("pi", mark(corev1.TaintNodeUnschedulable, no)), nil, true},
		{"S12 under memory pressure", node("pi", mark(corev1.TaintNodeMemoryPressure, no)), nil, true},
		{"S12 under disk pressure", node("pi", mark(corev1.TaintNodeDiskPressure, no)), nil, true},
		{"S12 under PID pressure", node("pi", mark(corev1.TaintNodePIDPressure, no)), nil, true},
		{"not on a node without network", node("pi", mark(corev1.TaintNodeNetworkUnavailable, no)), nil, false},
		{"on a node without network with hostNetwork", node("pi", mark(corev1.TaintNodeNetworkUnavailable, no)), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.HostNetwork = true }, true},
		{"not on a node with another NoSchedule taint", node("pi", mark("mine", no)), nil, false},
		{"on a node with a PreferNoSchedule taint", node("pi", mark("mine", corev1.TaintEffectPreferNoSchedule)), nil, true},
		{"not on a node that its selector does not match", node("pi"), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, false},
		{"not on a node other than its nodeName", node("pi"), func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeName = "po" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := daemonSet()
			if c.edit != nil {
				c.edit(ds)
			}
			f := newFleet(t).put(ds).settle().put(c.node).settle().quiet()
			if got := len(f.livePods()) == 1; got != c.runs {
				t.Fatalf("there are %d pods; want one: %v", len(f.livePods()), c.runs)
			}
			silent := slices.ContainsFunc(c.node.Spec.Taints,
				func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
			if got := f.daemonSet().Status.DesiredNumberScheduled == 1; got != (c.runs || silent) {
				t.Errorf("the number of desired pods is wrong: %+v", f.daemonSet().Status)
			}
			if c.runs {
				if pod := f.livePods()[0]; pod.Spec.NodeName != "" && pod.Spec.NodeName != "pi" || targetOf(pod) != "pi" {
					t.Errorf("the pod's target is %q, want pi", targetOf(pod))
				}
			}
		})
	}
}

func TestDaemonSetFollowsItsNodes(t *testing.T) {
	f := newFleet(t)
	nodes(f, 3)
	f.put(daemonSet()).settle().quiet().run().settle().quiet()
	if st := f.daemonSet().Status; st.DesiredNumberScheduled != 3 || st.NumberAvailable != 3 ||
		st.UpdatedNumberScheduled != 3 || st.NumberUnavailable != 0 || st.ObservedGeneration != 1 {
		t.Fatalf("the status is %+v, want 3 updated and available pods", st)
	}
	tainted := func(effect corev1.TaintEffect) func(state.Object) {
		return func(o state.Object) {
			o.(*corev1.Node).Spec.Taints = []corev1.Taint{{Key: "mine", Effect: effect}}
		}
	}
	f.edit(state.Key{Kind: state.Nodes, Name: "pi-1"}, tainted(corev1.TaintEffectNoSchedule)).settle().quiet()
	if st := f.daemonSet().Status; len(f.livePods()) != 3 || st.NumberMisscheduled != 1 || st.DesiredNumberScheduled != 2 {
		t.Errorf("S12: a NoSchedule taint removes a pod: %+v", st)
	}
	f.edit(state.Key{Kind: state.Nodes, Name: "pi-1"}, tainted(corev1.TaintEffectNoExecute)).settle().quiet()
	if len(f.livePods()) != 2 {
		t.Error("S12: a NoExecute taint does not remove the pod")
	}
	f.edit(state.Key{Kind: state.Nodes, Name: "pi-1"},
		func(o state.Object) { o.(*corev1.Node).Spec.Taints = nil }).settle().quiet()
	if len(f.livePods()) != 2 {
		t.Error("a new pod is created before the old one has stopped")
	}
	f.run().settle().quiet()
	if len(f.livePods()) != 3 {
		t.Error("no new pod is created after the old one has stopped")
	}
	f.run().settle().remove(state.Key{Kind: state.Nodes, Name: "pi-2"}).pass(time.Minute).quiet()
	if st := f.daemonSet().Status; len(f.pods()) != 2 || st.DesiredNumberScheduled != 2 {
		t.Errorf("after a node is deleted the pods are %v, want 2; the status is %+v", f.pods(), st)
	}
}

func TestDaemonSetRollout(t *testing.T) {
	num := func(v string) *intstr.IntOrString { return new(intstr.Parse(v)) }
	for _, c := range []struct {
		name        string
		surge, gone *intstr.IntOrString
		least, most int
	}{
		{"1 unavailable", nil, num("1"), 4, 5},
		{"40 % unavailable", nil, num("40%"), 3, 5},
		{"a surge of 1", num("1"), num("0"), 5, 6},
		{"a surge of 40 %", num("40%"), num("0"), 5, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			nodes(f, 5)
			ds := daemonSet()
			ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: c.surge, MaxUnavailable: c.gone}
			f.put(ds).settle().run().settle()
			f.edit(probeKey, func(o state.Object) {
				ds := o.(*appsv1.DaemonSet)
				ds.Generation, ds.Spec.Template.Spec.Containers[0].Image = 2, "probe:2"
			})
			steps := 0
			for ; steps < 40; steps++ {
				f.settle().quiet()
				up := 0
				for _, pod := range f.livePods() {
					if ready(pod) {
						up++
					}
				}
				if up < c.least || len(f.livePods()) > c.most {
					t.Fatalf("%d pods are available, want at least %d; %d exist, want at most %d", up, c.least, len(f.livePods()),
						c.most)
				}
				if st := f.daemonSet().Status; st.UpdatedNumberScheduled == 5 && st.NumberAvailable == 5 && len(f.pods()) == 5 {
					break
				}
				f.now = f.now.Add(time.Second)
				f.run()
			}
			if steps == 40 {
				t.Fatalf("the rollout does not finish: %+v", f.daemonSet().Status)
			}
		})
	}
}

// A node that becomes silent with the new template's pod, or while its pod is replaced, counts as
// unavailable, because the new template may be the cause. A node that was silent before does not
// delay the rollout.
func TestADaemonSetRolloutStopsAtASilentNode(t *testing.T) {
	goSilent := func(f *fleet, name string) {
		f.edit(state.Key{Kind: state.Nodes, Name: name}, func(o state.Object) {
			o.(*corev1.Node).Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable,
				Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
		})
		for pod := range f.s.PodsOn(name) {
			f.edit(podKey(pod.Name), func(o state.Object) {
				state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
					f.now)
			})
		}
	}
	for _, c := range []struct {
		name        string
		surge, gone int
		replacing   bool // silent before its device has reported that the old pod has stopped
		before      int  // number of nodes that are silent before the rollout
	}{
		{"silent with the new pod", 0, 1, false, 0},
		{"silent while its pod is replaced", 0, 1, true, 0},
		{"a surge: silent with the new pod", 1, 0, false, 0},
		{"silent with the new pod, after two other nodes", 0, 1, false, 2},
		{"a surge: silent with the new pod, after two other nodes", 1, 0, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			nodes(f, 6)
			ds := daemonSet()
			ds.Spec.MinReadySeconds = 60
			ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt(c.surge)),
				MaxUnavailable: new(intstr.FromInt(c.gone))}
			f.put(ds).settle().run().pass(2 * time.Minute)
			var last []string
			for n := range f.s.Nodes() {
				last = append(last, n.Name)
			}
			for _, name := range last[:c.before] {
				goSilent(f, name)
			}
			f.settle()
			old := map[string]bool{}
			for pod := range f.s.Pods("") {
				old[pod.Name] = true
			}
			f.edit(probeKey, func(o state.Object) {
				ds := o.(*appsv1.DaemonSet)
				ds.Generation, ds.Spec.Template.Spec.Containers[0].Image = 2, "probe:2"
			})
			silent := map[string]bool{}
			for range 10 {
				f.settle()
				if c.replacing {
					for pod := range f.s.Pods("") {
						if pod.DeletionTimestamp != nil {
							silent[pod.Spec.NodeName] = true
						}
					}
				} else {
					f.run().settle().run().settle()
					for pod := range f.s.Pods("") {
						if !old[pod.Name] && pod.Spec.NodeName != "" {
							silent[pod.Spec.NodeName] = true
						}
					}
				}
				for name := range silent {
					goSilent(f, name)
				}
				f.pass(5 * time.Minute)
			}
			if len(silent) != 1 {
				t.Errorf("the rollout affects %d silent nodes, want 1: %v", len(silent), silent)
			}
			if st := f.daemonSet().Status; st.DesiredNumberScheduled != 6 || st.NumberUnavailable != int32(c.before)+1 &&
				c.surge == 0 {
				t.Errorf("the status is %+v, want 6 pods, the silent ones unavailable", st)
			}
		})
	}
}

// A surge whose pods the device rejects backs off, and continues once the device accepts them.
func TestDaemonSetSurgeBacksOff(t *testing.T) {
	f := newFleet(t)
	nodes(f, 1)
	ds := daemonSet()
	ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(1)),
		MaxUnavailable: new(intstr.FromInt32(0))}
	f.put(ds).settle().run().pass(time.Hour)
	f.edit(probeKey, func(o state.Object) {
		ds := o.(*appsv1.DaemonSet)
		ds.Generation, ds.Spec.Template.Spec.Containers[0].Image = 2, "probe:2"
	}).settle()
	rejected := 0
	for range 60 {
		for _, pod := range f.livePods() {
			if pod.Status.Phase == corev1.PodPending {
				rejected++
				f.edit(state.KeyOf(pod), func(o state.Object) { o.(*corev1.Pod).Spec.NodeName = "pi-1" }).settle()
				f.edit(state.KeyOf(pod), func(o state.Object) {
					p := o.(*corev1.Pod)
					p.Status.Phase, p.Status.Reason = corev1.PodFailed, "OutOfmemory"
				})
			}
		}
		f.pass(time.Second).quiet()
	}
	if rejected < 5 || rejected > 8 { // after 1 s, doubling
		t.Errorf("%d pods are rejected in a minute, want 5 to 8", rejected)
	}
	if up := f.livePods(); len(up) == 0 || !ready(up[0]) {
		t.Error("the old pod is deleted before the new one is ready")
	}
	for range 10 {
		f.pass(time.Minute).run().settle().quiet()
	}
	if st := f.daemonSet().Status; st.UpdatedNumberScheduled != 1 || st.NumberAvailable != 1 || len(f.pods()) != 1 {
		t.Errorf("the status is %+v, want 1 updated and available pod; pods %v", st, f.pods())
	}
}

// A surge deletes an old pod that is not ready, because it may hold the ports that its replacement
// needs. A ready old pod stays until its replacement is ready.
func TestADaemonSetSurgeDeletesAnUnreadyPod(t *testing.T) {
	for _, serves := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
		f := newFleet(t)
		nodes(f, 1)
		ds := daemonSet()
		ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(1)),
			MaxUnavailable: new(intstr.FromInt32(0))}
		f.put(ds).settle().run().settle()
		old := state.KeyOf(f.livePods()[0])
		f.edit(old, func(o state.Object) {
			state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: serves}, f.now)
		})
		f.edit(probeKey, func(o state.Object) {
			ds := o.(*appsv1.DaemonSet)
			ds.Generation, ds.Spec.Template.Spec.Containers[0].Image = 2, "probe:2"
		})
		f.settle().quiet()
		if pod := f.s.Pod(old.Namespace, old.Name); (pod.DeletionTimestamp == nil) != (serves == corev1.ConditionTrue) ||
			len(f.pods()) != 2 {
			t.Errorf("an old pod with Ready=%s is deleted at %v, pods %v", serves, pod.DeletionTimestamp, f.pods())
		}
	}
}

func TestDaemonSetOnDeleteWaitsForADeletion(t *testing.T) {
	f := newFleet(t)
	nodes(f, 2)
	ds := daemonSet()
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	f.put(ds).settle().run().settle()
	f.edit(probeKey, func(o state.Object) {
		ds := o.(*appsv1.DaemonSet)
		ds.Generation, ds.Spec.Template.Spec.Containers[0].Image = 2, "probe:2"
	}).settle().quiet()
	if st := f.daemonSet().Status; len(f.livePods()) != 2 || st.UpdatedNumberScheduled != 0 {
		t.Fatalf("with OnDelete the status is %+v, want no updated pod", st)
	}
	f.remove(podKey(f.pods()[0])).settle().run().settle().quiet()
	if st := f.daemonSet().Status; st.UpdatedNumberScheduled != 1 {
		t.Errorf("after a deletion the status is %+v, want 1 updated pod", st)
	}
}

func TestDaemonSetHistory(t *testing.T) {
	f := newFleet(t)
	nodes(f, 1)
	ds := daemonSet()
	ds.Spec.RevisionHistoryLimit = new(int32(2))
	f.put(ds).settle().run().settle()
	revisions := func() (out []int64) {
		for r := range state.Each[*appsv1.ControllerRevision](f.s, state.ControllerRevisions, "") {
			out = append(out, r.Revision)
		}
		slices.Sort(out)
		return out
	}
	to := func(image string) {
		f.edit(probeKey, func(o state.Object) {
			ds := o.(*appsv1.DaemonSet)
			ds.Generation++
			ds.Spec.Template.Spec.Containers[0].Image = image
		})
		for range 6 {
			f.settle().quiet().run()
		}
		f.settle().quiet()
	}
	to("probe:2")
	if got := revisions(); !slices.Equal(got, []int64{1, 2}) {
		t.Fatalf("the revisions are %v, want 1 and 2", got)
	}
	to("probe:1")
	if got := revisions(); !slices.Equal(got, []int64{2, 3}) {
		t.Fatalf("after a rollback the revisions are %v, want 2 and 3", got)
	}
	to("probe:3")
	to("probe:4")
	if got := revisions(); !slices.Equal(got, []int64{3, 4, 5}) {
		t.Errorf("revisions %v, want the newest and 2 before it", got)
	}
	for r := range state.Each[*appsv1.ControllerRevision](f.s, state.ControllerRevisions, "") {
		if !hasTemplate(r, &f.daemonSet().Spec.Template) == (r.Revision == 5) {
			t.Errorf("only revision 5 should have the template, but see revision %d: %s", r.Revision, r.Data.Raw)
		}
	}
}

func TestCriticalDaemonsTolerateAFullDisk(t *testing.T) {
	for _, tt := range []struct {
		name     string
		class    string
		priority *int32
		want     bool
	}{
		{"no priority", "", nil, false},
		{"a high priority", "important", new(int32(1_000_000)), false},
		{"system-node-critical", "system-node-critical", nil, true},
		{"system-cluster-critical", "system-cluster-critical", nil, true},
		{"a system priority", "", new(int32(2_000_000_000)), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ds := daemonSet()
			ds.Spec.Template.Spec.PriorityClassName, ds.Spec.Template.Spec.Priority = tt.class, tt.priority
			full := node("pi-1")
			full.Spec.Taints = []corev1.Taint{{Key: fleetapi.TaintOutOfDisk, Effect: corev1.TaintEffectNoSchedule}}
			f := newFleet(t).put(full, ds).settle()
			if got := len(f.livePods()) == 1; got != tt.want {
				t.Errorf("the full node gets a pod: %v, want %v", got, tt.want)
			}
		})
	}
}

// A DaemonSet that is deleted without its pods and created again adopts its pods and history
// unchanged.
func TestARecreatedDaemonSetAdoptsItsPods(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), node("pi-2"), daemonSet()).settle().run().settle().quiet()
	before := f.pods()
	ds := f.daemonSet()
	ds = ds.DeepCopy()
	for _, k := range []state.Kind{state.Pods, state.ControllerRevisions} {
		var owned []state.Object
		for o := range f.s.Owned(ds.UID, k) {
			owned = append(owned, o)
		}
		for _, o := range owned {
			f.edit(state.KeyOf(o), func(o state.Object) { o.SetOwnerReferences(nil) })
		}
	}
	f.remove(state.KeyOf(ds)).settle()
	if got := f.pods(); !slices.Equal(got, before) {
		t.Fatalf("after the deletion of the DaemonSet the pods are %v, want %v", got, before)
	}
	f.put(daemonSet()).settle().run().settle().quiet()
	if got := f.pods(); !slices.Equal(got, before) {
		t.Errorf("the recreated DaemonSet has the pods %v, want %v", got, before)
	}
	for _, p := range f.livePods() {
		if metav1.GetControllerOf(p) == nil {
			t.Errorf("%s has no controller", p.Name)
		}
	}
	n := 0
	for range f.s.Owned(f.daemonSet().UID, state.ControllerRevisions) {
		n++
	}
	if n != 1 || f.s.Len(state.ControllerRevisions) != 1 {
		t.Errorf("the DaemonSet owns %d of %d revisions, want all", n, f.s.Len(state.ControllerRevisions))
	}
}
