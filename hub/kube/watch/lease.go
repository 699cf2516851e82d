package watch

import (
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// renewed returns the time of a lease's last renewal, or zero.
func renewed(o state.Object) time.Time {
	if l, ok := o.(*coordv1.Lease); ok && l.Spec.RenewTime != nil {
		return l.Spec.RenewTime.Time
	}
	return time.Time{}
}

// leaseNamed returns the lease of a deleted node, for the DELETED event.
func leaseNamed(node string, snap state.Snapshot) *coordv1.Lease {
	return &coordv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: node, Namespace: corev1.NamespaceNodeLease, ResourceVersion: resource.FormatRev(snap.Revision),
	}}
}
