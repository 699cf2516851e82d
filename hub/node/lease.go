package node

import (
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// NodeLease returns a node's lease in the form of Kubernetes, computed from memory. Its renewTime
// is the last heartbeat. nil: the node does not exist or has never reported.
func (d *Devices) NodeLease(node string) *coordv1.Lease {
	s := d.Snapshot()
	n := s.Node(node)
	if rec := s.Record(node); n == nil || rec == nil || rec.Boot == "" {
		return nil
	}
	seconds := int32(d.Grace / time.Second)
	lease := &coordv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: "kube-node-lease", UID: n.UID, CreationTimestamp: n.CreationTimestamp,
			ResourceVersion: n.ResourceVersion,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: n.UID}},
		},
		Spec: coordv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds},
	}
	if v := d.Liveness(node); !v.Seen.IsZero() {
		at := metav1.NewMicroTime(v.Seen.Truncate(time.Microsecond))
		lease.Spec.RenewTime = &at
	}
	return lease
}

// NodeLeases returns the leases of all nodes.
func (d *Devices) NodeLeases() []*coordv1.Lease {
	var leases []*coordv1.Lease
	for n := range d.Snapshot().All(state.Nodes, "") {
		if lease := d.NodeLease(n.GetName()); lease != nil {
			leases = append(leases, lease)
		}
	}
	return leases
}
