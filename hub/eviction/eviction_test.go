package eviction_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func taint(key string, effect corev1.TaintEffect, after time.Duration) corev1.Taint {
	at := metav1.NewTime(noon.Add(after))
	return corev1.Taint{Key: key, Effect: effect, TimeAdded: &at}
}

func tolerate(key string, seconds ...int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func TestLeaveBy(t *testing.T) {
	never := time.Duration(-1)
	a, b := taint("a", corev1.TaintEffectNoExecute, 0), taint("b", corev1.TaintEffectNoExecute, 10*time.Second)
	for _, tt := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        time.Duration
	}{
		{"without taints no pod leaves", nil, nil, never},
		{"NoSchedule evicts no pod", []corev1.Taint{taint("a", corev1.TaintEffectNoSchedule, 0)}, nil, never},
		{"an untolerated taint: now", []corev1.Taint{a}, nil, 0},
		{"a toleration of another taint does not help", []corev1.Taint{a}, []corev1.Toleration{tolerate("b")}, 0},
		{"a toleration without seconds: never", []corev1.Taint{a}, []corev1.Toleration{tolerate("a")}, never},
		{"100 s: after 100 s, counted from the taint", []corev1.Taint{a}, []corev1.Toleration{tolerate("a", 100)}, 100 * time.Second},
		{"0 s: now", []corev1.Taint{a}, []corev1.Toleration{tolerate("a", 0)}, 0},
		{"negative seconds: now", []corev1.Taint{a}, []corev1.Toleration{tolerate("a", -5)}, 0},
		{"only one of two taints is tolerated: now", []corev1.Taint{a, b}, []corev1.Toleration{tolerate("a")}, 0},
		{"two tolerated for 1 s and 100 s: the smaller", []corev1.Taint{a, b}, []corev1.Toleration{tolerate("a", 1), tolerate("b", 100)}, time.Second},
		{"one without limit and one of 1 s: 1 s", []corev1.Taint{a, b}, []corev1.Toleration{tolerate("a"), tolerate("b", 1)}, 11 * time.Second},
		{"the first toleration that matches counts", []corev1.Taint{a}, []corev1.Toleration{tolerate("a"), tolerate("a", 1)}, never},
		{"an empty key with Exists matches every taint", []corev1.Taint{a, b}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, never},
		{"an empty effect matches every effect", []corev1.Taint{a}, []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}, never},
		{"an empty operator means Equal: another value does not match", []corev1.Taint{a}, []corev1.Toleration{{Key: "a", Value: "x"}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := eviction.LeaveBy(&corev1.Node{Spec: corev1.NodeSpec{Taints: tt.taints}}, pod("pi-1", tt.tolerations...))
			at := max(got.At.Sub(noon), 0) // a moment in the past means now
			if got.Must != (tt.want != never) || got.Must && at != tt.want {
				t.Errorf("LeaveBy = %+v, want %s", got, tt.want)
			}
		})
	}
}

func fleet(pod *corev1.Pod, taints ...corev1.Taint) state.Snapshot {
	s := state.Empty("test", noon.Add(-time.Hour))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))},
		Spec: corev1.NodeSpec{Taints: taints}}
	s, _ = state.Apply(s, []state.Change{state.Put(n, ""), state.Put(pod, "")})
	return s
}

// whole is a decider that is always asked about everything.
type whole struct{ eviction.Decider }

func (d whole) Decide(s state.Snapshot, now time.Time) state.Plan {
	return d.Decider.Decide(s, d.Subjects(s), now)
}

func pod(node string, tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
		Spec: corev1.PodSpec{NodeName: node, Tolerations: tolerations}}
}

func TestDecide(t *testing.T) {
	d := whole{eviction.Decider{Timeouts: state.Timeouts{Grace: 40 * time.Second, Lease: 10 * time.Second}}}
	t.Run("an eviction keeps the pod, with its grace, reason and sentence", func(t *testing.T) {
		plan := d.Decide(fleet(pod("pi-1", tolerate("a", 60)), taint("a", corev1.TaintEffectNoExecute, 0)),
			noon.Add(time.Minute))
		if len(plan.Changes) != 1 {
			t.Fatalf("changes %v", plan.Changes)
		}
		c := plan.Changes[0]
		p := c.Object.(*corev1.Pod)
		if c.Delete || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 {
			t.Errorf("change %+v", c)
		}
		cond := state.PodCondition(p, corev1.DisruptionTarget)
		if cond == nil || cond.Reason != "DeletionByTaintManager" || c.Reason != "TaintManagerEviction" {
			t.Errorf("condition %+v, event %s", cond, c.Reason)
		}
		if want := "evict kiosk from pi-1: tolerated a until 12:01:00"; c.String() != want {
			t.Errorf("the sentence is %q, want %q", c.String(), want)
		}
	})
	t.Run("before the deadline the decider sets an alarm for it", func(t *testing.T) {
		plan := d.Decide(fleet(pod("pi-1", tolerate("a", 60)), taint("a", corev1.TaintEffectNoExecute, 0)),
			noon.Add(59*time.Second))
		if len(plan.Changes) != 0 || len(plan.Alarms) != 1 || !plan.Alarms[0].At.Equal(noon.Add(time.Minute)) {
			t.Errorf("plan %+v", plan)
		}
	})
	t.Run("a pod without a node is not evicted", func(t *testing.T) {
		if plan := d.Decide(fleet(pod(""), taint("a", corev1.TaintEffectNoExecute, 0)), noon); len(plan.Changes) != 0 {
			t.Errorf("changes %v", plan.Changes)
		}
	})
	t.Run("a restarted hub waits for the grace period before it evicts from a silent node", func(t *testing.T) {
		s := fleet(pod("pi-1", tolerate(corev1.TaintNodeUnreachable, 300)),
			taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, -10*time.Minute))
		s.Started = noon
		if plan := d.Decide(s, noon.Add(39*time.Second)); len(plan.Changes) != 0 ||
			!plan.Alarms[0].At.Equal(noon.Add(40*time.Second)) {
			t.Errorf("plan %+v", plan)
		}
		if plan := d.Decide(s, noon.Add(40*time.Second)); len(plan.Changes) != 1 {
			t.Errorf("after its grace: plan %+v", plan)
		}
	})
	t.Run("a restarted hub evicts at once for a user's taint", func(t *testing.T) {
		s := fleet(pod("pi-1"), taint("a", corev1.TaintEffectNoExecute, -time.Minute))
		s.Started = noon
		if plan := d.Decide(s, noon); len(plan.Changes) != 1 {
			t.Errorf("plan %+v", plan)
		}
	})
	t.Run("even on a silent node a user's taint evicts without waiting", func(t *testing.T) {
		silent := taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, -10*time.Minute)
		for _, c := range []struct {
			pod    *corev1.Pod
			taints []corev1.Taint
			at     time.Duration
		}{
			{pod("pi-1"), []corev1.Taint{silent, taint("a", corev1.TaintEffectNoExecute, 0)}, 0},
			{pod("pi-1", tolerate(corev1.TaintNodeUnreachable, 300), tolerate("a", 5)), []corev1.Taint{taint("a", corev1.TaintEffectNoExecute, 0), silent}, 5 * time.Second},
			{pod("pi-1", tolerate(corev1.TaintNodeUnreachable, 300), tolerate("a", 60)), []corev1.Taint{taint("a", corev1.TaintEffectNoExecute, 0), silent}, 40 * time.Second},
		} {
			s := fleet(c.pod, c.taints...)
			s.Started = noon
			if plan := d.Decide(s, noon.Add(c.at-1)); c.at > 0 &&
				(len(plan.Changes) != 0 || !plan.Alarms[0].At.Equal(noon.Add(c.at))) {
				t.Errorf("before %s: plan %+v", c.at, plan)
			}
			if plan := d.Decide(s, noon.Add(c.at)); len(plan.Changes) != 1 {
				t.Errorf("after %s: plan %+v", c.at, plan)
			}
		}
	})
}
