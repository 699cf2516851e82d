package node_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/node"
	"flotilla.dev/hub/node/nodetest"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

func amounts(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

// TestWhatADeviceSaysOfItself: it cannot be another node, nor have less than nothing or
// more than there is.
func TestWhatADeviceSaysOfItself(t *testing.T) {
	for _, c := range []struct {
		name                  string
		addresses             []corev1.NodeAddress
		capacity, allocatable corev1.ResourceList
		keeps                 int // addresses
		want, wantAlloc       corev1.ResourceList
		told                  string
	}{
		{name: "the name of another node as its host name", addresses: []corev1.NodeAddress{{Type: "Hostname", Address: "PI-2"}}, told: `Hostname "PI-2", which is another node`},
		{name: "another node's address of the same site", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}, told: "is that of node pi-2"},
		{name: "another node's address, written as one of IPv6", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "::ffff:10.0.0.2"}}, told: "is that of node pi-2"},
		{name: "an address of many machines", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "224.0.0.1"}, {Type: "InternalIP", Address: "ff02::1"}}, told: "is no address of one machine"},
		{name: "an address of none", addresses: []corev1.NodeAddress{{Type: "ExternalIP", Address: "::"}}, told: "is no address of one machine"},
		{name: "the same address twice", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.9"}, {Type: "InternalIP", Address: "::ffff:10.0.0.9"}}, keeps: 1},
		{name: "what is no resource", capacity: amounts("a b", "1", "-", "1", "cpu", "1"), want: amounts("cpu", "1"), told: "which is no resource"},
		{name: "more huge pages than there is memory anywhere", capacity: amounts("hugepages-2Mi", "8Pi"), want: amounts("hugepages-2Mi", "1Pi"), told: "of which 1Pi is the most"},
		{name: "its own name and address", addresses: []corev1.NodeAddress{{Type: "Hostname", Address: "raspberrypi"}, {Type: "InternalIP", Address: "10.0.0.1"}, {Type: "InternalIP", Address: "fd00::1"}}, keeps: 3},
		{name: "addresses of no machine", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "127.0.0.1"}, {Type: "InternalIP", Address: "0.0.0.0"}, {Type: "InternalIP", Address: "fe80::1%eth0"}, {Type: "InternalIP", Address: "x"}, {Type: "Odd", Address: "a"}}, told: "and 2 more"},
		{name: "less than nothing", capacity: amounts("cpu", "-4", "memory", "1Gi"), allocatable: amounts("cpu", "-4", "memory", "-1"), want: amounts("memory", "1Gi"), wantAlloc: amounts("memory", "0"), told: "less than nothing"},
		{name: "more than any device has", capacity: amounts("cpu", "1e6", "pods", "1e9", "memory", "1e18", "x.org/usb", "1e9"), allocatable: amounts("cpu", "1e6"), want: amounts("cpu", "4096", "pods", "1024", "memory", "64Ti", "x.org/usb", "1000000"), wantAlloc: amounts("cpu", "4096"), told: "of which 4096 is the most"},
		{name: "allocatable beyond capacity", capacity: amounts("cpu", "4"), allocatable: amounts("cpu", "8", "memory", "1Gi"), want: amounts("cpu", "4"), wantAlloc: amounts("cpu", "4"), told: "more than its capacity of 4"},
		{name: "nothing, of what is no resource", allocatable: amounts("cpu", "0", "a\u202eb", "0", "b\u202ea", "-1", strings.Repeat("x", 9000), "0"), told: "without a capacity"},
		{name: "what is plausible", capacity: amounts("cpu", "4", "memory", "8Gi"), allocatable: amounts("cpu", "3800m", "memory", "7Gi"), want: amounts("cpu", "4", "memory", "8Gi"), wantAlloc: amounts("cpu", "3800m", "memory", "7Gi")},
	} {
		listening(t, c.name, func(h *listener) {
			other := nodetest.Report("b", 1, "True")
			other.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}
			if err := h.l.Status(h.t.Context(), node.Caller{Node: "pi-2"}, other); err != nil {
				h.t.Fatal(err)
			}
			h.hear() // registered
			edit := func(st *wire.Status) {
				st.Status.Addresses, st.Status.Capacity, st.Status.Allocatable = c.addresses, c.capacity, c.allocatable
			}
			for range 3 {
				h.hear(edit)
			}
			n := h.node()
			if n.Labels[corev1.LabelHostname] != "pi-1" || len(n.Status.Addresses) != c.keeps {
				h.t.Errorf("it is called %s and has the addresses %v", n.Labels[corev1.LabelHostname], n.Status.Addresses)
			}
			same := func(what string, have, want corev1.ResourceList) {
				if len(have) != len(want) {
					h.t.Errorf("%s is %v", what, have)
				}
				for k, q := range want {
					if got := have[k]; got.Cmp(q) != 0 {
						h.t.Errorf("%s of %s is %s, want %s", what, k, got.String(), q.String())
					}
				}
			}
			same("capacity", n.Status.Capacity, c.want)
			same("allocatable", n.Status.Allocatable, c.wantAlloc)
			told := h.events("ImplausibleReport")
			if c.told == "" && len(told) != 0 || c.told != "" && (len(told) != 1 || !strings.Contains(told[0], c.told)) {
				h.t.Errorf("told %q", told)
			}
		})
	}
	listening(t, "the address of a node that is not ready is given out again", func(h *listener) {
		other := nodetest.Report("b", 1, "False")
		other.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}
		_ = h.l.Status(h.t.Context(), node.Caller{Node: "pi-2"}, other)
		h.hear()
		h.hear(func(st *wire.Status) { st.Status.Addresses = other.Status.Addresses })
		if n := h.node(); len(n.Status.Addresses) != 1 || state.ReadyOf(n) != corev1.ConditionTrue {
			h.t.Errorf("it has %v", n.Status.Addresses)
		}
	})
}
