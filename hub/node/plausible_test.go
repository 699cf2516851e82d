package node_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func amounts(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

// A device cannot claim another node's name or address, or impossible amounts.
func TestImplausibleReportsAreRejected(t *testing.T) {
	for _, c := range []struct {
		name                  string
		addresses             []corev1.NodeAddress
		capacity, allocatable corev1.ResourceList
		keeps                 int // number of addresses that stay
		want, wantAlloc       corev1.ResourceList
		messages              string
	}{
		{name: "the name of another node as its host name", addresses: []corev1.NodeAddress{{Type: "Hostname", Address: "PI-2"}}, messages: `Hostname "PI-2", which is the name of another node`},
		{name: "the address of another node of the same site", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}, messages: "is that of node pi-2"},
		{name: "the internal address of another node as an external one", addresses: []corev1.NodeAddress{{Type: "ExternalIP", Address: "10.0.0.2"}}, messages: "is that of node pi-2"},
		{name: "the external address of a common router", addresses: []corev1.NodeAddress{{Type: "ExternalIP", Address: "203.0.113.7"}}, keeps: 1},
		{name: "the external address of another node as an internal one", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "203.0.113.7"}}, messages: "is that of node pi-2"},
		{name: "the address of another node in IPv4-mapped form", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "::ffff:10.0.0.2"}}, messages: "is that of node pi-2"},
		{name: "multicast addresses", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "224.0.0.1"}, {Type: "InternalIP", Address: "ff02::1"}}, messages: "is not the address of one machine"},
		{name: "the unspecified address", addresses: []corev1.NodeAddress{{Type: "ExternalIP", Address: "::"}}, messages: "is not the address of one machine"},
		{name: "the same address twice", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.9"}, {Type: "InternalIP", Address: "::ffff:10.0.0.9"}}, keeps: 1},
		{name: "invalid resource names", capacity: amounts("a b", "1", "-", "1", "cpu", "1"), want: amounts("cpu", "1"), messages: "which is not a resource"},
		{name: "too many huge pages", capacity: amounts("hugepages-2Mi", "8Pi"), want: amounts("hugepages-2Mi", "1Pi"), messages: "above the limit of 1Pi"},
		{name: "its own name and address", addresses: []corev1.NodeAddress{{Type: "Hostname", Address: "raspberrypi"}, {Type: "InternalIP", Address: "10.0.0.1"}, {Type: "InternalIP", Address: "fd00::1"}}, keeps: 3},
		{name: "invalid addresses", addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: "127.0.0.1"}, {Type: "InternalIP", Address: "0.0.0.0"}, {Type: "InternalIP", Address: "fe80::1%eth0"}, {Type: "InternalIP", Address: "x"}, {Type: "Odd", Address: "a"}}, messages: "and 2 more"},
		{name: "negative amounts", capacity: amounts("cpu", "-4", "memory", "1Gi"), allocatable: amounts("cpu", "-4", "memory", "-1"), want: amounts("memory", "1Gi"), wantAlloc: amounts("memory", "0"), messages: "which is negative"},
		{name: "more than any device has", capacity: amounts("cpu", "1e6", "pods", "1e9", "memory", "1e18", "x.org/usb", "1e9"), allocatable: amounts("cpu", "1e6"), want: amounts("cpu", "4096", "pods", "1024", "memory", "64Ti", "x.org/usb", "1000000"), wantAlloc: amounts("cpu", "4096"), messages: "above the limit of 4096"},
		{name: "allocatable beyond capacity", capacity: amounts("cpu", "4"), allocatable: amounts("cpu", "8", "memory", "1Gi"), want: amounts("cpu", "4"), wantAlloc: amounts("cpu", "4"), messages: "more than its capacity of 4"},
		{name: "zero amounts of invalid resource names", allocatable: amounts("cpu", "0", "a\u202eb", "0", "b\u202ea", "-1", strings.Repeat("x", 9000), "0"), messages: "without a capacity"},
		{name: "plausible values", capacity: amounts("cpu", "4", "memory", "8Gi"), allocatable: amounts("cpu", "3800m", "memory", "7Gi"), want: amounts("cpu", "4", "memory", "8Gi"), wantAlloc: amounts("cpu", "3800m", "memory", "7Gi")},
	} {
		listening(t, c.name, func(h *listener) {
			other := nodetest.Report("b", 1, "True")
			other.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"},
				{Type: "ExternalIP", Address: "203.0.113.7"}}
			if err := h.l.Status(h.t.Context(), node.Caller{Node: "pi-2"}, other); err != nil {
				h.t.Fatal(err)
			}
			h.hear() // registers the node
			edit := func(st *wire.Status) {
				st.Status.Addresses, st.Status.Capacity, st.Status.Allocatable = c.addresses, c.capacity, c.allocatable
			}
			for range 3 {
				h.hear(edit)
			}
			n := h.node()
			if n.Labels[corev1.LabelHostname] != "pi-1" || len(n.Status.Addresses) != c.keeps {
				h.t.Errorf("the node is called %s and has the addresses %v", n.Labels[corev1.LabelHostname], n.Status.Addresses)
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
			messages := h.events("ImplausibleReport")
			if c.messages == "" && len(messages) != 0 ||
				c.messages != "" && (len(messages) != 1 || !strings.Contains(messages[0], c.messages)) {
				h.t.Errorf("the events are %q", messages)
			}
		})
	}
	listening(t, "a condition with a status outside the API", func(h *listener) {
		h.hear()
		h.hear(func(st *wire.Status) {
			st.Status.Phase, st.Status.DaemonEndpoints.KubeletEndpoint.Port = "Bogus", 70000
			st.Status.Conditions = append(st.Status.Conditions,
				corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: "Maybe"},
				corev1.NodeCondition{Type: "a b", Status: corev1.ConditionTrue})
		})
		n := h.node()
		if state.NodeCondition(n, corev1.NodeDiskPressure) != nil || state.NodeCondition(n, "a b") != nil ||
			n.Status.Phase != "" || n.Status.DaemonEndpoints.KubeletEndpoint.Port != 0 ||
			state.ReadyOf(n) != corev1.ConditionTrue {
			h.t.Errorf("the node's status is %+v", n.Status)
		}
		if messages := h.events("ImplausibleReport"); len(messages) != 1 || !strings.Contains(messages[0], `condition DiskPressure="Maybe"`) {
			h.t.Errorf("the events are %q", messages)
		}
	})
	listening(t, "the address of a node that is not ready is assigned again", func(h *listener) {
		other := nodetest.Report("b", 1, "False")
		other.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}
		_ = h.l.Status(h.t.Context(), node.Caller{Node: "pi-2"}, other)
		h.hear()
		h.hear(func(st *wire.Status) { st.Status.Addresses = other.Status.Addresses })
		if n := h.node(); len(n.Status.Addresses) != 1 || state.ReadyOf(n) != corev1.ConditionTrue {
			h.t.Errorf("the node has the addresses %v", n.Status.Addresses)
		}
	})
}

// Two nodes that have had one address in turn both keep it. Two sites may use the same addresses.
func TestTwoNodesMayUseOneAddressInTurn(t *testing.T) {
	has := func(st *wire.Status) {
		st.Status.Addresses = []corev1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}}
	}
	listening(t, "the first node is back, and the second keeps the address", func(h *listener) {
		other := func(seq uint64, ready corev1.ConditionStatus) {
			st := nodetest.Report("b", seq, ready)
			has(&st)
			hear(h.t, h.l, "pi-2", st)
		}
		other(1, "False")
		h.hear()
		h.hear(has)
		other(2, "True")
		h.hear(has)
		if n, m := h.node(), h.l.Snapshot().Node("pi-2"); len(n.Status.Addresses) != 1 || len(m.Status.Addresses) != 1 {
			h.t.Errorf("pi-1 has %v, pi-2 %v", n.Status.Addresses, m.Status.Addresses)
		}
	})
	listening(t, "another site has the same network", func(h *listener) {
		st := nodetest.Report("b", 1, "True")
		st.Registration.Labels[corev1.LabelTopologyZone] = "bergen"
		has(&st)
		hear(h.t, h.l, "pi-2", st)
		h.hear()
		h.hear(has)
		if n := h.node(); len(n.Status.Addresses) != 1 || len(h.events("ImplausibleReport")) != 0 {
			h.t.Errorf("the node has the addresses %v: %q", n.Status.Addresses, h.events("ImplausibleReport"))
		}
	})
}

// A device's site is that of its token. Facts about its system become labels only if they are valid
// values.
func TestADeviceCannotSetItsSiteOrInvalidLabels(t *testing.T) {
	listening(t, "labels", func(h *listener) {
		rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: "k1", Enrolled: metav1.Now(),
			Expires: metav1.NewTime(time.Now().Add(time.Hour)), Site: "oslo"}
		apply(h.t, h.l, rec)
		say := func(seq uint64) map[string]string {
			st := nodetest.Report("b", seq, "True")
			st.Registration.Labels[corev1.LabelTopologyZone] = "bergen"
			st.Registration.Labels[corev1.LabelHostname] = "pi-2"
			st.Registration.Labels["node-role.kubernetes.io/control-plane"] = ""
			st.Registration.Labels[fleet.LabelBoard] = "a board/of wood"
			st.Status.NodeInfo.OperatingSystem, st.Status.NodeInfo.Architecture = "linux\n", strings.Repeat("x", 64)
			if err := h.l.Status(h.t.Context(), node.Caller{Node: "pi-1", Key: "k1"}, st); err != nil {
				h.t.Fatal(err)
			}
			return h.node().Labels
		}
		want := map[string]string{corev1.LabelTopologyZone: "oslo", corev1.LabelHostname: "pi-1"}
		if got := say(1); !maps.Equal(got, want) {
			h.t.Errorf("the node's labels are %v", got)
		}
		moved := h.l.Snapshot().Record("pi-1").DeepCopy()
		moved.Site = "narvik"
		apply(h.t, h.l, moved)
		want[corev1.LabelTopologyZone] = "narvik"
		if got := say(2); !maps.Equal(got, want) {
			h.t.Errorf("after the device joined again on another site the labels are %v", got)
		}
	})
}
