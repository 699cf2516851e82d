package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

func running(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning }
}

func leaving(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} }

// forced makes a force-deleted pod, which is removed with its last finalizer.
func forced(finalizers ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &metav1.Time{Time: start}, new(int64(0)), finalizers
	}
}

func in(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// Kubernetes' test cases for pods of deleted nodes: section S10 of hub/testdata/scenarios.txt.
func TestOrphans(t *testing.T) {
	gone := state.Key{Kind: state.Nodes, Name: "pi-1"}
	for _, c := range []struct {
		name string
		act  func(f *fleet)
		left int
	}{
		{"S10 the node exists: keep", func(f *fleet) { f.pass(2 * DefaultQuarantine) }, 2},
		{"S10 the node is deleted for twice the quarantine: delete all", func(f *fleet) { f.remove(gone).pass(2 * DefaultQuarantine) }, 0},
		{"S10 the node is deleted for half the quarantine: keep", func(f *fleet) { f.remove(gone).pass(DefaultQuarantine / 2) }, 2},
		{"S10 the node returns before the check: keep", func(f *fleet) {
			f.remove(gone).pass(DefaultQuarantine / 2).put(node("pi-1")).pass(DefaultQuarantine)
		}, 2},
		{"S10 the node is deleted twice: the quarantine starts again", func(f *fleet) {
			f.remove(gone).pass(30 * time.Second).put(node("pi-1")).settle().remove(gone).pass(30 * time.Second)
		}, 2},
		{"a restart of the hub starts the quarantine again", func(f *fleet) {
			f.remove(gone).pass(30 * time.Second)
			f.alarms = map[state.Subject]time.Time{}
			f.carry(f.d.Decide(f.s, f.d.Subjects(f.s), f.now))
			f.pass(39 * time.Second)
			if len(f.pods()) != 2 {
				f.t.Error("a pod is removed before the quarantine is over")
			}
			f.pass(time.Second)
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), bare("run", running("pi-1")), bare("done", running("pi-1"),
				in(corev1.PodSucceeded))).settle()
			c.act(f)
			f.settle().quiet()
			if len(f.pods()) != c.left {
				t.Errorf("the pods %v remain, want %d", f.pods(), c.left)
			}
			if c.left > 0 {
				return
			}
			var failed []string
			for _, ch := range f.changes {
				if p, ok := ch.Object.(*corev1.Pod); ok && !ch.Delete && p.Status.Phase == corev1.PodFailed {
					failed = append(failed, p.Name)
					if d := state.PodCondition(p, corev1.DisruptionTarget); d == nil || d.Reason != "DeletionByPodGC" {
						t.Errorf("the condition DisruptionTarget is %+v, want DeletionByPodGC", d)
					}
				}
			}
			if !slices.Equal(failed, []string{"run"}) {
				t.Errorf("marked Failed first: %v, want only the pod that had not ended", failed)
			}
		})
	}
}

// Kubernetes' test cases for terminating pods: section S10 of hub/testdata/scenarios.txt.
func TestTerminatingPods(t *testing.T) {
	out := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}
	notReady := func(n *corev1.Node) *corev1.Node {
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		return n
	}
	for _, c := range []struct {
		name string
		node *corev1.Node
		pod  *corev1.Pod
		left bool
	}{
		{"S10 terminating on a node that is not ready: keep", notReady(node("pi-1")), bare("p", running("pi-1"), leaving), true},
		{"S10 terminating on an out-of-service node: delete", notReady(node("pi-1", out)), bare("p", running("pi-1"), leaving), false},
		{"S10 not terminating on an out-of-service node: keep", notReady(node("pi-1", out)), bare("p", running("pi-1")), true},
		{"S10 terminating on a ready node with the out-of-service taint: keep", node("pi-1", out), bare("p", running("pi-1"), leaving), true},
		{"S10 unscheduled and terminating, pending: delete", node("pi-1"), bare("p", leaving), false},
		{"S10 unscheduled and terminating, failed: delete", node("pi-1"), bare("p", leaving, in(corev1.PodFailed)), false},
		{"S10 unscheduled and terminating, running: delete", node("pi-1"), bare("p", leaving, in(corev1.PodRunning)), false},
		{"unscheduled and not terminating: keep", node("pi-1"), bare("p"), true},
		{"finished and terminating: delete", node("pi-1"), bare("p", running("pi-1"), in(corev1.PodFailed), leaving), false},
		{"force-deleted, with the foreground finalizer: delete", notReady(node("pi-1")), bare("p", running("pi-1"), forced(metav1.FinalizerDeleteDependents)), false},
		{"force-deleted, with the orphan finalizer: delete", notReady(node("pi-1")), bare("p", running("pi-1"), forced(metav1.FinalizerOrphanDependents)), false},
		{"force-deleted, without finalizers: delete", notReady(node("pi-1")), bare("p", running("pi-1"), forced()), false},
		{"force-deleted, with the finalizer of a missing Job: delete", notReady(node("pi-1")), bare("p", running("pi-1"), forced(batchv1.JobTrackingFinalizer)), false},
		{"force-deleted, with a user's finalizer: keep", notReady(node("pi-1")), bare("p", running("pi-1"), forced("example.com/wait", metav1.FinalizerDeleteDependents)), true},
		{"not force-deleted, with the foreground finalizer: keep", notReady(node("pi-1")), bare("p", running("pi-1"), leaving, func(p *corev1.Pod) { p.Finalizers = []string{metav1.FinalizerDeleteDependents} }), true},
		{"unscheduled and terminating, with a user's finalizer: keep", node("pi-1"), bare("p", leaving, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/wait"} }), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(c.pod, c.node).settle().quiet()
			if got := f.s.Pod("default", "p") != nil; got != c.left {
				t.Errorf("the pod remains: %v", got)
			}
			f = newFleet(t).put(c.node.DeepCopy(), c.pod.DeepCopy()).settle().quiet() // the node before the pod
			if got := f.s.Pod("default", "p") != nil; got != c.left {
				t.Errorf("with the objects in the other order the pod remains: %v", got)
			}
		})
	}
}

// Kubernetes' test cases for the limit of finished pods: section S10 of hub/testdata/scenarios.txt.
func TestFinishedPods(t *testing.T) {
	f := newFleet(t)
	f.d.FinishedPods = 2
	for i := range 5 {
		f.put(bare(fmt.Sprintf("p%d", i), in(corev1.PodFailed), func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(i) * time.Second))
			if i == 3 {
				p.Status.Reason = "Evicted"
			}
		}))
	}
	f.put(bare("run", running("pi-1"))).put(node("pi-1")).pass(finishedGrid).quiet()
	if !slices.Equal(f.pods(), []string{"p2", "p4", "run"}) {
		t.Errorf("S10 threshold: %v remain; want the evicted pod and the oldest removed", f.pods())
	}
	f.d.FinishedPods = 0
	f.put(bare("p5", in(corev1.PodFailed))).pass(time.Hour)
	if len(f.pods()) != 4 {
		t.Error("a limit of 0 removes a pod")
	}
}

func TestOwners(t *testing.T) {
	cm := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	}
	owner := func(o state.Object, kind string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: o.GetName(), UID: o.GetUID()}
	}
	f := newFleet(t).put(cm("a"), cm("b"))
	a, b := f.s.Get(state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: "a"}),
		f.s.Get(state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: "b"})
	one, two, foreign, blocked, namesake := cm("one"), cm("two"), cm("foreign"), cm("blocked"), cm("namesake")
	one.OwnerReferences = []metav1.OwnerReference{owner(a, "ConfigMap")}
	two.OwnerReferences = []metav1.OwnerReference{owner(a, "ConfigMap"), owner(b, "ConfigMap")}
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "w"}}
	namesake.OwnerReferences = []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "s",
		UID: "s"}}
	blocked.OwnerReferences, blocked.Finalizers = []metav1.OwnerReference{owner(a, "ConfigMap")},
		[]string{"example.com/wait"}
	f.put(one, two, foreign, blocked, namesake).settle().quiet()
	has := func(name string) bool {
		return f.s.Get(state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: name}) != nil
	}
	if !has("one") || !has("two") || !has("foreign") || !has("blocked") || !has("namesake") {
		t.Fatal("an object is removed although its owner exists or has an unknown kind")
	}
	f.remove(state.KeyOf(a)).settle().quiet()
	if has("one") || !has("two") || !has("foreign") || !has("blocked") {
		t.Errorf("still present: one=%v two=%v foreign=%v blocked=%v; want all except one", has("one"), has("two"), has("foreign"),
			has("blocked"))
	}
	if refs := f.s.Get(state.KeyOf(two)).GetOwnerReferences(); len(refs) != 1 || refs[0].Name != "b" {
		t.Errorf("the owners of two are %v, want only b", refs)
	}
	f.edit(state.KeyOf(blocked), func(o state.Object) { o.SetFinalizers(nil) }).settle().quiet()
	if has("blocked") {
		t.Error("an object without finalizers is not removed")
	}
}

// As in Kubernetes, the reference of a cluster-scoped object to an owner of a namespaced kind
// cannot be resolved, so the object stays.
func TestAClusterScopedObjectIgnoresANamespacedOwner(t *testing.T) {
	f := newFleet(t).put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "default"}})
	key := state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: "owner"}
	for name, uid := range map[string]types.UID{"of-an-existing-owner": f.s.Get(key).GetUID(),
		"of-a-missing-owner": "gone"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
		ns.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid}}
		f.put(ns)
	}
	whole := func(when string) {
		t.Helper()
		for _, name := range []string{"of-an-existing-owner", "of-a-missing-owner"} {
			if ns := f.s.Get(state.Key{Kind: state.Namespaces, Name: name}); ns == nil || ns.GetDeletionTimestamp() != nil {
				t.Errorf("%s: namespace %s is removed", when, name)
			}
		}
	}
	f.settle().quiet()
	whole("while the owner exists")
	f.edit(key, func(o state.Object) {
		o.SetDeletionTimestamp(&metav1.Time{Time: f.now})
		o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	}).settle().quiet()
	if f.s.Get(key) != nil {
		t.Error("the owner's foreground deletion waits for a namespace, which is not its dependent")
	}
	whole("after the owner's foreground deletion")
}

// As in Kubernetes, foreground deletion deletes dependents that have no other owner, and keeps
// those that have another owner.
func TestForegroundDeletionReleasesSharedDependents(t *testing.T) {
	for _, c := range []struct {
		name  string
		other func(o state.Object) // changes the other owner
		left  bool
	}{
		{"the other owner exists", func(state.Object) {}, true},
		{"the other owner is being deleted, but has a finalizer", func(o state.Object) {
			o.SetDeletionTimestamp(&metav1.Time{Time: start})
			o.SetFinalizers([]string{"example.com/wait"})
		}, true},
		{"the other owner is in foreground deletion too", func(o state.Object) {
			o.SetDeletionTimestamp(&metav1.Time{Time: start})
			o.SetFinalizers([]string{metav1.FinalizerDeleteDependents, "example.com/wait"})
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := func(name string) state.Key {
				return state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: name}
			}
			f := newFleet(t)
			for _, name := range []string{"a", "b", "both", "own"} {
				f.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
			}
			refs := func(names ...string) func(state.Object) {
				return func(o state.Object) {
					var list []metav1.OwnerReference
					for _, n := range names {
						list = append(list, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: n,
							UID: f.s.Get(key(n)).GetUID(), BlockOwnerDeletion: new(true)})
					}
					o.SetOwnerReferences(list)
				}
			}
			f.edit(key("both"), refs("a", "b")).edit(key("own"), refs("a")).settle().quiet()
			f.edit(key("b"), c.other)
			f.edit(key("a"), func(o state.Object) {
				o.SetDeletionTimestamp(&metav1.Time{Time: start})
				o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
			}).settle().quiet()
			if f.s.Get(key("a")) != nil || f.s.Get(key("own")) != nil {
				t.Error("the owner, or a dependent without another owner, remains")
			}
			both := f.s.Get(key("both"))
			if (both != nil) != c.left {
				t.Fatalf("the dependent with two owners remains: %v, want %v", both != nil, c.left)
			}
			if both != nil && (len(both.GetOwnerReferences()) != 1 || both.GetOwnerReferences()[0].Name != "b") {
				t.Errorf("the owners of the shared dependent are %v, want only b", both.GetOwnerReferences())
			}
		})
	}
}

func TestOwnersInACycleAreDeleted(t *testing.T) {
	const size = 3
	for _, start := range []string{"p-0", "p-1", "p-2"} {
		for _, running := range []bool{false, true} {
			f := newFleet(t).put(node("pi-1"))
			var pods []*corev1.Pod
			for i := range size {
				p := bare(fmt.Sprintf("p-%d", i))
				if running {
					p.Spec.NodeName, p.Status.Phase = "pi-1", corev1.PodRunning
				}
				f.put(p)
				pods = append(pods, f.s.Get(state.KeyOf(p)).(*corev1.Pod))
			}
			for i, p := range pods {
				owner := pods[(i+size-1)%size]
				f.edit(state.KeyOf(p), func(o state.Object) {
					o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID,
						BlockOwnerDeletion: new(true)}})
				})
			}
			f.settle().quiet()
			if len(f.pods()) != size {
				t.Fatalf("before a deletion the pods are %v, want %d", f.pods(), size)
			}
			f.edit(state.Key{Kind: state.Pods, Namespace: "default", Name: start}, func(o state.Object) {
				leaving(o.(*corev1.Pod))
				o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
			}).settle().quiet()
			for _, p := range pods { // the device has stopped the pods
				if live, ok := f.s.Get(state.KeyOf(p)).(*corev1.Pod); ok && running {
					if live.DeletionTimestamp == nil || live.DeletionGracePeriodSeconds == nil && live.Name != start {
						t.Fatalf("%s does not stop with its grace period: %v", live.Name, live.ObjectMeta)
					}
					f.edit(state.KeyOf(p), func(o state.Object) { o.(*corev1.Pod).Status.Phase = corev1.PodFailed }).settle()
				}
			}
			f.quiet()
			if left := f.pods(); len(left) > 0 {
				t.Errorf("deletion of %s, running %v: %v remain", start, running, left)
			}
		}
	}
}

func TestNamespace(t *testing.T) {
	f := newFleet(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
	ev := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}}
	f.put(node("pi-1"), ns, deployment(2), daemonSet(), ev, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s",
		Namespace: "default"}}).settle().run("pi-1").settle()
	f.edit(state.KeyOf(ns), func(o state.Object) {
		leavingAt := metav1.NewTime(f.now)
		o.SetDeletionTimestamp(&leavingAt)
		o.(*corev1.Namespace).Status.Phase = corev1.NamespaceTerminating
	}).settle().quiet()
	if f.s.Get(state.KeyOf(ns)) == nil || f.deploy() == nil || f.s.Len(state.Secrets) != 1 || len(f.livePods()) != 0 ||
		len(f.pods()) != 3 {
		t.Fatalf("an object was removed before the pods that may use it have ended: pods %v", f.pods())
	}
	conditions := func() string {
		var all []string
		for _, c := range f.s.Get(state.KeyOf(ns)).(*corev1.Namespace).Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				all = append(all, string(c.Type)+": "+c.Message)
			}
		}
		return strings.Join(all, "; ")
	}
	if got, want := conditions(), "NamespaceContentRemaining: Some resources are remaining: pods. has 3 resource instances"; got != want {
		t.Errorf("the namespace's conditions are %q, want %q", got, want)
	}
	secret := state.Key{Kind: state.Secrets, Namespace: "default", Name: "s"}
	f.edit(secret, func(o state.Object) { o.SetFinalizers([]string{"example.com/keep"}) })
	f.run("pi-1").settle().quiet()
	if f.deploy() != nil || len(f.pods()) != 0 {
		t.Fatalf("without pods the other objects are not removed: pods %v", f.pods())
	}
	if got, want := conditions(), "NamespaceContentRemaining: Some resources are remaining: secrets. has 1 resource instances; "+
		"NamespaceFinalizersRemaining: Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"; got != want {
		t.Errorf("the namespace's conditions are %q, want %q", got, want)
	}
	f.edit(secret, func(o state.Object) { o.SetFinalizers(nil) }).settle().quiet()
	if f.s.Get(state.KeyOf(ns)) != nil || f.s.Len(state.Pods)+f.s.Len(state.Events)+f.s.Len(state.ControllerRevisions) != 0 {
		t.Error("the empty namespace is not removed")
	}
}

// A terminating namespace exists until it is empty, whether a user or garbage collection deletes
// it.
func TestATerminatingNamespaceIsAlwaysEmptied(t *testing.T) {
	const owner = "of-it"
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: owner}}
	leave := func(finalizers ...string) func(*fleet, state.Key) {
		return func(f *fleet, k state.Key) {
			f.edit(k, func(o state.Object) {
				at := metav1.NewTime(f.now)
				o.SetDeletionTimestamp(&at)
				o.SetFinalizers(append(o.GetFinalizers(), finalizers...))
				o.(*corev1.Namespace).Status.Phase = corev1.NamespaceTerminating
			})
		}
	}
	for name, end := range map[string]func(*fleet, state.Key){
		"a user deletes it":                      leave(),
		"a user deletes it in the foreground":    leave(metav1.FinalizerDeleteDependents),
		"a user deletes it with orphan":          leave(metav1.FinalizerOrphanDependents),
		"its owner is removed":                   func(f *fleet, _ state.Key) { f.remove(state.KeyOf(class)) },
		"its owner is deleted in the foreground": func(f *fleet, _ state.Key) { leaveForeground(f, state.KeyOf(class)) },
		"its owner is removed, and the namespace has a finalizer": func(f *fleet, k state.Key) {
			f.edit(k, func(o state.Object) { o.SetFinalizers([]string{metav1.FinalizerDeleteDependents}) })
			f.remove(state.KeyOf(class))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), class.DeepCopy())
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"},
				Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
				Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
			ns.OwnerReferences = []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1", Kind: "PriorityClass",
				Name: owner, UID: f.s.Get(state.KeyOf(class)).GetUID(), BlockOwnerDeletion: new(true)}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "till", Namespace: "shop"},
				Spec: corev1.PodSpec{NodeName: "pi-1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			f.put(ns, pod, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "shop"}}).settle().quiet()
			end(f, state.KeyOf(ns))
			f.settle().quiet()
			left, _ := f.s.Get(state.KeyOf(ns)).(*corev1.Namespace)
			if left == nil || left.DeletionTimestamp == nil || left.Status.Phase != corev1.NamespaceTerminating {
				t.Fatalf("while a pod runs the namespace is %+v, want it Terminating", left)
			}
			if p := f.s.Pod("shop", "till"); p == nil || p.DeletionTimestamp == nil || f.s.Len(state.Secrets) != 1 {
				t.Fatalf("the pod is not being deleted: %+v", p)
			}
			f.run("pi-1").settle().quiet()
			if f.s.Get(state.KeyOf(ns)) != nil || f.s.Len(state.Pods)+f.s.Len(state.Secrets) != 0 {
				t.Errorf("the empty namespace is not removed: %+v", f.s.Get(state.KeyOf(ns)))
			}
		})
	}
}

func leaveForeground(f *fleet, k state.Key) {
	f.edit(k, func(o state.Object) {
		at := metav1.NewTime(f.now)
		o.SetDeletionTimestamp(&at)
		o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	})
}

// Garbage collection does not delete the built-in namespaces.
func TestPermanentNamespacesIgnoreOwners(t *testing.T) {
	f := newFleet(t)
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
		ns.OwnerReferences = []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1", Kind: "PriorityClass",
			Name: "gone", UID: "gone"}}
		f.put(ns)
	}
	f.settle().quiet()
	for o := range f.s.All(state.Namespaces, "") {
		if o.GetDeletionTimestamp() != nil {
			t.Errorf("namespace %s is being deleted", o.GetName())
		}
	}
	if n := f.s.Len(state.Namespaces); n != 4 {
		t.Errorf("%d namespaces remain, want 4", n)
	}
}

// As in Kubernetes, a namespace stays until its last finalizer is removed.
func TestANamespaceWaitsForAllItsFinalizers(t *testing.T) {
	f := newFleet(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"example.com/keep", corev1.FinalizerKubernetes}}}
	f.put(ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "shop"}}).edit(state.KeyOf(ns),
		func(o state.Object) {
			leavingAt := metav1.NewTime(f.now)
			o.SetDeletionTimestamp(&leavingAt)
			o.(*corev1.Namespace).Status.Phase = corev1.NamespaceTerminating
		}).settle().quiet()
	left, _ := f.s.Get(state.KeyOf(ns)).(*corev1.Namespace)
	if left == nil || f.s.Len(state.Secrets) != 0 || !slices.Equal(left.Spec.Finalizers,
		[]corev1.FinalizerName{"example.com/keep"}) {
		t.Fatalf("the empty namespace with a finalizer is %+v, want it kept", left)
	}
	f.edit(state.KeyOf(ns), func(o state.Object) { o.(*corev1.Namespace).Spec.Finalizers = nil }).settle().quiet()
	if f.s.Get(state.KeyOf(ns)) != nil {
		t.Error("the namespace without finalizers is not removed")
	}
}

// An event expires after its last occurrence. Times in the future do not keep it longer.
func TestAnEventExpiresByItsLastOccurrence(t *testing.T) {
	f := newFleet(t)
	made, later, before := metav1.NewTime(f.now), f.now.Add(10*365*24*time.Hour), f.now.Add(-time.Hour)
	again := metav1.NewMicroTime(f.now.Add(12 * time.Hour))
	event := func(name string, edit func(*corev1.Event)) {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", CreationTimestamp: made}}
		edit(e)
		f.put(e)
	}
	event("last-later", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(later) })
	event("once-later", func(e *corev1.Event) { e.EventTime = metav1.NewMicroTime(later) })
	event("seen-later", func(e *corev1.Event) {
		e.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(later)}
	})
	event("before", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(before) })
	event("again", func(e *corev1.Event) { e.Series = &corev1.EventSeries{Count: 2, LastObservedTime: again} })
	left := func() (names []string) {
		for e := range state.Each[*corev1.Event](f.s, state.Events, "") {
			names = append(names, e.Name)
		}
		return names
	}
	if f.pass(23 * time.Hour); len(left()) != 5 {
		t.Errorf("after 23 h the events %v remain, want all 5", left())
	}
	if f.pass(time.Hour + eventGrid); fmt.Sprint(left()) != "[again]" {
		t.Errorf("after 24 h the events %v remain, want only again", left())
	}
	if f.pass(12 * time.Hour); len(left()) != 0 {
		t.Errorf("at the end the events %v remain, want none", left())
	}
}

func TestEvents(t *testing.T) {
	f := newFleet(t)
	f.d.EventLimit = 40
	event := func(i int) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%03d", i), Namespace: "default"}}
	}
	for i := range 42 {
		f.put(event(i))
		f.now = f.now.Add(time.Second)
	}
	if f.pass(2 * time.Second).quiet(); f.s.Len(state.Events) != 42 {
		t.Fatalf("%d events: a few more than 40 may stay for a while", f.s.Len(state.Events))
	}
	f.put(event(42)).pass(2 * time.Second)
	if n := f.s.Len(state.Events); n != 40 || f.s.Get(state.Key{Kind: state.Events, Namespace: "default",
		Name: "e002"}) != nil {
		t.Fatalf("%d events left, want the newest 40", n)
	}
	f.pass(23 * time.Hour)
	if n := f.s.Len(state.Events); n != 40 {
		t.Errorf("%d events after 23 h, want 40", n)
	}
	f.pass(time.Hour + eventGrid)
	if n := f.s.Len(state.Events); n != 0 {
		t.Errorf("%d events after 24 h, want none", n)
	}
}
