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

// A route is an entry of the host's routing table.
type route struct {
	to      netip.Prefix
	through string // name of the interface
	nowhere bool   // it rejects or drops packets that have no narrower route
}

// hostRoutes reads the host's routes; it returns none if they cannot be read.
func hostRoutes() []route {
	v4, _ := os.ReadFile("/proc/net/route")
	v6, _ := os.ReadFile("/proc/net/ipv6_route")
	return append(parseRoutes(string(v4)), parseRoutes6(string(v6))...)
}

// leastRoute is the shortest prefix that counts. A shorter one leads to the internet, not to
// neighbours: the default route, or two halves of it from some VPNs.
const leastRoute = 8

// conflictingRoute returns a route that overlaps a block and does not lead to the internet. A
// rejecting route around the block is not a conflict: sites use such routes to keep packets for
// private addresses inside.
func conflictingRoute(routes []route, block netip.Prefix) (route, bool) {
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

// interfaceOf returns the bridge interface that has an address, or "".
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

// parseRoutes reads /proc/net/route. Its addresses are hexadecimal in the processor's byte order,
// which is little-endian on all platforms of the agent.
func parseRoutes(text string) (routes []route) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		to, err := strconv.ParseUint(f[1], 16, 32)
		mask, err2 := strconv.ParseUint(f[7], 16, 32)
		if err != nil || err2 != nil {
			continue // the header line
		}
		var a [4]byte
		binary.LittleEndian.PutUint32(a[:], uint32(to))
		routes = append(routes, route{netip.PrefixFrom(netip.AddrFrom4(a), bits.OnesCount32(uint32(mask))), f[0],
			f[0] == "*"})
	}
	return routes
}

// rejects is RTF_REJECT. IPv4 routes that drop packets do not have the flag; their interface is
// "*".
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
