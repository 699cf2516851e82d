package engine

import (
	"net/netip"
	"testing"
)

const someRoutes = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
tun0	00000080	010200C0	0003	0	0	0	00000080	0	0	0
docker0	000011AC	00000000	0001	0	0	0	0000FFFF	0	0	0
eth0	0000400A	00000000	0001	0	0	0	00F0FFFF	0	0	0
`

const someRoutes6 = `fd640001000200000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0
00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo
`

// nowhere and nowhere6 are the kernel's form of blackhole 10.0.0.0/8, prohibit 172.20.0.0/16,
// unreachable fd00::/8 and blackhole fd12::/16.
const nowhere = `*	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
*	000014AC	00000000	0201	0	0	0	0000FFFF	0	0	0
`

const nowhere6 = `fd000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00200200       lo
fd120000000000000000000000000000 10 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00200200       lo
`

func TestABlockInsideARejectingRouteIsAllowed(t *testing.T) {
	routes := append(parseRoutes(someRoutes+nowhere), parseRoutes6(someRoutes6+nowhere6)...)
	for block, through := range map[string]string{
		"10.65.3.0/24": "", "10.64.3.0/24": "eth0", // part of the LAN, although also inside the blackhole
		"172.20.3.0/24": "", "172.20.0.0/16": "*", "172.16.0.0/12": "docker0", "172.18.0.0/15": "", "172.20.0.0/14": "*",
		"fd12:3::/64": "", "fd12::/16": "lo", "fd64:1:2::/80": "eth0", "fd64:1:3::/64": "",
	} {
		if r, found := conflictingRoute(routes, netip.MustParsePrefix(block)); found != (through != "") ||
			r.through != through {
			t.Errorf("%s: found %v, want a route through %q", block, r, through)
		}
	}
}

func TestABlockThatOverlapsTheDevicesNetworkIsFound(t *testing.T) {
	routes := append(parseRoutes(someRoutes), parseRoutes6(someRoutes6)...)
	if len(routes) != 7 {
		t.Fatalf("%d routes: %v", len(routes), routes)
	}
	for _, c := range []struct{ rule, block, through string }{
		{"the default route does not conflict", "198.18.0.0/24", ""},
		{"half of the internet, as VPNs route it, does not conflict", "203.0.113.0/24", ""},
		{"a block inside the LAN conflicts", "10.64.3.0/24", "eth0"},
		{"a block around another bridge conflicts", "172.16.0.0/15", "docker0"},
		{"a block outside the LAN does not conflict", "10.64.16.0/24", ""},
		{"an IPv6 block inside the LAN conflicts", "fd64:1:2::/80", "eth0"},
		{"an IPv6 block outside the LAN does not conflict", "fd64:1:3::/64", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			r, found := conflictingRoute(routes, netip.MustParsePrefix(c.block))
			if found != (c.through != "") || r.through != c.through {
				t.Errorf("%s: found %v, want a route through %q", c.block, r, c.through)
			}
		})
	}
}

// Podman creates the bridge of a network with the first container and removes it with the last. The
// bridge's own route is not a conflict.
func TestTheNetworksOwnRouteIsNotAConflict(t *testing.T) {
	block := netip.MustParsePrefix("10.64.3.0/24")
	for name, seen := range map[string][2]string{"the interface appears": {"", "podman7"},
		"the interface disappears": {"podman7", ""}, "the interface stays": {"podman7", "podman7"}} {
		calls := 0
		own := func() string { calls++; return seen[calls-1] }
		routes := func() []route { return []route{{to: block, through: "podman7"}} }
		if r, ok := conflictingRoute(notThrough(own, routes), block); ok {
			t.Errorf("%s: the network's own route to %s through %s counts as a conflict", name, r.to, r.through)
		}
		calls = 0
		if _, ok := conflictingRoute(notThrough(own, func() []route { return []route{{to: block, through: "wlan0"}} }),
			block); !ok {
			t.Errorf("%s: a route through wlan0 does not count as a conflict", name)
		}
	}
}
