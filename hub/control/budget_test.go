package control_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
)

// A budget expects the wanted pods of its workloads, even if a change of scale creates and deletes
// no pod.
func TestABudgetFollowsTheScaleOfItsWorkloads(t *testing.T) {
	spec := template("web", nil)
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web", Generation: 1}
	for _, c := range []struct {
		rule   string
		makes  state.Object
		change func(o state.Object)
		want   int32
	}{
		{"a Deployment that cannot create more", &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3)), Selector: spec.selector, Template: spec.template}},
			func(o state.Object) { o.(*appsv1.Deployment).Spec.Replicas = ptr.To(int32(8)) }, 8},
		{"a ReplicaSet that cannot create more", &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(3)), Selector: spec.selector, Template: spec.template}},
			func(o state.Object) { o.(*appsv1.ReplicaSet).Spec.Replicas = ptr.To(int32(8)) }, 8},
		{"a ReplicationController that cannot create more", &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To(int32(3)), Selector: spec.selector.MatchLabels, Template: &spec.template}},
			func(o state.Object) { o.(*corev1.ReplicationController).Spec.Replicas = ptr.To(int32(8)) }, 8},
		{"a StatefulSet that cannot create more", &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(int32(3)), Selector: spec.selector, Template: spec.template, PodManagementPolicy: appsv1.ParallelPodManagement}},
			func(o state.Object) { o.(*appsv1.StatefulSet).Spec.Replicas = ptr.To(int32(8)) }, 8},
		{"a DaemonSet with a node that accepts no pod any more", &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: spec.selector, Template: spec.template}}, nil, 2},
	} {
		t.Run(c.rule, func(t *testing.T) {
			g := newStage(t, acting()...)
			g.do("node", []string{"pi-1..3", "site=oslo"})
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: spec.selector, MaxUnavailable: ptr.To(intstr.FromInt32(1))}}
			g.put(&corev1.ResourceQuota{ObjectMeta: meta,
				Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("3")}}})
			g.put(budget)
			o := c.makes.DeepCopyObject().(state.Object)
			admission.Default(o, admission.Settings{})
			g.put(o)
			g.do("wait", []string{"10s"})
			count := func() policyv1.PodDisruptionBudgetStatus {
				return g.s.Get(state.KeyOf(budget)).(*policyv1.PodDisruptionBudget).Status
			}
			if st := count(); st.ExpectedPods != 3 || st.DisruptionsAllowed != 1 {
				t.Fatalf("the first status is %+v", st)
			}
			if c.change == nil {
				n := g.s.Node("pi-3").DeepCopy()
				n.Spec.Taints = []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoSchedule}}
				o = n
			} else {
				o = g.s.Get(state.KeyOf(o)).DeepCopyObject().(state.Object)
				o.SetGeneration(2)
				c.change(o)
			}
			next, log := state.Apply(g.s, []state.Change{state.Put(o, "")})
			g.s, _, _ = g.settler.Settle(next, log, g.now)
			if st := count(); st.ExpectedPods != c.want || st.DesiredHealthy != c.want-1 ||
				st.DisruptionsAllowed != max(0, 4-c.want) {
				t.Errorf("the budget expects %d pods, wants %d healthy and allows %d disruptions, want %d, %d and %d",
					st.ExpectedPods, st.DesiredHealthy, st.DisruptionsAllowed, c.want, c.want-1, max(0, 4-c.want))
			}
		})
	}
}
