package engine

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// A route is where the host sends what is for a range of addresses.
type route struct {
	to      netip.Prefix
	through string // name of the interface
	nowhere bool   // what is for them is refused or dropped, as far as no narrower route says where it is
}

// hostRoutes reads the host's routes; a system that does not tell has none.
func hostRoutes() []route {
	v4, _ := os.ReadFile("/proc/net/route")
	v6, _ := os.ReadFile("/proc/net/ipv6_route")
	return append(parseRoutes(string(v4)), parseRoutes6(string(v6))...)
}

// leastRoute: a route to more addresses than this leads to the world at large (the default route,
// or the two halves of the world that some VPNs write instead) and not to neighbours.
const leastRoute = 8

// inTheWay finds a route to something that is not the world at large and overlaps a block. One that
// leads nowhere, by which a site keeps what is for private addresses from leaving it, makes way for
// a narrower block.
func inTheWay(routes []route, block netip.Prefix) (route, bool) {
	for _, r := range routes {
		if r.nowhere && r.to.Bits() < block.Bits() {
			continue
		}
		if r.to.Bits() >= leastRoute && r.to.Overlaps(block) {
			return r, true
		}
	}
	return route{}, false
}

// interfaceOf is the name of the interface that has an address, such as the bridge of a network;
// empty: none has, or it is no bridge.
func interfaceOf(address netip.Addr) string {
	links, _ := net.Interfaces()
	for _, link := range links {
		if _, err := os.Stat("/sys/class/net/" + link.Name + "/bridge"); err != nil {
			continue
		}
		all, _ := link.Addrs()
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == address {
				return link.Name
			}
		}
	}
	return ""
}

// parseRoutes reads /proc/net/route: addresses are in hexadecimal digits as the processor keeps
// them, which is the other way round on all that we run on.
func parseRoutes(text string) (routes []route) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		to, err := strconv.ParseUint(f[1], 16, 32)
		mask, err2 := strconv.ParseUint(f[7], 16, 32)
		if err != nil || err2 != nil {
			continue // the heading
		}
		var a [4]byte
		binary.LittleEndian.PutUint32(a[:], uint32(to))
		routes = append(routes, route{netip.PrefixFrom(netip.AddrFrom4(a), bits.OnesCount32(uint32(mask))), f[0],
			f[0] == "*"})
	}
	return routes
}

// RTF_REJECT, which routes of IPv4 that drop do not have; those lead to no interface, which is "*"
const rejects = 0x200

// parseRoutes6 reads /proc/net/ipv6_route.
func parseRoutes6(text string) (routes []route) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		to, err := hex.DecodeString(f[0])
		length, err2 := strconv.ParseUint(f[1], 16, 8)
		if err != nil || err2 != nil || len(to) != 16 || length > 128 {
			continue
		}
		flags, _ := strconv.ParseUint(f[8], 16, 32)
		routes = append(routes, route{netip.PrefixFrom(netip.AddrFrom16([16]byte(to)), int(length)), f[len(f)-1],
			flags&rejects != 0})
	}
	return routes
}
