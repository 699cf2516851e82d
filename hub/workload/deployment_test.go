package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

func TestADeploymentCreatesItsPods(t *testing.T) {
	f := newFleet(t).put(deployment(3)).settle().quiet()
	rs := f.sets("default")
	if len(rs) != 1 || !strings.HasPrefix(rs[0].Name, "kiosk-") || rs[0].Labels["pod-template-hash"] == "" ||
		rs[0].Name != "kiosk-"+rs[0].Labels["pod-template-hash"] {
		t.Fatalf("the replica sets are %+v, want one named after its hash", rs)
	}
	if rs[0].Annotations[revisionAnnotation] != "1" || f.deploy().Annotations[revisionAnnotation] != "1" {
		t.Errorf("the revision is not 1: %v %v", rs[0].Annotations, f.deploy().Annotations)
	}
	pods := f.livePods()
	if len(pods) != 3 {
		t.Fatalf("%d pods, want 3", len(pods))
	}
	for _, pod := range pods {
		if ref := metav1.GetControllerOf(pod); ref == nil || ref.UID != rs[0].UID || ref.Kind != "ReplicaSet" {
			t.Errorf("the ReplicaSet is not the controller of %s: %+v", pod.Name, ref)
		}
		if pod.UID == "" || pod.Labels["pod-template-hash"] != rs[0].Labels["pod-template-hash"] {
			t.Errorf("pod %s has the uid %q and the labels %v, want the hash of its ReplicaSet", pod.Name, pod.UID, pod.Labels)
		}
	}
	if f.rolledOut() {
		t.Error("the rollout is complete before a pod is ready")
	}
	f.run("pi-1", "pi-2").settle().quiet()
	if !f.rolledOut() || f.progressing().Reason != "NewReplicaSetAvailable" {
		t.Errorf("the rollout is not complete: %+v", f.deploy().Status)
	}
	uids := map[string]bool{}
	for _, kind := range state.Kinds() {
		for o := range f.s.All(kind, "") {
			if uids[string(o.GetUID())] {
				t.Errorf("%s has the uid of another object", o.GetName())
			}
			uids[string(o.GetUID())] = true
		}
	}
}

func TestARollingUpdateRespectsItsLimits(t *testing.T) {
	for _, c := range []struct {
		name        string
		replicas    int32
		surge, gone string
		least, most int
	}{
		{"25 % of 4 is a surge of 1 and 1 unavailable", 4, "25%", "25%", 3, 5},
		{"25 % of 3 is a surge of 1 and none unavailable", 3, "25%", "25%", 3, 4},
		{"without surge an old pod is deleted first", 2, "0", "1", 1, 2},
		{"without unavailability a new pod is created first", 2, "1", "0", 2, 3},
		{"if both are zero one pod may be unavailable", 2, "0%", "0%", 1, 2},
		{"all at once", 3, "100%", "100%", 0, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			d := deployment(c.replicas)
			surge, gone := intstr.Parse(c.surge), intstr.Parse(c.gone)
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &gone}
			f.put(d).settle().run("pi-1").settle()
			f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:2") })
			for range 50 {
				f.settle().quiet()
				avail := 0
				for _, pod := range f.livePods() {
					if ready(pod) {
						avail++
					}
				}
				if avail < c.least || len(f.livePods()) > c.most {
					t.Fatalf("%d pods are available, want at least %d; %d exist, want at most %d", avail, c.least, len(f.livePods()),
						c.most)
				}
				if f.rolledOut() {
					break
				}
				f.now = f.now.Add(time.Second)
				f.run("pi-1")
			}
			f.settle()
			if !f.rolledOut() {
				t.Fatalf("the rollout does not finish: %+v", f.deploy().Status)
			}
			for _, pod := range f.livePods() {
				if pod.Spec.Containers[0].Image != "kiosk:2" {
					t.Errorf("%s runs %s, want kiosk:2", pod.Name, pod.Spec.Containers[0].Image)
				}
			}
		})
	}
}

// roll changes the image and lets the rollout finish.
func (f *fleet) roll(image string) *fleet {
	f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template(image) })
	for range 30 {
		f.now = f.now.Add(time.Second)
		f.settle().run("pi-1", "pi-2")
	}
	return f.settle().quiet()
}

func TestRollbackReusesTheReplicaSetAndGivesItTheNewestRevision(t *testing.T) {
	f := newFleet(t).put(deployment(2)).settle().run("pi-1").settle()
	first := f.sets("default")[0].Name
	f.roll("kiosk:2").roll("kiosk:1")
	sets := f.sets("default")
	if len(sets) != 2 || sets[1].Name != first || sets[1].Annotations[revisionAnnotation] != "3" ||
		sets[1].Annotations[revisionHistoryAnnotation] != "1" {
		t.Fatalf("after the rollback the newest ReplicaSet is %s with %v, want the first, revision 3", sets[1].Name,
			sets[1].Annotations)
	}
	if f.deploy().Annotations[revisionAnnotation] != "3" || *sets[0].Spec.Replicas != 0 || !f.rolledOut() {
		t.Errorf("the deployment has revision %s, the old ReplicaSet %d replicas",
			f.deploy().Annotations[revisionAnnotation], *sets[0].Spec.Replicas)
	}
}

// The past revisions of a ReplicaSet are limited as in Kubernetes, however often rollouts
// alternate.
func TestPastRevisionsAreLimited(t *testing.T) {
	f := newFleet(t).put(deployment(1)).settle().run("pi-1").settle()
	f.edit(state.KeyOf(f.sets("default")[0]), func(o state.Object) {
		o.GetAnnotations()[revisionHistoryAnnotation] = strings.Repeat("100,", 499) + "100"
	})
	f.roll("kiosk:2").roll("kiosk:1")
	past := f.sets("default")[1].Annotations[revisionHistoryAnnotation]
	if len(past) > 2000 || !strings.HasPrefix(past, "100,") || !strings.HasSuffix(past, ",100,1") {
		t.Errorf("the past revisions have %d bytes: %.12s…%s", len(past), past, past[max(len(past)-12, 0):])
	}
}

func TestHistoryIsLimited(t *testing.T) {
	f := newFleet(t)
	d := deployment(1)
	d.Spec.RevisionHistoryLimit = new(int32(2))
	f.put(d).settle().run("pi-1").settle()
	for _, image := range []string{"kiosk:2", "kiosk:3", "kiosk:4", "kiosk:5"} {
		f.roll(image)
	}
	var revisions []string
	for _, rs := range f.sets("default") {
		revisions = append(revisions, rs.Annotations[revisionAnnotation])
	}
	if !slices.Equal(revisions, []string{"3", "4", "5"}) {
		t.Errorf("revisions %v, want the newest and 2 before it", revisions)
	}
}

func TestRecreateWaitsForTheLastOldPod(t *testing.T) {
	f := newFleet(t)
	d := deployment(2)
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	f.put(node("pi-1"), d).settle().run("pi-1").settle()
	f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:2") }).settle().quiet()
	if n := len(f.livePods()); n != 0 {
		t.Fatalf("%d new pods while the old pods stop, want none", n)
	}
	f.remove(podKey(f.pods()[0])).settle().quiet()
	if n := len(f.livePods()); n != 0 {
		t.Fatalf("%d new pods while an old pod stops, want none", n)
	}
	f.remove(podKey(f.pods()[0])).settle().quiet()
	if live := f.livePods(); len(live) != 2 || live[0].Spec.Containers[0].Image != "kiosk:2" {
		t.Fatalf("%d new pods, want 2", len(live))
	}
	if f.run("pi-1").settle(); !f.rolledOut() {
		t.Errorf("the rollout is not complete: %+v", f.deploy().Status)
	}
}

// A Recreate rollout waits for old pods on a silent device. It reports that, misses its deadline,
// and is not complete because of the previous rollout.
func TestRecreateWaitsForASilentDevice(t *testing.T) {
	reach := func(f *fleet, status corev1.ConditionStatus) {
		f.edit(state.Key{Kind: state.Nodes, Name: "pi-2"},
			func(o state.Object) { o.(*corev1.Node).Status.Conditions[0].Status = status }).settle().quiet()
	}
	for name, next := range map[string]func(*fleet){
		"a new template": func(f *fleet) {
			f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:3") }).settle().quiet()
		},
		"a rollback": func(f *fleet) {
			f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:1") }).settle().quiet()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			d := deployment(2)
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			f.put(node("pi-1"), node("pi-2"), d).settle().run("pi-1", "pi-2").settle()
			f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:2") }).settle().run().settle().run("pi-1",
				"pi-2").settle().quiet()
			if c := f.progressing(); !f.rolledOut() || c.Reason != "NewReplicaSetAvailable" {
				t.Fatalf("the rollout is not complete: %+v", c)
			}
			f.pass(time.Hour)
			reach(f, corev1.ConditionUnknown)
			next(f)
			for _, pod := range f.pods() {
				if f.s.Pod("default", pod).Spec.NodeName == "pi-1" {
					f.remove(podKey(pod)).settle().quiet()
				}
			}
			unreachable := func() string {
				for _, c := range f.deploy().Status.Conditions {
					if string(c.Type) == string(state.PodUnreachable) {
						return c.Message
					}
				}
				return ""
			}
			if got := unreachable(); !strings.Contains(got, "on pi-2 may still run") || !strings.Contains(got,
				"kubectl delete node pi-2") {
				t.Errorf("the condition PodUnreachable is %q, want the pod, its node and the command", got)
			}
			events := 0
			for _, c := range f.changes {
				if c.Reason == string(state.PodUnreachable) && c.Warn {
					events++
				}
			}
			if events != 1 {
				t.Errorf("%d events, want 1", events)
			}
			if c := f.pass(599 * time.Second).quiet().progressing(); c.Reason != "ReplicaSetUpdated" {
				t.Errorf("before the progress deadline: %+v", c)
			}
			if c := f.pass(time.Second).quiet().progressing(); c.Reason != "ProgressDeadlineExceeded" ||
				c.Status != corev1.ConditionFalse {
				t.Errorf("after the progress deadline: %+v", c)
			}
			reach(f, corev1.ConditionTrue)
			if got := unreachable(); got != "" {
				t.Errorf("the device is reachable, but PodUnreachable is %q", got)
			}
			f.run().settle().run("pi-1").settle().quiet()
			if c := f.progressing(); !f.rolledOut() || c.Reason != "NewReplicaSetAvailable" {
				t.Errorf("after the device has returned: %+v", c)
			}
		})
	}
}

func TestPausedDeploymentScalesButDoesNotRoll(t *testing.T) {
	f := newFleet(t).put(deployment(2)).settle().run("pi-1").settle()
	f.spec(func(s *appsv1.DeploymentSpec) { s.Paused, s.Template = true, template("kiosk:2") }).settle().quiet()
	if len(f.sets("default")) != 1 || f.progressing().Reason != "DeploymentPaused" {
		t.Fatalf("%d replica sets, Progressing has the reason %s; want 1, DeploymentPaused", len(f.sets("default")),
			f.progressing().Reason)
	}
	f.spec(func(s *appsv1.DeploymentSpec) { *s.Replicas = 4 }).settle().quiet()
	if n := len(f.livePods()); n != 4 {
		t.Errorf("%d pods after scaling to 4, want 4", n)
	}
	f.spec(func(s *appsv1.DeploymentSpec) { s.Paused = false }).settle().quiet()
	if len(f.sets("default")) != 2 {
		t.Error("the resumed rollout does not continue")
	}
}

func TestScalingDuringARolloutKeepsProportions(t *testing.T) {
	f := newFleet(t).put(deployment(10)).settle().run("pi-1").settle()
	// 25 %: 13 in total, at least 8 available; the new ones never become ready
	f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:2") }).settle().quiet()
	sets := f.sets("default")
	if *sets[0].Spec.Replicas != 8 || *sets[1].Spec.Replicas != 5 {
		t.Fatalf("during the rollout the sizes are %d and %d, want 8 and 5", *sets[0].Spec.Replicas, *sets[1].Spec.Replicas)
	}
	f.spec(func(s *appsv1.DeploymentSpec) { *s.Replicas = 20 }).settle().quiet()
	sets = f.sets("default")
	if old, young := *sets[0].Spec.Replicas, *sets[1].Spec.Replicas; old+young != 25 || old <= young {
		t.Errorf("after scaling to 20: %d and %d, want 25 in total in the same proportion", old, young)
	}
}

func TestProgressDeadline(t *testing.T) {
	f := newFleet(t).put(deployment(1)).settle()
	f.pass(599 * time.Second).quiet()
	if f.progressing().Reason == "ProgressDeadlineExceeded" {
		t.Fatal("the deadline is exceeded before 600 s")
	}
	f.pass(time.Second).quiet()
	if c := f.progressing(); c.Reason != "ProgressDeadlineExceeded" || c.Status != corev1.ConditionFalse {
		t.Fatalf("after 600 s Progressing is %+v, want ProgressDeadlineExceeded", c)
	}
	f.run("pi-1").settle().quiet()
	if c := f.progressing(); c.Reason != "NewReplicaSetAvailable" {
		t.Errorf("after the rollout has continued: %+v", c)
	}
}

// A rollout whose deadline passed while the hub could not receive reports is not late before its
// devices have reported: they may have made progress.
func TestARolloutIsLateOnlyAfterItsDevicesReport(t *testing.T) {
	resumed := func() *fleet {
		f := newFleet(t)
		f.d.Silence = state.Timeouts{Grace: 40 * time.Second}
		f.put(deployment(1)).pass(5 * time.Minute)
		f.now = f.now.Add(10 * time.Minute)
		f.s = f.s.Listen(f.now)
		return f.settle().quiet()
	}
	f := resumed().pass(39 * time.Second).quiet()
	if c := f.progressing(); c.Status != corev1.ConditionTrue {
		t.Errorf("before the devices have reported Progressing is %+v, want it True", c)
	}
	if c := f.run("pi-1").settle().quiet().progressing(); c.Reason != "NewReplicaSetAvailable" {
		t.Errorf("after the pod is ready Progressing is %+v, want NewReplicaSetAvailable", c)
	}
	if c := resumed().pass(40 * time.Second).quiet().progressing(); c.Reason != "ProgressDeadlineExceeded" {
		t.Errorf("without progress Progressing is %+v, want ProgressDeadlineExceeded", c)
	}
}

func TestMinReadySeconds(t *testing.T) {
	f := newFleet(t)
	d := deployment(1)
	d.Spec.MinReadySeconds = 30
	f.put(d).settle().run("pi-1").settle().quiet()
	if f.deploy().Status.ReadyReplicas != 1 || f.deploy().Status.AvailableReplicas != 0 {
		t.Fatalf("when the pods are ready: %+v", f.deploy().Status)
	}
	f.pass(30 * time.Second).quiet()
	if f.deploy().Status.AvailableReplicas != 1 {
		t.Errorf("after 30 s the status is %+v, want 1 available pod", f.deploy().Status)
	}
}

func TestDeletionCascades(t *testing.T) {
	for _, c := range []struct {
		name       string
		finalizer  string
		sets, pods int
	}{
		{"in the background the owner is removed first", "", 0, 0},
		{"in the foreground the owner is removed last", metav1.FinalizerDeleteDependents, 0, 0},
		{"orphans stay", metav1.FinalizerOrphanDependents, 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t).put(node("pi-1"), deployment(2)).settle().run("pi-1").settle()
			if c.finalizer == "" {
				f.remove(deployKey)
			} else {
				f.edit(deployKey, func(o state.Object) {
					at := metav1.NewTime(f.now)
					o.SetDeletionTimestamp(&at)
					o.SetFinalizers([]string{c.finalizer})
				})
			}
			f.settle().quiet()
			if c.finalizer == metav1.FinalizerDeleteDependents && f.deploy() == nil {
				t.Error("the owner is removed before its pods have stopped")
			}
			for _, pod := range f.pods() {
				if deleted := f.s.Pod("default", pod).DeletionTimestamp != nil; deleted == (c.pods > 0) {
					t.Errorf("pod %s is being deleted: %v, want the opposite", pod, deleted)
				}
			}
			f.run("pi-1").settle().quiet()
			if f.deploy() != nil || len(f.sets("default")) != c.sets || len(f.pods()) != c.pods {
				t.Errorf("these remain: deployment %v, %d replica sets, %d pods", f.deploy() != nil, len(f.sets("default")),
					len(f.pods()))
			}
		})
	}
}

func TestOrphanedReplicaSetIsAdoptedAgain(t *testing.T) {
	f := newFleet(t).put(deployment(2)).settle().run("pi-1").settle()
	rs := f.sets("default")[0]
	f.edit(deployKey, func(o state.Object) {
		at := metav1.NewTime(f.now)
		o.SetDeletionTimestamp(&at)
		o.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
	}).settle().quiet()
	if len(f.sets("default")[0].OwnerReferences) != 0 {
		t.Fatal("the replica set is not an orphan")
	}
	f.put(deployment(2)).settle().quiet()
	if sets := f.sets("default"); len(sets) != 1 || sets[0].Name != rs.Name || len(f.livePods()) != 2 {
		t.Errorf("%d replica sets, %d pods", len(sets), len(f.livePods()))
	}
}
