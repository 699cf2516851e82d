package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

var setKey = state.Key{Kind: state.StatefulSets, Namespace: "default", Name: "db"}

// aSet returns a StatefulSet with defaults.
func aSet(replicas int32, change ...func(*appsv1.StatefulSetSpec)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: selector, Template: template("db:1"), ServiceName: "dbs",
			RevisionHistoryLimit: new(int32(10)),
			PodManagementPolicy:  appsv1.OrderedReadyPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}},
		},
	}
	for _, c := range change {
		c(&s.Spec)
	}
	return s
}

func parallel(s *appsv1.StatefulSetSpec) { s.PodManagementPolicy = appsv1.ParallelPodManagement }

func withClaims(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSetSpec) {
	return func(s *appsv1.StatefulSetSpec) {
		s.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		s.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
	}
}

const (
	keepClaims = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	dropClaims = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
)

func (f *fleet) set() *appsv1.StatefulSet { return f.s.Get(setKey).(*appsv1.StatefulSet) }

// setSpec changes the StatefulSet as the API does.
func (f *fleet) setSpec(change func(*appsv1.StatefulSetSpec)) *fleet {
	return f.edit(setKey, func(o state.Object) {
		s := o.(*appsv1.StatefulSet)
		was := s.Spec.DeepCopy()
		change(&s.Spec)
		if !equality.Semantic.DeepEqual(was, &s.Spec) {
			s.Generation++
		}
	})
}

// up runs pending pods until nothing changes, and returns their names in the order in which they
// started.
func (f *fleet) up(nodes ...string) (order []string) {
	f.t.Helper()
	for range 100 {
		f.settle().quiet()
		before := f.s.Revision
		for _, name := range f.pods() {
			if pod := f.s.Pod("default", name); pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil {
				order = append(order, name)
			}
		}
		if f.run(nodes...); f.s.Revision == before {
			return order
		}
	}
	f.t.Fatal("the pods do not settle")
	return nil
}

// leave removes a terminating pod, as after its device's report.
func (f *fleet) leave(name string) *fleet {
	f.t.Helper()
	pod := f.s.Pod("default", name)
	if pod == nil || pod.DeletionTimestamp == nil {
		f.t.Fatalf("%s is not terminating", name)
	}
	f.apply(state.Remove(pod, ""))
	return f
}

func (f *fleet) delete(name string) *fleet {
	c, _ := state.Delete(f.s.Pod("default", name), f.now, nil, "a user deletes "+name)
	f.apply(c)
	return f
}

func (f *fleet) has(want ...string) *fleet {
	f.t.Helper()
	if got := f.pods(); !slices.Equal(got, want) {
		f.t.Fatalf("pods %v, want %v\n%s", got, want, strings.Join(f.log, "\n"))
	}
	return f
}

// images returns the pods' images by name, with a "-" after those that are terminating.
func (f *fleet) images() string {
	var all []string
	for pod := range f.s.Pods("") {
		text := pod.Name + "=" + pod.Spec.Containers[0].Image
		if pod.DeletionTimestamp != nil {
			text += "-"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// Upstream's test "Scaling should happen in predictable order and halt if any stateful pod is
// unhealthy".
func TestOrderedPodsWaitForThoseBeforeThem(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(3)).settle().quiet().has("db-0")
	pod := f.s.Pod("default", "db-0")
	for _, label := range [][2]string{
		{appsv1.StatefulSetPodNameLabel, "db-0"}, {appsv1.PodIndexLabel, "0"}, {appsv1.StatefulSetRevisionLabel, f.set().Status.UpdateRevision},
	} {
		if pod.Labels[label[0]] != label[1] || label[1] == "" {
			t.Errorf("label %s is %q, want %q", label[0], pod.Labels[label[0]], label[1])
		}
	}
	if pod.Spec.Hostname != "db-0" || pod.Spec.Subdomain != "dbs" || pod.GenerateName != "db-" {
		t.Errorf("the pod has the hostname %q and the subdomain %q, want db-0 and dbs", pod.Spec.Hostname, pod.Spec.Subdomain)
	}
	if order := f.up("pi-1"); !slices.Equal(order, []string{"db-0", "db-1", "db-2"}) {
		t.Errorf("the pods started in the order %v", order)
	}
	st := f.set().Status
	if st.Replicas != 3 || st.ReadyReplicas != 3 || st.AvailableReplicas != 3 || st.CurrentReplicas != 3 ||
		st.UpdatedReplicas != 3 ||
		st.CurrentRevision != st.UpdateRevision || st.CollisionCount == nil || st.ObservedGeneration != 1 {
		t.Errorf("the status is %+v, want 3 pods of one revision", st)
	}

	unready := func(name string) {
		f.edit(podKey(name), func(o state.Object) {
			state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				f.now)
		})
	}
	unready("db-1")
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(5)) }).settle().quiet().has("db-0", "db-1", "db-2")
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(0)) }).settle().quiet() // db-1 is the first pod that is not available, and db-2 is available
	if !slices.Equal(f.leaving(), []string{"db-2"}) {
		t.Errorf("%v are terminating, want db-2", f.leaving())
	}
	f.leave("db-2").settle().quiet()
	if !slices.Equal(f.leaving(), []string{"db-1"}) {
		t.Errorf("%v are terminating, want db-1", f.leaving())
	}
	unready("db-0")
	f.leave("db-1").settle().quiet().leave("db-0").settle().quiet().has()

	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(3)) })
	f.up("pi-1")
	for _, name := range f.pods() {
		unready(name)
	}
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(0)) }).pass(time.Hour).quiet()
	if got := f.leaving(); len(got) != 0 {
		t.Errorf("%v are deleted while lower ordinals are unavailable", got)
	}
}

func (f *fleet) leaving() (names []string) {
	for pod := range f.s.Pods("") {
		if pod.DeletionTimestamp != nil {
			names = append(names, pod.Name)
		}
	}
	return names
}

// Upstream's test "Burst scaling should run to completion even with unhealthy pods".
func TestParallelPodsDoNotWait(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(3, parallel,
		func(s *appsv1.StatefulSetSpec) { s.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} })).settle().quiet().has("db-5",
		"db-6", "db-7")
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Ordinals.Start = 6 }).settle().quiet().has("db-6", "db-7", "db-8")
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(0)) }).settle().quiet().has()
	// A mistyped number of replicas must not fill the hub's memory.
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(2_000_000_000)) }).pass(time.Minute).quiet()
	if n := len(f.pods()); n != maxUnplaced {
		t.Errorf("%d pods wait for a node", n)
	}
	if c := f.set().Status.Conditions; len(c) != 1 || c[0].Type != statefulFailure {
		t.Errorf("the conditions are %+v, want one about unplaced pods", c)
	}
}

func TestMinReadySecondsDelayTheNextPod(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(2, func(s *appsv1.StatefulSetSpec) { s.MinReadySeconds = 30 })).settle()
	f.ready("db-0", "pi-1").pass(29 * time.Second).quiet().has("db-0")
	if st := f.set().Status; st.ReadyReplicas != 1 || st.AvailableReplicas != 0 {
		t.Errorf("the status is %+v, want 1 ready and 0 available pods", st)
	}
	f.pass(time.Second).quiet().has("db-0", "db-1")
}

// Upstream's tests "should perform rolling updates and roll backs of template modifications" and
// "should perform canary updates and phased rolling updates of template modifications".
func TestUpdatesGoFromTheLastOrdinalDownToThePartition(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(3))
	f.up("pi-1")
	first := f.set().Status.UpdateRevision
	image := func(image string) *fleet {
		return f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = image }).settle().quiet()
	}
	image("db:2")
	for i, want := range []string{"db-0=db:1 db-1=db:1 db-2=db:1-", "db-0=db:1 db-1=db:1- db-2=db:2",
		"db-0=db:1- db-1=db:2 db-2=db:2"} {
		if got := f.images(); got != want {
			t.Fatalf("step %d: %s, want %s", i, got, want)
		}
		name := fmt.Sprintf("db-%d", 2-i)
		f.leave(name).settle().quiet()
		if got := f.leaving(); len(got) > 0 {
			t.Fatalf("%v are deleted before %s is available", got, name)
		}
		f.ready(name, "pi-1").settle().quiet()
	}
	st := f.set().Status
	if st.CurrentRevision != st.UpdateRevision || st.CurrentRevision == first || st.CurrentReplicas != 3 {
		t.Errorf("after the update the status is %+v, want 3 pods of a new revision", st)
	}
	image("db:1") // after a rollback the old revision is the newest again
	f.up("pi-1")
	if got := f.images(); got != "db-0=db:1 db-1=db:1 db-2=db:1" || f.set().Status.CurrentRevision != first ||
		f.s.Len(state.ControllerRevisions) != 2 {
		t.Errorf("after the rollback: %s, status %+v, %d revisions", got, f.set().Status, f.s.Len(state.ControllerRevisions))
	}

	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(int32(2)) })
	image("db:3")
	f.up("pi-1")
	if got := f.images(); got != "db-0=db:1 db-1=db:1 db-2=db:3" {
		t.Fatalf("the partition does not limit the update: %s", got)
	}
	if st := f.set().Status; st.CurrentRevision != first || st.CurrentReplicas != 2 || st.UpdatedReplicas != 1 {
		t.Errorf("the status is %+v, want 2 current and 1 updated pod", st)
	}
	for _, name := range []string{"db-0", "db-2"} { // deleted pods are created again with their old revision
		f.delete(name).leave(name)
	}
	f.up("pi-1")
	if got := f.images(); got != "db-0=db:1 db-1=db:1 db-2=db:3" {
		t.Fatalf("after deleting pods: %s", got)
	}
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(int32(0)) })
	f.up("pi-1")
	if got := f.images(); got != "db-0=db:3 db-1=db:3 db-2=db:3" {
		t.Fatalf("after the rollout: %s", got)
	}
	f.setSpec(func(s *appsv1.StatefulSetSpec) {
		s.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	})
	image("db:4")
	f.up("pi-1")
	if got := f.images(); got != "db-0=db:3 db-1=db:3 db-2=db:3" {
		t.Fatalf("with OnDelete an update replaces a pod: %s", got)
	}
	f.delete("db-1").leave("db-1")
	f.up("pi-1")
	if got := f.images(); got != "db-0=db:3 db-1=db:4 db-2=db:3" {
		t.Fatalf("with OnDelete only the deleted pod should have the new image: %s", got)
	}
}

func TestMaxUnavailableBoundsAnUpdate(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(5, parallel, func(s *appsv1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString("59%")) // 2 of 5 pods
	}))
	f.up("pi-1")
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = "db:2" }).settle().quiet()
	if got := f.leaving(); !slices.Equal(got, []string{"db-3", "db-4"}) {
		t.Fatalf("%v are terminating, want the last two pods", got)
	}
	f.leave("db-4").settle().quiet()
	if got := f.leaving(); !slices.Equal(got, []string{"db-3"}) {
		t.Fatalf("%v are terminating, want db-3", got)
	}
	f.ready("db-4", "pi-1").settle().quiet()
	if got := f.leaving(); !slices.Equal(got, []string{"db-2", "db-3"}) {
		t.Fatalf("%v are terminating, want db-2 and db-3", got)
	}
	if f.up("pi-1"); f.set().Status.UpdatedReplicas != 5 {
		t.Errorf("the status is %+v, want 5 updated pods", f.set().Status)
	}
}

func TestAStatefulSetsHistoryIsLimited(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(1, func(s *appsv1.StatefulSetSpec) { s.RevisionHistoryLimit = new(int32(2)) }))
	for i := range 6 {
		f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = fmt.Sprintf("db:%d", i) })
		f.up("pi-1")
	}
	if n := f.s.Len(state.ControllerRevisions); n != 3 {
		t.Errorf("%d revisions, want the newest and 2 before it", n)
	}
}

// Upstream's test "Should recreate evicted statefulset".
func TestAFailedPodIsRecreatedUnderItsName(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(2))
	f.up("pi-1")
	was := f.s.Pod("default", "db-0").UID
	f.phase("db-0", corev1.PodFailed).settle().quiet().has("db-0", "db-1")
	if pod := f.s.Pod("default", "db-0"); pod.UID == was || pod.Status.Phase != corev1.PodPending {
		t.Fatalf("%s is %s, want a new pending pod", pod.Name, pod.Status.Phase)
	}
	// A pod that fails repeatedly is replaced at growing intervals. Until then it shows why it
	// failed.
	made := 0
	for range 3600 {
		if f.s.Pod("default", "db-0").Status.Phase == corev1.PodPending {
			made++
			f.ready("db-0", "pi-1").settle().phase("db-0", corev1.PodFailed)
		}
		f.pass(time.Second).quiet().has("db-0", "db-1")
	}
	if made < 10 || made > 25 {
		t.Errorf("the pod is created %d times in an hour", made)
	}
}

// A terminating pod keeps its name, also on a silent device, until a user force-deletes it.
func TestNoSecondPodWhileTheFirstMayRun(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), node("pi-2"), aSet(2))
	f.settle().ready("db-0", "pi-1").settle().ready("db-1", "pi-2").settle()
	reach := func(status corev1.ConditionStatus) {
		f.edit(state.Key{Kind: state.Nodes, Name: "pi-2"},
			func(o state.Object) { o.(*corev1.Node).Status.Conditions[0].Status = status }).settle().quiet()
	}
	reach(corev1.ConditionUnknown)
	c := f.set().Status.Conditions
	if len(c) != 1 || c[0].Type != state.PodUnreachable || !strings.Contains(c[0].Message,
		"db-1 on pi-2 may still run") || !strings.Contains(c[0].Message, "kubectl delete node pi-2") {
		t.Fatalf("the conditions are %+v, want PodUnreachable with the command", c)
	}
	events := 0
	for _, c := range f.changes {
		if c.Reason == string(state.PodUnreachable) && c.Warn && state.KindOf(c.Object) == state.StatefulSets {
			events++
		}
	}
	if events != 1 {
		t.Errorf("%d events, want 1", events)
	}
	f.delete("db-1").pass(48*time.Hour).quiet().has("db-0", "db-1")
	if got := f.leaving(); !slices.Equal(got, []string{"db-1"}) {
		t.Fatalf("%v are terminating, want db-1", got)
	}
	reach(corev1.ConditionTrue)
	if len(f.set().Status.Conditions) != 0 {
		t.Errorf("the conditions are %+v, want none", f.set().Status.Conditions)
	}
	f.leave("db-1").settle().quiet().has("db-0", "db-1").ready("db-1", "pi-2").settle()

	reach(corev1.ConditionUnknown)
	f.remove(podKey("db-1")).settle().quiet().has("db-0", "db-1") // kubectl delete --force
	if pod := f.s.Pod("default", "db-1"); pod.Spec.NodeName != "" {
		t.Errorf("after the forced deletion %s is on %s", pod.Name, pod.Spec.NodeName)
	}
	f.ready("db-1", "pi-2").settle()
	f.remove(state.Key{Kind: state.Nodes, Name: "pi-2"}).pass(DefaultQuarantine - time.Second).quiet()
	if pod := f.s.Pod("default", "db-1"); pod.Spec.NodeName != "pi-2" {
		t.Errorf("during the quarantine %s is on %q", pod.Name, pod.Spec.NodeName)
	}
	f.pass(2 * time.Second).quiet()
	if pod := f.s.Pod("default", "db-1"); pod == nil || pod.Spec.NodeName != "" {
		t.Errorf("after the quarantine: %+v", pod)
	}
}

// As in Kubernetes, with ordered pods a broken revision blocks every later template. The hub
// reports it with the command that helps.
func TestABlockedRolloutReportsTheCommandThatHelps(t *testing.T) {
	roll := func(f *fleet, image string) *fleet {
		return f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = image }).settle().quiet()
	}
	blocked := func(f *fleet) (text string) {
		for _, c := range f.set().Status.Conditions {
			if c.Type == state.RolloutBlocked {
				text = c.Message
			}
		}
		return text
	}
	f := newFleet(t).put(node("pi-1"), aSet(3))
	f.up("pi-1")
	roll(f, "db:bad").leave("db-2").settle()
	if got := blocked(f.pass(time.Hour).quiet()); got != "" {
		t.Errorf("an unready pod of the newest revision is reported: %q", got)
	}
	roll(f, "db:2")
	f.pass(59 * time.Second).quiet()
	for name := range map[string]bool{"db-0": true, "db-1": true} {
		if f.s.Pod("default", name).DeletionTimestamp != nil {
			t.Fatalf("%s is deleted", name)
		}
	}
	if got := blocked(f.pass(time.Minute).quiet()); !strings.Contains(got, "db-2") || !strings.Contains(got,
		"kubectl delete pod db-2 -n default") {
		t.Errorf("the condition RolloutBlocked is %q, want the command", got)
	}
	events := 0
	for _, c := range f.changes {
		if c.Reason == string(state.RolloutBlocked) && c.Warn {
			events++
		}
	}
	if events != 1 {
		t.Errorf("%d events, want 1", events)
	}
	f.delete("db-2").settle().up("pi-1")
	if got := blocked(f); got != "" || !strings.Contains(f.images(), "db-2=db:2") {
		t.Errorf("after the deletion RolloutBlocked is %q for %s", got, f.images())
	}
	// Neither a pod that is starting nor a pod below the partition counts as broken.
	f = newFleet(t).put(node("pi-1"), aSet(2, func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(int32(2)) })).settle()
	if got := blocked(roll(f, "db:2").pass(time.Hour).quiet()); got != "" {
		t.Errorf("a pod below the partition is reported: %q", got)
	}
	f = newFleet(t).put(node("pi-1"), aSet(2)).settle()
	if got := blocked(roll(f, "db:2").pass(59 * time.Second).quiet()); got != "" {
		t.Errorf("a starting pod is reported: %q", got)
	}
}

func (f *fleet) claims() (all []string) {
	for c := range state.Each[*corev1.PersistentVolumeClaim](f.s, state.Claims, "") {
		text := c.Name
		for _, r := range c.OwnerReferences {
			text += " of " + r.Name
		}
		if c.DeletionTimestamp != nil {
			text += " leaving"
		}
		all = append(all, text)
	}
	return all
}

func TestClaimsFollowTheirRetentionPolicy(t *testing.T) {
	for _, c := range []struct {
		deleted, scaled           appsv1.PersistentVolumeClaimRetentionPolicyType
		running, smaller, without []string
	}{
		{keepClaims, keepClaims, []string{"data-db-0", "data-db-1"}, []string{"data-db-0", "data-db-1"}, []string{"data-db-0", "data-db-1"}},
		{dropClaims, keepClaims, []string{"data-db-0 of db", "data-db-1 of db"}, []string{"data-db-0 of db", "data-db-1 of db"}, nil},
		{keepClaims, dropClaims, []string{"data-db-0", "data-db-1"}, []string{"data-db-0"}, []string{"data-db-0"}},
		{dropClaims, dropClaims, []string{"data-db-0 of db", "data-db-1 of db"}, []string{"data-db-0 of db"}, nil},
	} {
		f := newFleet(t).put(node("pi-1"), aSet(2, withClaims(c.deleted, c.scaled)))
		f.up("pi-1")
		if got := f.claims(); !slices.Equal(got, c.running) {
			t.Errorf("%s, %s: while running, the owners are %q, want %q", c.deleted, c.scaled, got, c.running)
		}
		if v := f.s.Pod("default", "db-1").Spec.Volumes; len(v) != 1 || v[0].PersistentVolumeClaim.ClaimName != "data-db-1" {
			t.Errorf("the volumes of db-1 are %+v, want its claim", v)
		}
		f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(1)) })
		f.up("pi-1")
		if got := f.claims(); !slices.Equal(got, c.smaller) {
			t.Errorf("%s, %s: after scaling down, the owners are %q, want %q", c.deleted, c.scaled, got, c.smaller)
		}
		f.remove(setKey)
		f.up("pi-1")
		if got := f.claims(); !slices.Equal(got, c.without) {
			t.Errorf("%s, %s: after the deletion, the owners are %q, want %q", c.deleted, c.scaled, got, c.without)
		}
	}
}

// A pod does not start while its claim is being deleted.
func TestAPodWaitsForTheDeletionOfItsOldClaim(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(1, withClaims(keepClaims, keepClaims)))
	f.up("pi-1")
	key := state.Key{Kind: state.Claims, Namespace: "default", Name: "data-db-0"}
	f.edit(key, func(o state.Object) {
		at := metav1.NewTime(f.now)
		o.SetFinalizers([]string{state.ClaimProtection})
		o.SetDeletionTimestamp(&at)
	}).delete("db-0").leave("db-0").settle().quiet().has()
	if c := f.set().Status.Conditions; len(c) != 1 || !strings.Contains(c[0].Message, `"data-db-0" is being deleted`) {
		t.Errorf("the conditions are %+v, want one about the deleted claim", c)
	}
	f.remove(key).settle().quiet().has("db-0")
	if got := f.claims(); len(got) != 1 || len(f.set().Status.Conditions) != 0 {
		t.Errorf("claims %q, conditions %+v; want one and none", got, f.set().Status.Conditions)
	}
	// A missing claim is created again while its pod has not started.
	f.remove(key).settle().quiet()
	if got := f.claims(); len(got) != 1 {
		t.Errorf("the claims are %q, want one", got)
	}
}

// A user may delete a StatefulSet without its pods to change an immutable field. The new
// StatefulSet adopts the pods and history, and continues the rollout.
func TestARecreatedStatefulSetAdoptsItsPods(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(2))
	f.up("pi-1")
	uids := []any{f.s.Pod("default", "db-0").UID, f.s.Pod("default", "db-1").UID}
	f.edit(setKey, func(o state.Object) {
		at := metav1.NewTime(f.now)
		o.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
		o.SetDeletionTimestamp(&at)
	}).settle().quiet().has("db-0", "db-1")
	if f.s.Get(setKey) != nil {
		t.Fatal("the StatefulSet is not removed")
	}
	f.put(aSet(2)).settle().quiet().has("db-0", "db-1")
	if got := []any{f.s.Pod("default", "db-0").UID, f.s.Pod("default", "db-1").UID}; !slices.Equal(got, uids) {
		t.Error("the pods have been replaced")
	}
	if st := f.set().Status; st.UpdatedReplicas != 2 || f.s.Len(state.ControllerRevisions) != 1 {
		t.Errorf("the status is %+v, want 2 updated pods; %d revisions, want 1", st, f.s.Len(state.ControllerRevisions))
	}
}

func TestAForeignPodBlocksItsOrdinal(t *testing.T) {
	stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: "default",
		Labels: map[string]string{"app": "other"}}}
	f := newFleet(t).put(node("pi-1"), stranger, aSet(1)).settle().quiet().has("db-0")
	if c := f.set().Status.Conditions; len(c) != 1 || !strings.Contains(c[0].Message, `"db-0" already exists`) ||
		f.set().Status.Replicas != 0 {
		t.Fatalf("the status is %+v, want a condition about the other pod", f.set().Status)
	}
	f.remove(podKey("db-0")).settle().quiet().has("db-0")
	if len(f.set().Status.Conditions) != 0 || !controlledBy(f.s.Pod("default", "db-0"), f.set()) {
		t.Errorf("after the removal of the other pod the status is %+v, want the pod adopted", f.set().Status)
	}
	// The StatefulSet adopts a matching pod, and releases a pod that no longer matches.
	f.edit(podKey("db-0"), func(o state.Object) { o.SetLabels(nil) }).settle().quiet()
	if metav1.GetControllerOf(f.s.Pod("default", "db-0")) != nil {
		t.Error("db-0 is not released")
	}
	f.edit(podKey("db-0"), func(o state.Object) { o.SetLabels(selector.MatchLabels) }).settle().quiet()
	if !controlledBy(f.s.Pod("default", "db-0"), f.set()) {
		t.Error("db-0 is not adopted")
	}
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(int32(1)) }) // the adopted pod has no revision
	f.up("pi-1")
	if pod := f.s.Pod("default", "db-0"); pod.Labels[appsv1.StatefulSetPodNameLabel] != "db-0" ||
		pod.Labels[appsv1.PodIndexLabel] != "0" {
		t.Errorf("the adopted pod has the labels %v, want its name and index", pod.Labels)
	}
}

// The status says why the namespace forbids the pods. They are created once it allows them.
func TestAForbiddenStatefulSetReportsWhy(t *testing.T) {
	f := newFleet(t)
	open := false
	f.d.Refuse = func(*corev1.Pod, *corev1.Namespace) string {
		if open {
			return ""
		}
		return "too much"
	}
	f.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, aSet(3, parallel),
		aController(2)).settle().quiet().has()
	if c := f.set().Status.Conditions; len(c) != 1 || c[0].Reason != failedCreate || !strings.HasSuffix(c[0].Message,
		"too much") {
		t.Errorf("the conditions are %+v, want FailedCreate", c)
	}
	open = true
	f.edit(state.Key{Kind: state.Namespaces, Name: "default"},
		func(o state.Object) { o.SetLabels(map[string]string{"a": "b"}) }).settle().quiet()
	if n := len(f.pods()); n != 5 || len(f.set().Status.Conditions) != 0 {
		t.Errorf("%d pods, conditions %+v; want 5 and none", n, f.set().Status.Conditions)
	}
}

// A new pod is checked with the template of its ordinal: below the partition with the older one.
func TestAForbiddenTemplateBlocksPodsOfItsRevisionOnly(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*appsv1.StatefulSetSpec)
		forbidden string
		want      []string
	}{
		"the newer template, ordered pods":  {func(*appsv1.StatefulSetSpec) {}, "db:2", []string{"db-0", "db-1"}},
		"the newer template, parallel pods": {parallel, "db:2", []string{"db-0", "db-1"}},
		"the older template, ordered pods":  {func(*appsv1.StatefulSetSpec) {}, "db:1", nil},
		"the older template, parallel pods": {parallel, "db:1", []string{"db-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), aSet(3, c.change))
			f.up("pi-1")
			f.setSpec(func(s *appsv1.StatefulSetSpec) {
				s.UpdateStrategy.RollingUpdate.Partition, s.Template = new(int32(2)), template("db:2")
			})
			f.up("pi-1")
			f.d.Refuse = func(pod *corev1.Pod, _ *corev1.Namespace) string {
				if pod.Spec.Containers[0].Image == c.forbidden {
					return "too much of " + c.forbidden
				}
				return ""
			}
			for _, name := range f.pods() {
				f.remove(podKey(name))
			}
			f.up("pi-1")
			if got := f.pods(); !slices.Equal(got, c.want) {
				t.Errorf("pods %v, want %v", got, c.want)
			}
			for _, name := range f.pods() {
				if image := f.s.Pod("default", name).Spec.Containers[0].Image; image == c.forbidden ||
					image == "db:2" != (name == "db-2") {
					t.Errorf("%s has the image %s", name, image)
				}
			}
			if got := f.set().Status.Conditions; len(got) != 1 || got[0].Reason != failedCreate ||
				!strings.HasSuffix(got[0].Message, "too much of "+c.forbidden) {
				t.Errorf("the conditions are %+v, want FailedCreate", got)
			}
		})
	}
}

func TestABudgetCountsAStatefulSetAndAController(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(3), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "two", Namespace: "default"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector, MaxUnavailable: new(intstr.FromInt32(1))},
	})
	budget := func() policyv1.PodDisruptionBudgetStatus {
		return f.s.Get(state.Key{Kind: state.PodDisruptionBudgets, Namespace: "default",
			Name: "two"}).(*policyv1.PodDisruptionBudget).Status
	}
	f.up("pi-1")
	if st := budget(); st.ExpectedPods != 3 || st.CurrentHealthy != 3 || st.DisruptionsAllowed != 1 {
		t.Errorf("the budget's status is %+v, want 3 pods and 1 eviction", st)
	}
	f.edit(podKey("db-0"), func(o state.Object) {
		state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
			f.now)
	}).settle().quiet()
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Replicas = new(int32(4)) }).settle().quiet() // db-0 is not available, so no pod is created
	if st := budget(); st.ExpectedPods != 4 || st.DisruptionsAllowed != 0 {
		t.Errorf("the budget's status is %+v, want 4 pods and no eviction", st)
	}
}

func TestAnyStatusOfARestoredStatefulSetIsCorrected(t *testing.T) {
	for name, spoil := range map[string]func(*appsv1.StatefulSet){
		"no selector":                    func(s *appsv1.StatefulSet) { s.Spec.Selector = nil },
		"no replicas":                    func(s *appsv1.StatefulSet) { s.Spec.Replicas = nil },
		"negative replicas":              func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(-1)) },
		"an overflow of ordinals":        func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1<<31 - 1} },
		"negative ordinals":              func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: -4} },
		"no strategy":                    func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{} },
		"no partition":                   func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = nil },
		"a negative partition":           func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(-9)) },
		"a partition above the ordinals": func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(1<<31 - 1)) },
		"an invalid percentage": func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString("x"))
		},
		"negative maxUnavailable": func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(-3))
		},
		"no rolling update": func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate = nil },
		"an unknown policy": func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = "Chaos" },
		"history":           func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = new(int32(-1)) },
		"revisions": func(s *appsv1.StatefulSet) {
			s.Status = appsv1.StatefulSetStatus{CurrentRevision: "x", UpdateRevision: "y", ObservedGeneration: 99,
				CurrentReplicas: -7}
		},
		"a duplicate claim template": func(s *appsv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{}, {}, {ObjectMeta: metav1.ObjectMeta{Name: "data"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		},
		"a claim without a policy": func(s *appsv1.StatefulSet) {
			withClaims("Burn", "")(&s.Spec)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := aSet(2)
			spoil(s)
			f := newFleet(t).put(node("pi-1"), s)
			f.put(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "db-x", Namespace: "default",
				Labels: selector.MatchLabels}, Revision: -5})
			f.up("pi-1")
			f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = "db:2" })
			f.up("pi-1")
			f.pass(time.Hour).quiet()
			if n := len(f.pods()); n > 2 {
				t.Errorf("there are %d pods, want at most 2", n)
			}
		})
	}
}

func aController(replicas int32) *corev1.ReplicationController {
	t := template("kiosk:1")
	return &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default", Generation: 1},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &replicas, Selector: selector.MatchLabels, Template: &t},
	}
}

// Upstream's tests of [sig-apps] ReplicationController.
func TestAReplicationControllerKeepsItsPods(t *testing.T) {
	key := state.Key{Kind: state.Controllers, Namespace: "default", Name: "old"}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Namespace: "default",
		Labels: selector.MatchLabels}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	f := newFleet(t).put(node("pi-1"), orphan, aController(3))
	f.up("pi-1")
	rc := func() *corev1.ReplicationController { return f.s.Get(key).(*corev1.ReplicationController) }
	if st := rc().Status; st.Replicas != 3 || st.ReadyReplicas != 3 || st.AvailableReplicas != 3 ||
		st.FullyLabeledReplicas != 3 || st.ObservedGeneration != 1 {
		t.Errorf("the status is %+v, want 3 available pods", st)
	}
	pod := f.s.Pod("default", "orphan")
	if !controlledBy(pod, rc()) || metav1.GetControllerOf(pod).Kind != "ReplicationController" ||
		metav1.GetControllerOf(pod).APIVersion != "v1" {
		t.Errorf("the orphan's owners are %+v", pod.OwnerReferences)
	}
	f.edit(podKey("orphan"), func(o state.Object) { o.SetLabels(nil) })
	f.up("pi-1")
	if n := len(f.pods()); n != 4 || metav1.GetControllerOf(f.s.Pod("default", "orphan")) != nil {
		t.Errorf("there are %d pods, want 4, one of them released", n)
	}
	f.edit(key, func(o state.Object) { o.(*corev1.ReplicationController).Spec.Replicas = new(int32(1)) })
	f.up("pi-1")
	if n := len(f.pods()); n != 2 || rc().Status.Replicas != 1 {
		t.Errorf("%d pods, status %+v; want 2 pods, 1 replica", n, rc().Status)
	}
	for _, spoil := range []func(*corev1.ReplicationControllerSpec){
		func(s *corev1.ReplicationControllerSpec) { s.Selector = nil },
		func(s *corev1.ReplicationControllerSpec) { s.Template = nil },
		func(s *corev1.ReplicationControllerSpec) { s.Replicas = new(int32(-2)) },
	} {
		bad := aController(2)
		bad.Name = "bad"
		spoil(&bad.Spec)
		if f := newFleet(t).put(bad).settle().quiet(); len(f.pods()) != 0 {
			t.Errorf("an invalid ReplicationController has the pods %v", f.pods())
		}
	}
}

// With parallel pods, an unavailable pod is updated first and does not block an update, since its
// replacement may become available. Updates of available pods respect maxUnavailable.
func TestUnavailablePodsAreUpdatedFirst(t *testing.T) {
	f := newFleet(t).put(node("pi-1"), aSet(4, parallel, func(s *appsv1.StatefulSetSpec) {
		s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(1))
	}))
	f.up("pi-1")
	image := func(name string) {
		f.setSpec(func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = name }).settle().quiet()
	}
	unready := func(name string) {
		f.ready(name, "pi-1").edit(podKey(name), func(o state.Object) {
			state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				f.now)
		})
	}
	image("db:bad")
	f.leave("db-3").settle().quiet()
	unready("db-3")
	f.settle().quiet()
	if got := f.images(); got != "db-0=db:1 db-1=db:1 db-2=db:1 db-3=db:bad" {
		t.Fatalf("after an update to a bad image: %s", got)
	}
	image("db:2")
	if got := f.leaving(); !slices.Equal(got, []string{"db-3"}) {
		t.Fatalf("%v are terminating, want db-3", got)
	}
	if f.leave("db-3").up("pi-1"); f.images() != "db-0=db:2 db-1=db:2 db-2=db:2 db-3=db:2" {
		t.Errorf("at the end: %s", f.images())
	}
	// Several unavailable pods do not wait for each other. Pods below the partition stay.
	f.setSpec(func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = new(int32(1)) })
	for _, name := range []string{"db-0", "db-1", "db-2"} {
		unready(name)
	}
	image("db:3")
	if got := f.leaving(); !slices.Equal(got, []string{"db-1", "db-2"}) {
		t.Errorf("%v are terminating, want db-1 and db-2", got)
	}
}
