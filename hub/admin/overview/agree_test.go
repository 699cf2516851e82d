package overview

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/workloads"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// FuzzAllPagesAgreeAboutTrouble makes random fleets. A pod that should run but does not run has a
// finding, a sentence on its page, a row in the list and an open incident. The overview says that
// all is well exactly if there is no trouble.
func FuzzAllPagesAgreeAboutTrouble(f *testing.F) {
	for seed := range uint64(150) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		m := admintest.New(randomFleet(rand.New(rand.NewPCG(seed, 1)))...)
		a := pictureRequest(m)
		page, err := Show(a)
		if err != nil {
			t.Fatal(err)
		}
		d := page.Data.(overviewData)
		well := true
		for n := range a.Nodes() {
			well = well && state.ReadyOf(n) == corev1.ConditionTrue &&
				state.NodeCondition(n, corev1.NodeDiskPressure).Status == corev1.ConditionFalse
		}
		for p := range a.Pods("") {
			name := fmt.Sprintf("%s on %q", p.Name, p.Spec.NodeName)
			found := diagnose.Pod(a.Snapshot, p)
			lists := workloads.PodHasStatus(a, p, "attention")
			if runs(a.Snapshot, p) {
				if found.Cause != "" || lists || workloads.PodRowOf(a, p).Why != "" {
					t.Errorf("%s runs, but has the finding %+v, listed: %v", name, found, lists)
				}
				continue
			}
			if well = well && p.DeletionTimestamp == nil && !shouldRun(p); !shouldRun(p) {
				continue
			}
			if why, _ := finding.PodTrouble(a.Snapshot, p, a.Now); found.Cause == "" || why == "" || found.Row() == "" {
				t.Errorf("%s does not run: %+v, its page says %q", name, found, why)
			}
			if has := hasIncident(a.Snapshot, p, found); has == diagnose.RuleOf(found.Cause).Alone || has != lists {
				t.Errorf("%s, %s: has an incident: %v; is listed: %v", name, found.Cause, has, lists)
			}
		}
		if d.Well != well {
			t.Errorf("all is well: %v; the overview says so: %v, with %d incidents: %s", well, d.Well, len(d.Cards),
				d.Yet)
		}
	})
}

// shouldRun and runs are written from Kubernetes' documentation, apart from package diagnose.
func shouldRun(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded &&
		(p.Status.Phase != corev1.PodFailed || metav1.GetControllerOf(p) == nil)
}

func runs(s state.Snapshot, p *corev1.Pod) bool {
	n := s.Node(p.Spec.NodeName)
	if !shouldRun(p) || n == nil || state.ReadyOf(n) != corev1.ConditionTrue || p.Status.Phase != corev1.PodRunning {
		return false
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil && (c.State.Terminated == nil || c.State.Terminated.ExitCode != 0) {
			return false
		}
	}
	ready := state.PodCondition(p, corev1.PodReady)
	return ready == nil || ready.Status == corev1.ConditionTrue
}

// hasIncident tells whether a finding belongs to an open incident.
func hasIncident(s state.Snapshot, p *corev1.Pod, f diagnose.Finding) bool {
	about := map[string]bool{p.Name: true, "shop": true}
	switch n := s.Node(p.Spec.NodeName); {
	case f.About.Kind == "Node" && n != nil:
		about = map[string]bool{state.SiteOf(n): true}
	case f.Cause == diagnose.ImageNotPulled:
		about = map[string]bool{f.Image: true}
	}
	for i := range state.Each[*fleet.Incident](s, state.Incidents, "") {
		if i.State == fleet.IncidentOpen && about[i.About.Name] &&
			diagnose.RuleOf(i.Cause).Family == diagnose.RuleOf(f.Cause).Family {
			return true
		}
	}
	return false
}

func randomFleet(r *rand.Rand) (all []state.Object) {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	chance := func(percent int) bool { return r.IntN(100) < percent }
	bad := r.IntN(3) * 20 // percent of pods in trouble
	old := admintest.Ago(3 * time.Hour)
	for i := range 1 + r.IntN(6) {
		all = append(all, admintest.Node(fmt.Sprintf("n-%d", i), pick("oslo", "bergen"), func(n *corev1.Node) {
			ready := state.NodeCondition(n, corev1.NodeReady)
			if ready.LastTransitionTime = old; chance(bad) {
				ready.Status, ready.Reason = corev1.ConditionStatus(pick("False", "Unknown")),
					pick("Because", "NodeShutdown", "NodeStatusNeverUpdated")
			}
			if chance(bad / 4) {
				state.NodeCondition(n, corev1.NodeDiskPressure).Status = corev1.ConditionTrue
			}
		}))
	}
	shop := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop", UID: "d"}}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop-1", UID: "rs",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(shop, state.Deployments.GroupVersionKind())}}}
	all = append(all, shop, set)
	for i := range r.IntN(8) {
		all = append(all, admintest.Pod(fmt.Sprintf("p-%d", i), fmt.Sprintf("n-%d", r.IntN(len(all)-2)),
			func(p *corev1.Pod) {
				if p.UID = types.UID(p.Name); chance(50) {
					p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
						state.ReplicaSets.GroupVersionKind())}
				}
				if chance(20) {
					p.Status.Phase, p.Status.ContainerStatuses = corev1.PodSucceeded, nil
				}
				if chance(100 - bad) {
					if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded {
						return
					}
					p.Spec.NodeName = "n-0"
					return
				}
				p.Spec.RestartPolicy = corev1.RestartPolicy(pick("Always", "OnFailure", "Never"))
				p.Status.Phase = corev1.PodPhase(pick("", "Pending", "Running", "Running", "Running", "Failed"))
				ready := state.PodCondition(p, corev1.PodReady)
				ready.Status, ready.LastTransitionTime = corev1.ConditionStatus(pick("True", "False")), old
				c := &p.Status.ContainerStatuses
				if *c != nil {
					of := &(*c)[0]
					of.RestartCount = int32(r.IntN(2))
					switch r.IntN(4) {
					case 0:
						of.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: pick("",
							"ContainerCreating", "ImagePullBackOff", "ErrImagePull", "CrashLoopBackOff",
							"CreateContainerError")}}
					case 1:
						of.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(r.IntN(2))}}
					}
					if of.State.Running == nil {
						ready.Status = corev1.ConditionFalse // the device's reason for a container that does not run
					}
				}
				switch r.IntN(8) {
				case 0:
					p.DeletionTimestamp = &old
				case 1:
					p.Spec.NodeName = "gone"
				case 2, 3:
					p.Spec.NodeName = ""
					p.Status = corev1.PodStatus{Phase: corev1.PodPending}
					if chance(60) {
						p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled,
							Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node",
							LastTransitionTime: old}}
					}
					if chance(40) {
						p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/paid"}}
					}
				}
			}))
	}
	return all
}
