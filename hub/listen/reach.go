package listen

import (
	"net"
	"net/netip"
)

// Advertised returns the address and port under which clients reach a listener: the configured
// address, otherwise the bound one, otherwise the machine's first.
func Advertised(configured string, at net.Addr, machine []string) (address string, port int32) {
	bound, err := netip.ParseAddrPort(at.String())
	if err != nil { // the pipe of a test has no port
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

// OwnAddress returns the first IPv4 address among a machine's names, otherwise its first IPv6
// address. It is invalid if there is neither.
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
