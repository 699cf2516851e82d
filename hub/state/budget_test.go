package state_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// TestCountBudget has the cases of kube-controller-manager's disruption controller, and a rollout
// in progress.
func TestCountBudget(t *testing.T) {
	app := map[string]string{"app": "kiosk"}
	meta := func(name string, owner types.UID, kind string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: app}
		if owner != "" {
			m.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: kind, Name: string(owner), UID: owner, Controller: new(true),
			}}
		}
		return m
	}
	deployment := func(replicas int32) state.Object {
		return &appsv1.Deployment{ObjectMeta: meta("kiosk", "", ""), Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	}
	replicaSet := func(name string, owner types.UID, replicas *int32) state.Object {
		return &appsv1.ReplicaSet{
			ObjectMeta: meta(name, owner, "Deployment"), Spec: appsv1.ReplicaSetSpec{Replicas: replicas},
		}
	}
	pods := func(prefix string, owner types.UID, kind string, ready, not int) (out []state.Object) {
		for i := range ready + not {
			p := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("%s-%d", prefix, i), owner, kind)}
			if i < ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			out = append(out, p)
		}
		return out
	}
	all := func(lists ...[]state.Object) (out []state.Object) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	one := func(o state.Object) []state.Object { return []state.Object{o} }
	v := func(s string) *intstr.IntOrString { return new(intstr.Parse(s)) }
	most := func(s string) policyv1.PodDisruptionBudgetSpec {
		return policyv1.PodDisruptionBudgetSpec{MaxUnavailable: v(s)}
	}
	least := func(s string) policyv1.PodDisruptionBudgetSpec {
		return policyv1.PodDisruptionBudgetSpec{MinAvailable: v(s)}
	}
	always := func(s policyv1.PodDisruptionBudgetSpec) policyv1.PodDisruptionBudgetSpec {
		s.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow)
		return s
	}
	rollout := all(one(deployment(4)), one(replicaSet("old", "kiosk", new(int32(3)))),
		one(replicaSet("new", "kiosk", new(int32(2)))),
		pods("old", "old", "ReplicaSet", 3, 0), pods("new", "new", "ReplicaSet", 0, 2))
	for _, tt := range []struct {
		name                                string
		spec                                policyv1.PodDisruptionBudgetSpec
		fleet                               []state.Object
		expected, desired, healthy, allowed int32
		ready, unready                      bool // whether a ready pod, and an unready pod, may be evicted
	}{
		{
			"in the middle of a rollout two replica sets of one deployment are one workload", most("1"), rollout, 4, 3, 3, 0,
			false, true,
		},
		{
			"in the middle of a rollout a percentage is of the deployment's replicas", least("50%"), rollout, 4, 2, 3, 1, true,
			true,
		},
		{
			"neither field allows nothing", policyv1.PodDisruptionBudgetSpec{},
			all(one(deployment(4)), one(replicaSet("old", "kiosk", new(int32(4)))), pods("old", "old", "ReplicaSet", 4, 0)), 0,
			0, 4, 0, false, false,
		},
		{
			"a percentage in maxUnavailable is rounded up", most("30%"),
			all(one(replicaSet("r", "", new(int32(5)))), pods("r", "r", "ReplicaSet", 5, 0)), 5, 3, 5, 2, true, true,
		},
		{
			"a percentage in minAvailable is rounded up", least("30%"),
			all(one(replicaSet("r", "", new(int32(5)))), pods("r", "r", "ReplicaSet", 5, 0)), 5, 2, 5, 3, true, true,
		},
		{"100 % may be missing", most("100%"), all(one(replicaSet("r", "", new(int32(5)))),
			pods("r", "r", "ReplicaSet", 5, 0)), 5, 0, 5, 5, true, true},
		{
			"maxUnavailable may exceed the number of pods", most("9"),
			all(one(replicaSet("r", "", new(int32(5)))), pods("r", "r", "ReplicaSet", 5, 0)), 5, 0, 5, 5, true, true,
		},
		{
			"a replica set without replicas wants one pod", most("1"),
			all(one(replicaSet("r", "", nil)), pods("r", "r", "ReplicaSet", 1, 0)), 1, 0, 1, 1, true, true,
		},
		{
			"a scaled down workload still has its pods", most("1"),
			all(one(replicaSet("r", "", new(int32(2)))), pods("r", "r", "ReplicaSet", 5, 0)), 2, 1, 5, 4, true, true,
		},
		{
			"pods without a controller count only for an absolute minAvailable", least("2"), pods("bare", "", "", 3, 0), 3, 2, 3, 1,
			true, true,
		},
		{
			"without controllers the expected count is unknown for maxUnavailable", most("1"), pods("bare", "", "", 3, 0), 0, 0, 3, 0,
			false, false,
		},
		{
			"without controllers the expected count is unknown for a percentage", most("1"),
			all(one(replicaSet("r", "", new(int32(2)))), pods("r", "r", "ReplicaSet", 2, 0), pods("bare", "", "", 1, 0)), 2, 1,
			3, 2, true, true,
		},
		{
			"a missing controller makes the expected count unknown", most("1"), pods("r", "gone", "ReplicaSet", 3, 0), 0, 0, 3, 0, false,
			false,
		},
		{
			"a missing deployment makes the expected count unknown", least("10%"),
			all(one(replicaSet("r", "gone", new(int32(3)))), pods("r", "r", "ReplicaSet", 3, 0)), 0, 0, 3, 0, false, false,
		},
		{
			"an absolute minAvailable needs no controller", least("1"), pods("r", "gone", "ReplicaSet", 3, 0), 3, 1, 3, 2, true,
			true,
		},
		{
			"an unready pod may be evicted while enough pods are ready", least("2"),
			all(one(replicaSet("r", "", new(int32(3)))), pods("r", "r", "ReplicaSet", 2, 1)), 3, 2, 2, 0, false, true,
		},
		{
			"an unready pod may not be evicted while too few pods are ready", least("3"),
			all(one(replicaSet("r", "", new(int32(3)))), pods("r", "r", "ReplicaSet", 2, 1)), 3, 3, 2, 0, false, false,
		},
		{
			"an unready pod may always be evicted under AlwaysAllow", always(least("3")),
			all(one(replicaSet("r", "", new(int32(3)))), pods("r", "r", "ReplicaSet", 2, 1)), 3, 3, 2, 0, false, true,
		},
		{
			"unlike Kubernetes, a daemon set counts with its nodes", most("1"),
			all(one(&appsv1.DaemonSet{ObjectMeta: meta("d", "", ""),
				Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3}}), pods("d", "d", "DaemonSet", 3, 0)), 3, 2, 3, 1, true,
			true,
		},
		{"two workloads add up", most("50%"), all(one(replicaSet("r", "", new(int32(3)))),
			one(replicaSet("q", "", new(int32(2)))), pods("r", "r", "ReplicaSet", 3, 0), pods("q", "q", "ReplicaSet", 2, 0)), 5,
			2, 5, 3, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var changes []state.Change
			for _, o := range tt.fleet {
				changes = append(changes, state.Put(o.DeepCopyObject().(state.Object), ""))
			}
			now := time.Unix(1000, 0)
			s, _ := state.Apply(state.Empty("x", now), changes)
			tt.spec.Selector = &metav1.LabelSelector{MatchLabels: app}
			b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}, Spec: tt.spec}
			c := state.CountBudget(s, b, now)
			if c.Unknown != "" { // the counts have no meaning if a workload is unknown
				c.Expected, c.Desired = 0, 0
			}
			if c.Expected != tt.expected || c.Desired != tt.desired || c.Healthy != tt.healthy || c.Allowed != tt.allowed {
				t.Errorf("the count is %+v", c)
			}
			working, broken := pods("w", "", "", 1, 0)[0].(*corev1.Pod), pods("b", "", "", 0, 1)[0].(*corev1.Pod)
			if got := c.MayEvict(b, working); got != tt.ready {
				t.Errorf("a ready pod may be evicted: %v", got)
			}
			if got := c.MayEvict(b, broken); got != tt.unready {
				t.Errorf("an unready pod may be evicted: %v", got)
			}
		})
	}
}
