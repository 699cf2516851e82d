package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// A Node that an administrator writes is validated before it is used. The error names the field.
func TestAnInvalidNodeIsRefused(t *testing.T) {
	capacity := func(name corev1.ResourceName, q string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Status.Capacity[name], n.Status.Allocatable = *quantity(q), nil }
	}
	blocks := func(cidrs ...string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs }
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		want   string
	}{
		{"a name with an underscore", func(n *corev1.Node) { n.Name = "pi_1" }, `metadata.name: Invalid value: "pi_1"`},
		{"a name that ends with a dash", func(n *corev1.Node) { n.Name = "pi-" }, `metadata.name: Invalid value: "pi-"`},
		{"a name that would be two levels of an MQTT topic", func(n *corev1.Node) { n.Name = "pi/1" }, `metadata.name: Invalid value: "pi/1"`},
		{"a name that would match every MQTT topic", func(n *corev1.Node) { n.Name = "#" }, `metadata.name: Invalid value: "#"`},
		{"a name that is too long", func(n *corev1.Node) { n.Name = strings.Repeat("a", 254) }, "metadata.name: Invalid value"},
		{"the longest name", func(n *corev1.Node) { n.Name = strings.Repeat("a", 253) }, ""},
		{"a name with dots", func(n *corev1.Node) { n.Name = "pi-1.oslo.example.org" }, ""},
		{"a negative number of processors", capacity("cpu", "-1"), `status.capacity[cpu]: Invalid value: "-1"`},
		{"negative memory", capacity("memory", "-1Gi"), `status.capacity[memory]: Invalid value: "-1Gi"`},
		{"half a pod", capacity("pods", "1500m"), `status.capacity[pods]: Invalid value: "1500m"`},
		{"half a unit of an extended resource", capacity("example.org/door", "500m"), `status.capacity[example.org/door]: Invalid value: "500m"`},
		{"a resource with an invalid name", capacity("two doors", "1"), "status.capacity[two doors]: Invalid value"},
		{"a node without cpu", capacity("cpu", "0"), ""},
		{"allocatable without capacity", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = nil, corev1.ResourceList{"cpu": *quantity("1")}
		}, "status.allocatable[cpu]: Invalid value"},
		{"a duplicate address", func(n *corev1.Node) {
			a := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}
			n.Status.Addresses = []corev1.NodeAddress{a, a}
		}, "status.addresses[1]: Duplicate value"},
		{"an address that is not the block's first", blocks("10.64.1.5/24"), `spec.podCIDRs[0]: Invalid value: "10.64.1.5/24"`},
		{"two blocks of the same IP family", blocks("10.64.1.0/24", "10.64.2.0/24"), `spec.podCIDRs[1]: Invalid value: "10.64.2.0/24"`},
		{"a block of each IP family", blocks("10.64.1.0/24", "fd64::/64"), ""},
		{"a block too small for a pod", blocks("10.64.1.0/32"), `spec.podCIDRs[0]: Invalid value: "10.64.1.0/32"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := sample(t, state.Nodes).(*corev1.Node)
			c.change(n)
			expect(t, Validate(n, normal), c.want)
		})
	}
}
