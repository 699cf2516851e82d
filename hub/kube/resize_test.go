package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// pods/resize changes only resources. A quota counts the change in the same transaction, and the
// generation increases. Without the subresource the same change is refused.
func TestAPodIsResized(t *testing.T) {
	f := seeded()
	p := fakePod("burst", "pi-1")
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse(cpu)}
	}
	p.Spec.Containers[0].Resources.Requests = list("20m")
	p.Status.QOSClass = corev1.PodQOSBurstable
	p.Status.ContainerStatuses[0].AllocatedResources = list("20m")
	p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: list("20m")}
	hard := corev1.ResourceList{corev1.ResourceRequestsCPU: quantity.MustParse("50m")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"},
		Spec: corev1.ResourceQuotaSpec{Hard: hard},
		Status: corev1.ResourceQuotaStatus{Hard: hard,
			Used: corev1.ResourceList{corev1.ResourceRequestsCPU: quantity.MustParse("20m")}}}
	f.put(p, quota)
	s := newServer(f)
	path := ns + "/pods/burst"
	is := func(generation int64, cpu, used string) {
		t.Helper()
		live := f.Snapshot().Pod("default", "burst")
		if have := live.Spec.Containers[0].Resources.Requests.Cpu().String(); live.Generation != generation || have != cpu {
			t.Errorf("the pod requests %s in generation %d, want %s in %d", have, live.Generation, cpu, generation)
		}
		if live.Spec.Containers[0].Image != "kiosk:1" || live.Labels["app"] != "kiosk" ||
			live.Status.Phase != corev1.PodRunning {
			t.Errorf("only the resources may change: %+v", live)
		}
		q := f.Snapshot().Get(state.KeyOf(quota)).(*corev1.ResourceQuota).Status.Used[corev1.ResourceRequestsCPU]
		if q.String() != used {
			t.Errorf("the quota counts %s, want %s", q.String(), used)
		}
	}
	patch := func(cpu string) string {
		return `{"metadata":{"labels":{"app":"other"}},"spec":{"containers":[{"name":"main","image":"evil:1","resources":{"requests":{"cpu":"` + cpu + `"}}}]},"status":{"phase":"Failed"}}`
	}

	send(t, s, "PATCH", path, smp, `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"30m"}}}]}}`, 422,
		nil)
	send(t, s, "PATCH", path+"/resize?dryRun=All", smp, patch("30m"), 200, nil)
	is(1, "20m", "20m")
	send(t, s, "PATCH", path+"/resize", smp, patch("50m"), 200, nil)
	is(2, "50m", "50m")
	send(t, s, "PATCH", path+"/resize", smp, patch("51m"), 403, nil)
	send(t, s, "PATCH", path+"/resize", smp, patch("0"), 422, nil) // the pod would become BestEffort
	is(2, "50m", "50m")
	var seen corev1.Pod
	send(t, s, "GET", path+"/resize", "", "", 200, &seen)
	if seen.Spec.Containers[0].Resources.Requests.Cpu().String() != "50m" {
		t.Errorf("the pod's resources are %+v", seen.Spec)
	}
	send(t, s, "PATCH", path+"/resize?fieldManager=vpa&force=true", ssa,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"burst"},"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"40m"}}}]}}`, 200, nil)
	is(3, "40m", "40m")
	owned := false
	for _, m := range f.Snapshot().Pod("default", "burst").ManagedFields {
		owned = owned || m.Manager == "vpa" && m.Subresource == "resize"
	}
	if !owned {
		t.Errorf("the applied field must have a manager: %+v", f.Snapshot().Pod("default", "burst").ManagedFields)
	}
}
