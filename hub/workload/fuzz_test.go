package workload

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// FuzzWorkload changes a fleet at random. After each change and its decisions a full recomputation
// changes nothing, no deleted object is written again, and no ReplicaSet has more live pods than
// replicas.
func FuzzWorkload(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 2))
		fl := newFleet(t)
		fl.d = Decider{FinishedPods: 5}
		least := intstr.FromInt32(2)
		fl.put(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "pdb", Namespace: "default", Generation: 1},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MinAvailable: &least}})
		for range 60 {
			for range 1 + r.IntN(3) {
				disturb(fl, r)
			}
			fl.settle().quiet()
			for rs := range state.Each[*appsv1.ReplicaSet](fl.s, state.ReplicaSets, "") {
				live := 0
				for o := range fl.s.Owned(rs.UID, state.Pods) {
					if pod := o.(*corev1.Pod); active(pod) && controlledBy(pod, rs) {
						live++
					}
				}
				if rs.DeletionTimestamp == nil && live > int(replicasOf(rs)) || int(rs.Status.Replicas) != live {
					t.Fatalf("seed %d: %s has %d live pods, want %d; its status says %d", seed, rs.Name, live, replicasOf(rs),
						rs.Status.Replicas)
				}
			}
			if r.IntN(4) == 0 {
				fl.pass(time.Duration(r.IntN(60)) * time.Second).quiet()
			}
		}
	})
}

func disturb(f *fleet, r *rand.Rand) {
	var pods []*corev1.Pod
	for pod := range f.s.Pods("") {
		pods = append(pods, pod)
	}
	name := fmt.Sprintf("pi-%d", 1+r.IntN(4))
	image := fmt.Sprintf("kiosk:%d", r.IntN(3))
	key := state.Key{Kind: state.Deployments, Namespace: "default", Name: fmt.Sprintf("d%d", r.IntN(2))}
	switch r.IntN(14) {
	case 0: // create a Deployment
		if f.s.Get(key) == nil {
			d := deployment(int32(r.IntN(5)))
			d.Name, d.Spec.Template = key.Name, template(image)
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk", "d": key.Name}}
			d.Spec.Template.Labels["d"] = key.Name
			d.Spec.RevisionHistoryLimit = new(int32(1))
			if r.IntN(3) == 0 {
				d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			}
			f.put(d)
		}
	case 1: // delete it in one of several ways
		if o := f.s.Get(key); o != nil && o.GetDeletionTimestamp() == nil {
			if how := r.IntN(3); how == 0 {
				f.remove(key)
			} else {
				at := metav1.NewTime(f.now)
				f.edit(key, func(o state.Object) {
					o.SetDeletionTimestamp(&at)
					o.SetFinalizers([]string{[]string{"", metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}[how]})
				})
			}
		}
	case 2, 3: // change it
		if f.s.Get(key) != nil {
			f.edit(key, func(o state.Object) {
				d := o.(*appsv1.Deployment)
				d.Generation++
				switch r.IntN(4) {
				case 0:
					d.Spec.Replicas = new(int32(r.IntN(6)))
				case 1:
					d.Spec.Paused = !d.Spec.Paused
				case 2:
					d.Spec.MinReadySeconds = int32(r.IntN(2) * 10)
				default:
					d.Spec.Template.Spec.Containers[0].Image = image
				}
			})
		}
	case 4: // create, change or delete a DaemonSet
		if f.s.Get(probeKey) == nil {
			ds := daemonSet()
			ds.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "probe"}}
			ds.Spec.Template.Labels = map[string]string{"app": "probe"}
			if r.IntN(2) == 0 {
				one, none := intstr.FromInt32(1), intstr.FromInt32(0)
				ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &one, MaxUnavailable: &none}
			}
			f.put(ds)
		} else if r.IntN(5) == 0 {
			f.remove(probeKey)
		} else {
			f.edit(probeKey, func(o state.Object) {
				ds := o.(*appsv1.DaemonSet)
				ds.Generation++
				ds.Spec.Template.Spec.Containers[0].Image = image
			})
		}
	case 5, 6: // create, delete or taint a node
		if n := f.s.Node(name); n == nil {
			f.put(node(name))
		} else if r.IntN(3) == 0 {
			f.remove(state.KeyOf(n))
		} else {
			f.edit(state.KeyOf(n), func(o state.Object) {
				n := o.(*corev1.Node)
				n.Spec.Taints = nil
				switch r.IntN(4) {
				case 0:
					n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
				case 1:
					n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
				case 2:
					n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
					n.Status.Conditions[0].Status = corev1.ConditionFalse
				}
			})
		}
	case 7, 8, 9: // devices run pods
		f.now = f.now.Add(time.Second)
		f.run("pi-1", "pi-2", "pi-3")
	default: // change a pod
		if len(pods) == 0 {
			return
		}
		pod := pods[r.IntN(len(pods))]
		switch r.IntN(6) {
		case 0:
			f.phase(pod.Name, corev1.PodFailed)
		case 1:
			if c, ok := state.Delete(pod, f.now, nil, ""); ok {
				f.apply(c)
			}
		case 2:
			f.apply(state.Remove(pod, ""))
		case 3:
			f.edit(state.KeyOf(pod), func(o state.Object) { o.SetLabels(map[string]string{"app": "stray"}) })
		case 4:
			f.edit(state.KeyOf(pod), func(o state.Object) {
				state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
					f.now)
			})
		case 5:
			f.edit(state.KeyOf(pod), func(o state.Object) { o.SetOwnerReferences(nil) })
		}
	}
}
