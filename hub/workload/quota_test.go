package workload

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// The usage that is updated incrementally equals a full count.
func TestQuotaUsageEqualsAFullCount(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := state.Empty("hub", now)
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "a"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"pods": resource.MustParse("2"), "count/pods": resource.MustParse("9"), "requests.cpu": resource.MustParse("1"), "resourcequotas": resource.MustParse("5")}},
		Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{"pods": resource.MustParse("77")}}} // a wrong value, for example of a restored database
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}
	}
	done, leaving, elsewhere := pod("done"), pod("leaving"), pod("elsewhere")
	done.Status.Phase, elsewhere.Namespace = corev1.PodSucceeded, "b"
	leaving.DeletionTimestamp, leaving.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(10 * time.Second)},
		new(int64(10))
	step := func(at time.Time, want string, changes ...state.Change) {
		t.Helper()
		next, log := state.Apply(s, changes)
		plan := Quotas{}.Decide(next, state.Touched(Quotas{}.Touches, log), at)
		s, _ = state.Apply(next, plan.Changes)
		u := s.Get(state.KeyOf(q)).(*corev1.ResourceQuota).Status.Used
		pods, all, cpu, quotas := u["pods"], u["count/pods"], u["requests.cpu"], u["resourcequotas"]
		if got := fmt.Sprint(pods.String(), " ", all.String(), " ", cpu.String(), " ", quotas.String()); got != want {
			t.Errorf("the usage is %s, want %s", got, want)
		}
	}
	step(now, "0 0 0 1", state.Put(q, ""))
	step(now, "2 3 200m 1", state.Put(done, ""), state.Put(leaving, ""), state.Put(pod("x"), ""), state.Put(elsewhere, ""))
	ended := pod("x")
	ended.Status.Phase = corev1.PodFailed
	step(now, "1 3 100m 1", state.Put(ended, ""))
	step(now.Add(time.Minute), "1 3 100m 1") // the alarm causes the recount
	plan := Quotas{}.Decide(s, Quotas{}.Subjects(s), now)
	if len(plan.Changes) > 0 || len(plan.Alarms) != 1 || !plan.Alarms[0].At.Equal(now.Add(20*time.Second+1)) {
		t.Errorf("a full count has the changes %v, want none, and the alarms %v", plan.Changes, plan.Alarms)
	}
	if plan = (Quotas{}).Decide(s, Quotas{}.Subjects(s), plan.Alarms[0].At); len(plan.Changes) != 1 {
		t.Errorf("a pod that should have stopped still counts: %v", plan.Changes)
	}
	end := now.Add(20 * time.Second)
	if plan = (Quotas{}).Decide(s, Quotas{}.Subjects(s), end); len(plan.Alarms) != 1 ||
		!plan.Alarms[0].At.Equal(end.Add(1)) {
		t.Errorf("at the deadline the pod still counts; the alarms are %v", plan.Alarms)
	}
	step(now, "0 1 0 1", state.Remove(leaving, ""), state.Remove(ended, ""))
}

// Freed usage may be used at once, but is never overestimated. At intervals all usage is counted.
func TestALargeNamespaceIsCountedAtIntervals(t *testing.T) {
	key := state.Key{Kind: state.ResourceQuotas, Namespace: "a", Name: "q"}
	hard := corev1.ResourceList{"pods": resource.MustParse("1000"), "count/pods": resource.MustParse("1000"),
		"requests.cpu": resource.MustParse("100"), "configmaps": resource.MustParse("50")}
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := start
		s, _ := state.Apply(state.Empty("hub", now),
			[]state.Change{state.Put(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, "")})
		quota := func() *corev1.ResourceQuota { return s.Get(key).(*corev1.ResourceQuota) }
		wake, turns, counted := time.Time{}, 0, 0
		decide := func(subjects []state.Subject) (turn bool) {
			if turn = !wake.IsZero() && !wake.After(now); turn {
				wake = time.Time{}
				turns++
				subjects = append(subjects, state.About(key))
			}
			for len(subjects) > 0 {
				plan := Quotas{}.Decide(s, subjects, now)
				for _, a := range plan.Alarms {
					wake = a.At
				}
				var log []state.Applied
				s, log = state.Apply(s, plan.Changes)
				subjects = state.Touched(Quotas{}.Touches, log)
			}
			return turn
		}
		// do applies changes and charges new objects, as the API does.
		do := func(changes ...state.Change) {
			for _, c := range changes {
				if s.Get(state.KeyOf(c.Object)) == nil {
					if q := state.WithUsage(quota(), state.Charged(quota(), c.Object, now)); q != nil {
						changes = append(changes, state.Put(q, ""))
					}
				}
			}
			var log []state.Applied
			s, log = state.Apply(s, changes)
			decide(state.Touched(Quotas{}.Touches, log))
		}
		pod := func(i int) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%03d", i), Namespace: "a"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(fmt.Sprintf("%dm",
						10+r.IntN(90)))}}}}}}
		}
		decide(Quotas{}.Subjects(s))
		next := 0
		for range 200 {
			do(state.Put(pod(next), ""))
			next++
		}
		for range 400 {
			now = now.Add(time.Duration(r.IntN(300)) * time.Millisecond)
			var all []*corev1.Pod
			for p := range s.Pods("a") {
				all = append(all, p)
			}
			p := all[r.IntN(len(all))].DeepCopy()
			switch n := r.IntN(10); {
			case n < 3 || len(all) < 150:
				do(state.Put(pod(next), ""))
				next++
			case n < 5:
				if p.DeletionTimestamp == nil {
					grace := int64(r.IntN(4))
					p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(time.Duration(grace) * time.Second)}, &grace
					do(state.Put(p, ""))
				}
			case n < 7:
				do(state.Remove(p, ""))
			case n < 8:
				p.Status.Phase = corev1.PodSucceeded
				do(state.Put(p, ""))
			case n < 9:
				p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1m") // a resize of the pod
				do(state.Put(p, ""))
			default:
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("m-", r.IntN(9))}}
				if s.Get(state.KeyOf(m)) != nil {
					do(state.Remove(m, ""))
				} else {
					do(state.Put(m, ""))
				}
			}
			if r.IntN(50) == 0 { // a client writes wrong usage
				q := quota().DeepCopy()
				q.Status.Used["pods"] = resource.MustParse("999")
				do(state.Put(q, ""))
			}
			counted++
			now = now.Add(time.Duration(r.IntN(100)) * time.Millisecond)
			if decide(nil) {
				if st, _ := state.QuotaStatus(s, quota(), now); !equality.Semantic.DeepEqual(st, quota().Status) {
					t.Fatalf("seed %d: after a full count the status is %v, want %v", seed, quota().Status.Used, st.Used)
				}
			}
			exact, _ := state.QuotaStatus(s, quota(), now)
			for name, is := range exact.Used {
				if says := quota().Status.Used[name]; says.Cmp(is) < 0 {
					t.Fatalf("seed %d: the usage of %s is %s, but the status says %s", seed, name, is.String(), says.String())
				}
			}
		}
		if turns < 20 || turns > counted/3 {
			t.Errorf("seed %d: %d full counts in %d changes, want 20 to a third", seed, turns, counted)
		}
	}
}

func TestFreedUsageOfALargeNamespaceIsAvailableAtOnce(t *testing.T) {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "a"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("200")}}}
	changes := []state.Change{state.Put(q, "")}
	for i := range 200 {
		changes = append(changes, state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", i),
			Namespace: "a"}}, ""))
	}
	s, log := state.Apply(state.Empty("hub", start), changes)
	plan := Quotas{}.Decide(s, state.Touched(Quotas{}.Touches, log), start)
	s, _ = state.Apply(s, plan.Changes)
	s, log = state.Apply(s, []state.Change{state.Remove(s.Pod("a", "p-7"), ""), state.Remove(s.Pod("a", "p-8"), "")})
	plan = Quotas{}.Decide(s, state.Touched(Quotas{}.Touches, log), start.Add(100*time.Millisecond))
	if len(plan.Changes) != 1 || len(plan.Alarms) != 1 || !plan.Alarms[0].At.Equal(start.Add(time.Second)) {
		t.Fatalf("the changes are %v, the alarms %v", plan.Changes, plan.Alarms)
	}
	if used := plan.Changes[0].Object.(*corev1.ResourceQuota).Status.Used["pods"]; used.String() != "198" {
		t.Errorf("the usage is %s, want 198", used.String())
	}
}
