package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// without returns the fleet without some pods.
func without(s state.Snapshot, pods ...*corev1.Pod) state.Snapshot {
	var gone []state.Change
	for _, p := range pods {
		gone = append(gone, state.Remove(p, ""))
	}
	s, _ = state.Apply(s, gone)
	return s
}

// FuzzRoomIsMadeByTheRules fills a small fleet at random, and compares the preempted pods with all
// possible choices.
func FuzzRoomIsMadeByTheRules(f *testing.F) {
	for seed := range uint64(400) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 9))
		fl := newFleet(t)
		one := func(of ...string) string { return of[r.IntN(len(of))] }
		for i := range 3 {
			n := node(fmt.Sprint("n", i), one("x", "y"))
			n.Status.Allocatable[corev1.ResourceCPU] = list(fmt.Sprint(2+r.IntN(3)), "")[corev1.ResourceCPU]
			if r.IntN(6) == 0 {
				taint("k", "v", corev1.TaintEffectNoSchedule)(n)
			}
			n.Status.Allocatable[corev1.ResourcePods] = list(fmt.Sprint(2+r.IntN(4)), "")[corev1.ResourceCPU]
			fl.put(n)
			v := fmt.Sprint("v", i)
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v,
				UID: typesUID("claim", i)},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: v,
					AccessModes: []corev1.PersistentVolumeAccessMode{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce,
						corev1.ReadWriteOncePod}[r.IntN(2)]}}}
			fl.put(claim, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v}, Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: v, UID: claim.UID},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
						Values: []string{n.Name}}}}}}}}})
		}
		newPod := func(name string, prio int32) *corev1.Pod {
			p := pod(name, asks(one("500m", "1", "1500m", "2"), ""), priority(prio), app(one("a", "b", "c")))
			switch r.IntN(10) {
			case 8, 9:
				p.Spec.Volumes = []corev1.Volume{{Name: "v",
					VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("v", r.IntN(3))}}}}
			case 0:
				hostPort("", "TCP", int32(80+r.IntN(2)))(p)
			case 1:
				awayFrom(one("a", "b", "c"), one(corev1.LabelHostname, corev1.LabelTopologyZone))(p)
			case 2:
				nearTo(one("a", "b", "c"), one(corev1.LabelHostname, corev1.LabelTopologyZone))(p)
			case 3:
				p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
					TopologyKey: one(corev1.LabelHostname, corev1.LabelTopologyZone), WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": one("a", "b", "c")}}}}
			}
			return p
		}
		for i := range 12 {
			fl.now = fl.now.Add(time.Second)
			fl.put(newPod(fmt.Sprintf("p%02d", i), int32(r.IntN(4))))
			fl.settle()
			// The preempted pods stop at once.
			var leave []*corev1.Pod
			for p := range fl.s.Pods("") {
				if p.DeletionTimestamp != nil || p.Spec.NodeName == "" {
					leave = append(leave, p)
				}
			}
			for _, p := range leave {
				fl.apply(state.Remove(p, ""))
			}
			fl.settle()
		}
		fl.now = fl.now.Add(time.Minute)
		fl.settle()
		before := fl.s
		x := newPod("x", int32(1+r.IntN(4)))
		fl.put(x)
		x = fl.s.Pod("default", "x")
		with := fl.s
		fl.settle()
		var victims []*corev1.Pod
		for p := range fl.s.Pods("") {
			if p.DeletionTimestamp != nil {
				victims = append(victims, before.Pod("default", p.Name))
			}
		}
		is := fl.s.Pod("default", "x")
		fits := func(s state.Snapshot, n *corev1.Node) bool {
			return mayBeOn(s, x, n) == "" && int64(len(on(s, n.Name))) < n.Status.Allocatable.Pods().Value()
		}
		// best is the lowest possible priority of the most important victim, found by trying every
		// choice.
		best := int32(99)
		free := false
		for n := range with.Nodes() {
			free = free || fits(with, n)
			var lower []*corev1.Pod
			for _, p := range on(with, n.Name) {
				if *p.Spec.Priority < *x.Spec.Priority {
					lower = append(lower, p)
				}
			}
			if !fits(without(with, lower...), n) {
				continue
			}
			for set := range 1 << len(lower) {
				var some []*corev1.Pod
				most := int32(-1)
				for i, p := range lower {
					if set>>i&1 == 1 {
						some = append(some, p)
						most = max(most, *p.Spec.Priority)
					}
				}
				if len(some) > 0 && most < best && fits(without(with, some...), n) {
					best = most
				}
			}
		}
		switch {
		case free:
			if is.Spec.NodeName == "" || len(victims) > 0 {
				t.Fatalf("seed %d: there is space, but the pod is on %q with %d victims", seed, is.Spec.NodeName, len(victims))
			}
			return
		case best == 99:
			if len(victims) > 0 || is.Spec.NodeName != "" || is.Status.NominatedNodeName != "" {
				t.Fatalf("seed %d: preemption does not help, but %d pods are victims; the pod is on %q", seed, len(victims),
					is.Spec.NodeName)
			}
			return
		case len(victims) == 0:
			t.Fatalf("seed %d: no pod is preempted, although victims up to priority %d are enough: %s", seed, best, fl.why("x"))
		}
		where := victims[0].Spec.NodeName
		most := int32(-1)
		for i, v := range victims {
			if v.Spec.NodeName != where || *v.Spec.Priority >= *x.Spec.Priority {
				t.Fatalf("seed %d: %s on %s with priority %d is preempted", seed, v.Name, v.Spec.NodeName, *v.Spec.Priority)
			}
			most = max(most, *v.Spec.Priority)
			var fewer []*corev1.Pod
			for j, o := range victims {
				if i != j {
					fewer = append(fewer, o)
				}
			}
			if fits(without(with, fewer...), with.Node(where)) {
				t.Fatalf("seed %d: %s is preempted in vain", seed, v.Name)
			}
		}
		if is.Spec.NodeName == where {
			return
		}
		if len(x.Spec.TopologySpreadConstraints) > 0 && is.Spec.NodeName != "" {
			return // the terminating pods do not count
		}
		if is.Status.NominatedNodeName != where || most != best || !fits(without(with, victims...), with.Node(where)) {
			t.Fatalf("seed %d: nominated %q, victims on %s, at most %d, best %d", seed, is.Status.NominatedNodeName, where,
				most, best)
		}
		evicted := len(fl.changes)
		for _, v := range victims {
			fl.apply(state.Remove(fl.s.Pod("default", v.Name), ""))
			fl.now = fl.now.Add(time.Second)
			fl.settle()
		}
		fl.now = fl.now.Add(time.Minute)
		fl.settle()
		linked := func(p *corev1.Pod) bool { return p.Spec.Affinity != nil || len(p.Spec.TopologySpreadConstraints) > 0 }
		if at := fl.s.Pod("default", "x").Spec.NodeName; at != where && !linked(x) && !slices.ContainsFunc(victims, linked) { // otherwise the pod may fit another node once the first victim has left
			t.Fatalf("seed %d: the pod is placed on %q, but the victims were on %s", seed, at, where)
		}
		for _, c := range fl.changes[evicted:] {
			if c.Reason == "Preempted" {
				t.Fatalf("seed %d: more pods are preempted: %s", seed, c.Why)
			}
		}
	})
}

func on(s state.Snapshot, node string) (pods []*corev1.Pod) {
	for p := range s.PodsOn(node) {
		pods = append(pods, p)
	}
	return pods
}
