package listen

import (
	"net"
	"net/netip"
)

// Advertised returns the address and the port at which others reach a listener: the address that was
// configured, the one that it is bound to, or else the machine's first.
func Advertised(configured string, at net.Addr, machine []string) (address string, port int32) {
	bound, err := netip.ParseAddrPort(at.String())
	if err != nil { // a pipe in a test
		return "", 0
	}
	port = int32(bound.Port())
	if a, err := netip.ParseAddr(configured); err == nil {
		return a.Unmap().String(), port
	}
	if a := bound.Addr().Unmap(); !a.IsUnspecified() {
		return a.WithZone("").String(), port
	}
	if own := OwnAddress(machine); own.IsValid() {
		return own.String(), port
	}
	return "127.0.0.1", port
}

// OwnAddress returns the one of a machine's names at which others reach it: its first IPv4 address, or
// IPv6 where it has none; not valid where it has no address yet.
func OwnAddress(names []string) (own netip.Addr) {
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil || a.IsLoopback() {
			continue
		}
		if a.Is4() {
			return a
		}
		if !own.IsValid() {
			own = a
		}
	}
	return own
}
