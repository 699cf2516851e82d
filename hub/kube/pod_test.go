package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A disruption budget protects serving pods, not pods that have not started or are ending.
func TestPodsThatABudgetProtects(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		code   int
	}{
		{"a running pod", func(*corev1.Pod) {}, 429},
		{"a running pod that is not ready", func(p *corev1.Pod) { p.Status.Conditions = nil }, 429},
		{"a bound pod that has not started", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }, 201},
		{"a pod without a node", func(p *corev1.Pod) { p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending} }, 201},
		{"a pod that has ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, 201},
		{"a pod that is being deleted", func(p *corev1.Pod) { now := p.CreationTimestamp; p.DeletionTimestamp = &now }, 201},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := seeded()
			p := f.Snapshot().Pod("default", "guarded").DeepCopy()
			c.change(p)
			f.put(p)
			s := newServer(f)
			send(t, s, "POST", ns+"/pods/guarded/eviction", "", `{"metadata":{"name":"guarded"}}`, c.code, nil)
			if left := f.Snapshot().Get(state.KeyOf(p)); c.code == 429 && left.GetDeletionTimestamp() != nil {
				t.Errorf("the eviction was refused, but the pod is being deleted: %+v", left)
			}
		})
	}
}

// A dry run of an eviction changes nothing, whether the query or the body's options request it.
func TestADryRunOfAnEviction(t *testing.T) {
	const plain, tried = `{"metadata":{"name":"kiosk-2"}}`,
		`{"metadata":{"name":"kiosk-2"},"deleteOptions":{"dryRun":["All"]}}`
	for _, c := range []struct {
		query, body string
		code        int
	}{
		{"?dryRun=All", plain, 201}, {"", tried, 201}, {"?dryRun=All", tried, 201}, {"?dryRun=All&dryRun=All", plain, 201},
		{"?dryRun=all", plain, 422}, {"?dryRun=true", plain, 422}, {"?dryRun=", plain, 422}, {"?dryRun=client", tried, 422},
		{"", `{"metadata":{"name":"kiosk-2"},"deleteOptions":{"dryRun":["all"]}}`, 422},
	} {
		f := seeded()
		before := f.Snapshot().Revision
		send(t, newServer(f), "POST", ns+"/pods/kiosk-2/eviction"+c.query, "", c.body, c.code, nil)
		if f.Snapshot().Revision != before {
			t.Errorf("the dry run with query %q and body %s changed the fleet", c.query, c.body)
		}
	}
}
