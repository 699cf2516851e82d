package control

import (
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// NodeLease returns a node's lease as Kubernetes shows it, made from memory: its
// renewTime is when the hub last heard the node. nil: no such node.
func (l *Loop) NodeLease(node string) *coordv1.Lease {
	n := l.Snapshot().Node(node)
	if n == nil {
		return nil
	}
	seconds := int32(l.Grace / time.Second)
	lease := &coordv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: "kube-node-lease", UID: n.UID, CreationTimestamp: n.CreationTimestamp, ResourceVersion: n.ResourceVersion,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: n.UID}},
		},
		Spec: coordv1.LeaseSpec{LeaseDurationSeconds: &seconds},
	}
	if v := l.Liveness(node); !v.Seen.IsZero() {
		at := metav1.NewMicroTime(v.Seen.Truncate(time.Microsecond))
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &node, &at
	}
	return lease
}

// NodeLeases returns the leases of all nodes.
func (l *Loop) NodeLeases() []*coordv1.Lease {
	var leases []*coordv1.Lease
	for n := range l.Snapshot().All(state.Nodes, "") {
		if lease := l.NodeLease(n.GetName()); lease != nil {
			leases = append(leases, lease)
		}
	}
	return leases
}
