package workload

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// FuzzStatefulSets changes a StatefulSet at random, with users, silent devices, deleted claims and
// restarts of the hub. After each step a full recomputation changes nothing. No decision creates a
// pod whose name exists or before lower ordinals are available, deletes one out of order or below
// the partition, or removes a pod that may still run.
func FuzzStatefulSets(f *testing.F) {
	for seed := range uint64(80) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 12))
		fl := newFleet(t).put(node("pi-1"), node("pi-2"))
		w := watchSets{t: t, seed: seed, f: fl}
		for range 100 {
			disturbSets(fl, r)
			w.settle()
			if r.IntN(3) == 0 {
				w.pass(time.Duration(r.IntN(90)) * time.Second)
			}
			if r.IntN(10) == 0 { // a restarted hub has only the stored state
				var all []state.Object
				for _, k := range state.Kinds() {
					for o := range fl.s.All(k, "") {
						all = append(all, o)
					}
				}
				fl.s, fl.alarms, fl.recent = state.Load(state.Empty("test", start), all, fl.s.Revision),
					map[state.Subject]time.Time{}, nil
				w.carry(fl.d.Subjects(fl.s))
				w.settle()
			}
			fl.quiet()
		}
	})
}

// watchSets checks each plan before it is applied.
type watchSets struct {
	t    *testing.T
	seed uint64
	f    *fleet
}

func (w watchSets) carry(subjects []state.Subject) {
	plan := w.f.d.Decide(w.f.s, subjects, w.f.now)
	s := w.f.s
	for _, c := range plan.Changes {
		if pod, ok := c.Object.(*corev1.Pod); ok {
			w.hold(s, pod, c)
		}
		o := c
		o.Object = c.Object.DeepCopyObject().(state.Object)
		s, _ = state.Apply(s, []state.Change{o})
	}
	w.f.carry(plan)
}

func (w watchSets) settle() {
	w.t.Helper()
	for range 200 {
		subjects := state.Touched(w.f.d.Touches, w.f.recent)
		for q, at := range w.f.alarms {
			if !at.After(w.f.now) {
				subjects = append(subjects, q)
				delete(w.f.alarms, q)
			}
		}
		slices.SortFunc(subjects, func(a, b state.Subject) int { return byKey(a.Key, b.Key) })
		if w.f.recent = nil; len(subjects) == 0 {
			return
		}
		w.carry(subjects)
	}
	w.t.Fatalf("seed %d: the decider does not settle: %q", w.seed, w.f.log[max(0, len(w.f.log)-12):])
}

func (w watchSets) pass(d time.Duration) {
	for end := w.f.now.Add(d); ; {
		next := end
		for _, at := range w.f.alarms {
			if at.Before(next) {
				next = at
			}
		}
		if next.After(w.f.now) {
			w.f.now = next
		}
		if w.settle(); !w.f.now.Before(end) {
			return
		}
	}
}

// hold checks a change of a pod. Its rules are written independently of the decider.
func (w watchSets) hold(s state.Snapshot, pod *corev1.Pod, c state.Change) {
	w.t.Helper()
	set, _ := s.Get(setKey).(*appsv1.StatefulSet)
	was := s.Pod(pod.Namespace, pod.Name)
	n, its := ordinalOf("db", pod.Name)
	if !its {
		return
	}
	if c.Delete && was != nil && was.Spec.NodeName != "" && !state.Terminated(was) && s.Node(was.Spec.NodeName) != nil {
		w.t.Fatalf("seed %d: %s is removed while %s may run it: %s", w.seed, pod.Name, was.Spec.NodeName, c.Why)
	}
	if set == nil || set.DeletionTimestamp != nil {
		return
	}
	first, want := int64(0), int64(*set.Spec.Replicas)
	if set.Spec.Ordinals != nil {
		first = int64(set.Spec.Ordinals.Start)
	}
	serves := func(n int64) bool {
		p := s.Pod("default", "db-"+itoa(n))
		return p != nil && controlledBy(p, set) && active(p) && !availableAt(p, set.Spec.MinReadySeconds).IsZero() &&
			!availableAt(p, set.Spec.MinReadySeconds).After(w.f.now)
	}
	ordered := set.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement
	begun := !c.Delete && was == nil
	leaves := was != nil && controlledBy(was, set) && active(was) && (c.Delete || pod.DeletionTimestamp != nil)
	switch {
	case begun:
		if n < first || n >= first+want {
			w.t.Fatalf("seed %d: %s is created outside of the %d ordinals from %d", w.seed, pod.Name, want, first)
		}
		for i := first; i < n && ordered; i++ {
			if !serves(i) {
				w.t.Fatalf("seed %d: %s is created before db-%d is available", w.seed, pod.Name, i)
			}
		}
		for _, v := range pod.Spec.Volumes {
			if claim := s.Claim("default", v.PersistentVolumeClaim.ClaimName); claim == nil || claim.DeletionTimestamp != nil {
				w.t.Fatalf("seed %d: %s is created without its claim", w.seed, pod.Name)
			}
		}
	case leaves && n >= first && n < first+want: // deleted for an update
		u := set.Spec.UpdateStrategy.RollingUpdate
		if u == nil || n-first < int64(*u.Partition) ||
			pod.Labels[appsv1.StatefulSetRevisionLabel] == set.Status.UpdateRevision &&
				set.Status.ObservedGeneration == set.Generation {
			w.t.Fatalf("seed %d: %s is deleted, revision %s, status %+v", w.seed, pod.Name,
				pod.Labels[appsv1.StatefulSetRevisionLabel], set.Status)
		}
		away := 0
		for i := first; i < first+want; i++ {
			if !serves(i) {
				away++
			}
		}
		idle := u.MaxUnavailable != nil && !ordered && !serves(n)
		if u.MaxUnavailable != nil && !idle && away >= int(u.MaxUnavailable.IntVal) || ordered && u.MaxUnavailable == nil &&
			away > 0 {
			w.t.Fatalf("seed %d: %s is deleted while %d pods are unavailable", w.seed, pod.Name, away)
		}
		for i := n + 1; i < first+want && !idle; i++ {
			if p := s.Pod("default", "db-"+itoa(i)); p.DeletionTimestamp == nil &&
				p.Labels[appsv1.StatefulSetRevisionLabel] == pod.Labels[appsv1.StatefulSetRevisionLabel] {
				w.t.Fatalf("seed %d: %s is deleted before %s", w.seed, pod.Name, p.Name)
			}
		}
	case leaves && ordered:
		for o := range s.Owned(set.UID, state.Pods) {
			if i, ok := ordinalOf("db", o.GetName()); ok && controlledBy(o, set) && (i < first || i >= first+want) && i > n {
				w.t.Fatalf("seed %d: %s is deleted before %s", w.seed, pod.Name, o.GetName())
			}
		}
	}
}

func itoa(n int64) string {
	if n == 0 {
		return "0"
	}
	text := ""
	for ; n > 0; n /= 10 {
		text = string(rune('0'+n%10)) + text
	}
	return text
}

func disturbSets(f *fleet, r *rand.Rand) {
	set, _ := f.s.Get(setKey).(*appsv1.StatefulSet)
	var pods []*corev1.Pod
	for pod := range f.s.Pods("") {
		pods = append(pods, pod)
	}
	at := metav1.NewTime(f.now)
	switch r.IntN(16) {
	case 0: // create it
		if set != nil {
			return
		}
		policies := []appsv1.PersistentVolumeClaimRetentionPolicyType{keepClaims, dropClaims}
		f.put(aSet(int32(r.IntN(5)), func(s *appsv1.StatefulSetSpec) {
			if r.IntN(2) == 0 {
				parallel(s)
			}
			if r.IntN(2) == 0 {
				withClaims(policies[r.IntN(2)], policies[r.IntN(2)])(s)
			}
			if r.IntN(2) == 0 {
				s.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(int32(1 + r.IntN(3))))
			}
			s.MinReadySeconds = int32(r.IntN(2) * 10)
			s.RevisionHistoryLimit = new(int32(r.IntN(3)))
		}))
	case 1: // delete it in one of several ways
		if set == nil || set.DeletionTimestamp != nil || r.IntN(3) > 0 {
			return
		}
		if how := r.IntN(3); how == 0 {
			f.remove(setKey)
		} else {
			f.edit(setKey, func(o state.Object) {
				o.SetDeletionTimestamp(&at)
				o.SetFinalizers([]string{[]string{"", metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}[how]})
			})
		}
	case 2, 3: // change it
		if set == nil || set.DeletionTimestamp != nil {
			return
		}
		f.setSpec(func(s *appsv1.StatefulSetSpec) {
			switch r.IntN(5) {
			case 0, 1:
				s.Replicas = new(int32(r.IntN(6)))
			case 2:
				s.Template.Spec.Containers[0].Image = []string{"db:1", "db:2", "db:3"}[r.IntN(3)]
			case 3:
				s.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(r.IntN(3))}
			case 4:
				if s.UpdateStrategy.RollingUpdate != nil {
					s.UpdateStrategy.RollingUpdate.Partition = new(int32(r.IntN(4)))
				}
			}
		})
	case 4: // a device becomes silent, or answers again
		f.edit(state.Key{Kind: state.Nodes, Name: []string{"pi-1", "pi-2"}[r.IntN(2)]}, func(o state.Object) {
			o.(*corev1.Node).Status.Conditions[0].Status = []corev1.ConditionStatus{corev1.ConditionTrue,
				corev1.ConditionUnknown}[r.IntN(2)]
		})
	case 5: // delete a claim
		for c := range state.Each[*corev1.PersistentVolumeClaim](f.s, state.Claims, "") {
			if r.IntN(3) > 0 {
				continue
			}
			if k := state.KeyOf(c); c.DeletionTimestamp != nil {
				f.remove(k)
			} else {
				f.edit(k, func(o state.Object) {
					o.SetDeletionTimestamp(&at)
					o.SetFinalizers([]string{state.ClaimProtection})
				})
			}
			return
		}
	case 6: // create or delete another pod with a name of the StatefulSet
		k := podKey("db-" + itoa(int64(r.IntN(4))))
		if f.s.Get(k) == nil {
			labels := map[string]string{}
			if r.IntN(2) == 0 {
				labels["app"] = "kiosk"
			}
			f.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: k.Name, Namespace: k.Namespace, Labels: labels,
				UID: types.UID("")}, Status: corev1.PodStatus{Phase: corev1.PodPending}})
		}
	default: // change a pod
		if len(pods) == 0 {
			return
		}
		pod := pods[r.IntN(len(pods))]
		node := []string{"pi-1", "pi-2"}[r.IntN(2)]
		if pod.Spec.NodeName != "" {
			node = pod.Spec.NodeName
		}
		switch how := r.IntN(12); {
		case how == 0:
			if c, ok := state.Delete(pod, f.now, nil, ""); ok {
				f.apply(c)
			}
		case how == 1 && !state.Terminated(pod):
			f.edit(state.KeyOf(pod), func(o state.Object) {
				o.(*corev1.Pod).Spec.NodeName, o.(*corev1.Pod).Status.Phase = node, []corev1.PodPhase{corev1.PodFailed,
					corev1.PodSucceeded}[r.IntN(2)]
			})
		case how == 2 && pod.Status.Phase == corev1.PodRunning:
			f.edit(state.KeyOf(pod), func(o state.Object) {
				state.SetPodCondition(o.(*corev1.Pod), corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse},
					f.now)
			})
		case how == 3:
			f.edit(state.KeyOf(pod), func(o state.Object) {
				o.SetLabels(map[string]string{"app": []string{"kiosk",
					"x"}[r.IntN(2)]})
			})
		case pod.DeletionTimestamp != nil:
			f.apply(state.Remove(pod, "")) // the device reports that the pod has stopped, or a user force-deletes it
		case !state.Terminated(pod):
			f.ready(pod.Name, node)
		}
	}
}
