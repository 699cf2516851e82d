package kube

import (
	appsv1 "k8s.io/api/apps/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// seeded returns a fleet of two nodes, three pods and one of everything else that the cases need.
func seeded() *fakeFleet {
	f := newFake()
	created := metav1.NewTime(fakeStart)
	f.put(fakeNode("pi-1", "oslo"), fakeNode("pi-2", "bergen"))
	guarded := fakePod("guarded", "pi-2")
	guarded.Labels = map[string]string{"app": "guarded"}
	kiosk := fakePod("kiosk-1", "pi-1")
	kiosk.UID = "c0ffee00-0000-4000-8000-000000000001"
	f.put(kiosk, fakePod("kiosk-2", ""), guarded)
	all := intstr.FromString("100%")
	f.put(
		&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default", Generation: 1, CreationTimestamp: created},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &all,
				Selector: &metav1.LabelSelector{MatchLabels: guarded.Labels}},
		},
		fakeDeployment("web", 2),
		&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "leaving", CreationTimestamp: created, DeletionTimestamp: &created},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
		},
		&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "team", CreationTimestamp: created},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		},
		&coordv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "leader", Namespace: "default", CreationTimestamp: created}},
		&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "kiosk-1.1", Namespace: "default", CreationTimestamp: created},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "kiosk-1",
				UID: kiosk.UID, APIVersion: "v1"},
			Reason: "Started", Message: "Started container main", Type: "Normal", Count: 1,
			Source: corev1.EventSource{Component: "kubelet", Host: "pi-1"}, FirstTimestamp: created, LastTimestamp: created,
		},
	)
	return f
}

func fakeDeployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	quarter := intstr.FromString("25%")
	ten, limit, grace := int32(10), int32(600), int64(30)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Generation: 1,
			CreationTimestamp: metav1.NewTime(fakeStart)},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: &ten,
			ProgressDeadlineSeconds: &limit,
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &quarter, MaxSurge: &quarter}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
					TerminationGracePeriodSeconds: &grace,
					SchedulerName:                 corev1.DefaultSchedulerName, SecurityContext: &corev1.PodSecurityContext{},
					Containers: []corev1.Container{{
						Name: "web", Image: "nginx:1.28", ImagePullPolicy: corev1.PullIfNotPresent,
						TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
					}},
				},
			},
		},
	}
}
