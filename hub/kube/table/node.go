package table

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func init() {
	show(state.Nodes, columns("Name Status Roles Age Version (w)Internal-IP (w)External-IP (w)OS-Image "+
		"(w)Kernel-Version (w)Container-Runtime (w)Site (w)Board (w)Last-Seen"), nodeCells)
}

func nodeCells(obj state.Object, o *Options) []any {
	n := obj.(*corev1.Node)
	info := n.Status.NodeInfo
	kernel := orUnknown(info.KernelVersion)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	seen := "<unknown>"
	if o.LastSeen != nil {
		seen = since(o.LastSeen(n.Name), o)
	}
	return []any{
		n.Name, nodeStatus(n), orNone(strings.Join(roles(n), ",")), age(n.CreationTimestamp, o), info.KubeletVersion,
		address(n, corev1.NodeInternalIP), address(n, corev1.NodeExternalIP),
		orUnknown(info.OSImage), kernel, orUnknown(info.ContainerRuntimeVersion),
		state.SiteOf(n), orNone(n.Labels[fleet.LabelBoard]), seen,
	}
}

// nodeStatus returns NotReady for Ready=False and Ready=Unknown, and Unknown for a node without the
// condition, as kube-apiserver does.
func nodeStatus(n *corev1.Node) string {
	s := "Unknown"
	switch state.ReadyOf(n) {
	case "":
	case corev1.ConditionTrue:
		s = "Ready"
	default:
		s = "NotReady"
	}
	if n.Spec.Unschedulable {
		s += ",SchedulingDisabled"
	}
	return s
}

// roles returns the roles of the labels node-role.kubernetes.io/<role> and
// kubernetes.io/role=<role>, sorted.
func roles(n *corev1.Node) (roles []string) {
	for key, value := range n.Labels {
		role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/")
		if !ok && key == "kubernetes.io/role" {
			role = value
		} else if !ok {
			continue
		}
		if role != "" {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

func address(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return "<none>"
}
