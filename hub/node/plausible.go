package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
)

// maxCapacity is the most that a device can have of a resource. Amounts of other resources are
// counts.
var maxCapacity = map[corev1.ResourceName]resource.Quantity{
	corev1.ResourceCPU:              resource.MustParse("4096"),
	corev1.ResourceMemory:           resource.MustParse("64Ti"),
	corev1.ResourceEphemeralStorage: resource.MustParse("16Pi"),
	corev1.ResourcePods:             resource.MustParse("1024"),
}

var (
	anything   = resource.MustParse("1Pi")
	countedAny = resource.MustParse("1000000")
)

// plausible returns the plausible part of a device's status, and a short text for each rejected
// part: negative or excessive amounts, invalid names, and addresses of other nodes.
func plausible(s state.Snapshot, node string, st corev1.NodeStatus) (corev1.NodeStatus, []string) {
	var wrong []string
	st.Addresses, wrong = addresses(s, node, st.Addresses)
	st.Phase = "" // kubelets no longer set it
	st.Conditions = slices.DeleteFunc(slices.Clone(st.Conditions), func(c corev1.NodeCondition) bool {
		switch {
		case !isStatus(c.Status):
			wrong = append(wrong, fmt.Sprintf("condition %s=%q, which is not True, False or Unknown",
				bound.Text(string(c.Type), 64), bound.Text(string(c.Status), 32)))
		case len(validation.IsQualifiedName(string(c.Type))) > 0:
			wrong = append(wrong, fmt.Sprintf("condition %q, which is not the name of a condition",
				bound.Text(string(c.Type), 64)))
		default:
			return false
		}
		return true
	})
	if port := &st.DaemonEndpoints.KubeletEndpoint.Port; *port < 0 || *port > 65535 {
		wrong = append(wrong, fmt.Sprintf("the kubelet's port %d, which is not a port", *port))
		*port = 0
	}
	capacity := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(st.Capacity)) {
		q := st.Capacity[name]
		most, known := maxCapacity[name]
		switch {
		case known:
		case strings.Contains(string(name), "/"):
			most = countedAny
		default:
			most = anything // huge pages and other resources
		}
		switch {
		case !known && len(validation.IsQualifiedName(string(name))) > 0:
			wrong = append(wrong, fmt.Sprintf("capacity of %q, which is not a resource", bound.Text(string(name), 64)))
			continue
		case q.Sign() < 0:
			wrong = append(wrong, fmt.Sprintf("capacity of %s %s, which is negative", q.String(), name))
			continue
		case q.Cmp(most) > 0:
			wrong = append(wrong, fmt.Sprintf("capacity of %s %s, above the limit of %s", q.String(), name, most.String()))
			q = most
		}
		capacity[name] = q
	}
	allocatable := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(st.Allocatable)) {
		q := st.Allocatable[name]
		most, has := capacity[name]
		switch {
		case !has: // even an amount of 0, because the name may be any text
			wrong = append(wrong, fmt.Sprintf("allocatable of %s %s without a capacity", q.String(),
				bound.Text(string(name), 64)))
			continue
		case q.Sign() < 0:
			wrong = append(wrong, fmt.Sprintf("allocatable of %s %s, which is negative", q.String(), name))
			q = resource.Quantity{Format: q.Format}
		case q.Cmp(most) > 0:
			wrong = append(wrong, fmt.Sprintf("allocatable of %s %s, more than its capacity of %s", q.String(), name,
				most.String()))
			q = most
		}
		allocatable[name] = q
	}
	if st.Capacity != nil {
		st.Capacity = capacity
	}
	if st.Allocatable != nil {
		st.Allocatable = allocatable
	}
	return st, wrong
}

// addresses returns the plausible addresses of a device.
func addresses(s state.Snapshot, node string, reported []corev1.NodeAddress) (kept []corev1.NodeAddress,
	wrong []string) {
	for _, a := range reported {
		why := ""
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			ip, err := netip.ParseAddr(a.Address)
			switch {
			case err != nil || ip.Zone() != "":
				why = "is not an IP address"
			case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast():
				why = "is not the address of one machine"
			case a.Address != ip.Unmap().String():
				a.Address = ip.Unmap().String()
			}
			if why == "" {
				if other := addressHolder(s, node, a); other != "" {
					why = "is that of node " + other + " of the same site"
				}
			}
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
			name := strings.ToLower(a.Address)
			switch {
			case len(validation.IsDNS1123Subdomain(name)) > 0:
				why = "is not a host name"
			case name != node && s.Node(name) != nil:
				why = "is the name of another node"
			}
		default:
			why = "has a type that Kubernetes does not have"
		}
		switch {
		case why != "":
			wrong = append(wrong, fmt.Sprintf("%s %q, which %s", bound.Text(string(a.Type), 32), bound.Text(a.Address, 64), why))
		case !slices.Contains(kept, a):
			kept = append(kept, a)
		}
	}
	return kept, wrong
}

// addressHolder returns another ready node of the same site with the same IP address of any type.
// ExternalIP is exempt, because nodes behind one router share it. A node that is not ready does not
// count, because its address may be assigned again. On different sites, equal private addresses
// belong to different networks. A registering device keeps its addresses, because several agents
// may run on one machine.
func addressHolder(s state.Snapshot, node string, a corev1.NodeAddress) string {
	n := s.Node(node)
	if n == nil || slices.Contains(n.Status.Addresses, a) {
		return "" // the node already has the address; only later nodes are checked
	}
	for other := range s.NodesIn(state.SiteOf(n)) {
		if other.Name != node && state.ReadyOf(other) == corev1.ConditionTrue &&
			slices.ContainsFunc(other.Status.Addresses, func(have corev1.NodeAddress) bool {
				return have.Address == a.Address &&
					(have.Type == corev1.NodeInternalIP || have.Type == corev1.NodeExternalIP && a.Type == corev1.NodeInternalIP)
			}) {
			return other.Name
		}
	}
	return ""
}

// rejectedSentence returns the sentence about the rejected parts of a status; "": all parts are
// plausible.
func rejectedSentence(node string, wrong []string, tooMuch string) string {
	if tooMuch != "" {
		wrong = append(wrong, tooMuch)
	}
	if len(wrong) == 0 {
		return ""
	}
	rest := ""
	if n := len(wrong) - 3; n > 0 {
		wrong, rest = wrong[:3], fmt.Sprintf("; and %d more", n)
	}
	return bound.Text(fmt.Sprintf("the device of node %s reports implausible values: %s%s", node,
		strings.Join(wrong, "; "), rest), 1000)
}

func isStatus(s corev1.ConditionStatus) bool {
	return s == corev1.ConditionTrue || s == corev1.ConditionFalse || s == corev1.ConditionUnknown
}

var podPhases = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed,
	corev1.PodUnknown}

// clockSkew is how far a device's clock may be ahead of the hub's. Later times are removed.
const clockSkew = time.Minute

// plausiblePod corrects a pod's status: an unknown phase is replaced by the last one, and times in
// the future are removed.
func plausiblePod(st, old *corev1.PodStatus, now time.Time) {
	if !slices.Contains(podPhases, st.Phase) {
		st.Phase = old.Phase
	}
	st.Conditions = slices.DeleteFunc(st.Conditions, func(c corev1.PodCondition) bool { return !isStatus(c.Status) })
	isIP := func(text string) bool { ip, err := netip.ParseAddr(text); return err == nil && ip.Zone() == "" }
	st.PodIPs = slices.DeleteFunc(st.PodIPs, func(ip corev1.PodIP) bool { return !isIP(ip.IP) })
	st.HostIPs = slices.DeleteFunc(st.HostIPs, func(ip corev1.HostIP) bool { return !isIP(ip.IP) })
	if !isIP(st.PodIP) {
		st.PodIP = ""
	}
	if !isIP(st.HostIP) {
		st.HostIP = ""
	}
	future := func(t metav1.Time) bool { return t.After(now.Add(clockSkew)) }
	if st.StartTime != nil && future(*st.StartTime) {
		*st.StartTime = metav1.NewTime(now)
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		for i := range list {
			c := &list[i]
			for _, s := range []*corev1.ContainerState{&c.State, &c.LastTerminationState} {
				if s.Terminated != nil { // exactly one of the three states stays
					s.Running, s.Waiting = nil, nil
				} else if s.Running != nil {
					s.Waiting = nil
				}
				var times []*metav1.Time
				if s.Running != nil {
					times = append(times, &s.Running.StartedAt)
				}
				if s.Terminated != nil {
					times = append(times, &s.Terminated.StartedAt, &s.Terminated.FinishedAt)
				}
				for _, t := range times {
					if future(*t) {
						*t = metav1.Time{}
					}
				}
			}
		}
	}
}
