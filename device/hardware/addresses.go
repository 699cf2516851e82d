package hardware

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// addresses returns the node's addresses: at most one InternalIP of each family, then the
// configured external addresses and the host name. The InternalIPs come from the chosen interface,
// else from the interface of the default route, else from the first physical interface that is up.
func addresses(t tree, o Options, hostname string) (list []corev1.NodeAddress, problems []string) {
	if t.real() {
		ips, err := interfaceIPs(t, o.Interface)
		if len(o.NodeIPs) > 0 {
			ips, err = present(o.NodeIPs)
		}
		if err != nil {
			problems = append(problems, err.Error())
		}
		for _, ip := range pick(ips) {
			list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
	}
	for _, ip := range o.ExternalIPs {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip.String()})
	}
	if hostname != "" {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeHostName, Address: hostname})
	}
	return list, problems
}

func interfaceIPs(t tree, chosen string) ([]netip.Addr, error) {
	name := chosen
	if name == "" {
		name = defaultRoute(t)
	}
	if name != "" {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("find the network interface %s: %w", name, err)
		}
		return ipsOf(*i)
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces: %w", err)
	}
	for _, i := range all {
		// Bridges and virtual interfaces of containers have no device directory.
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || !t.exists("/sys/class/net/"+i.Name+"/device") {
			continue
		}
		if ips, err := ipsOf(i); err == nil && len(pick(ips)) > 0 {
			return ips, nil
		}
	}
	return nil, nil
}

// ParseAddresses parses a flag with addresses of this device: at most one of IPv4 and one of IPv6.
func ParseAddresses(flag []string) (ips []netip.Addr, err error) {
	for _, text := range flag {
		ip, err := netip.ParseAddr(strings.TrimSpace(text))
		if ip = ip.Unmap(); err != nil || !ip.IsGlobalUnicast() || ip.Zone() != "" {
			return nil, fmt.Errorf("%q cannot be an address of this device: write it without a port or a "+
				"prefix, such as 192.168.1.17", text)
		}
		ips = append(ips, ip)
	}
	if len(pick(ips)) != len(ips) {
		return nil, fmt.Errorf("%s are two addresses of one family: write at most one of IPv4 and one of IPv6",
			strings.Join(flag, ", "))
	}
	return ips, nil
}

// present returns those of the chosen addresses that this device has now.
func present(chosen []netip.Addr) (have []netip.Addr, err error) {
	here, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this device: %w", err)
	}
	for _, ip := range chosen {
		if slices.ContainsFunc(here, func(a net.Addr) bool { return strings.HasPrefix(a.String(), ip.String()+"/") }) {
			have = append(have, ip)
		} else {
			err = fmt.Errorf("no network interface has the address %s of --node-ip", ip)
		}
	}
	return have, err
}

func ipsOf(i net.Interface) ([]netip.Addr, error) {
	addrs, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of %s: %w", i.Name, err)
	}
	var ips []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			ips = append(ips, p.Addr().Unmap())
		}
	}
	return ips, nil
}

// pick returns the first usable address of each family, IPv4 first. Link-local and loopback
// addresses are left out, because other sites cannot reach them.
func pick(ips []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		i := slices.IndexFunc(ips, func(a netip.Addr) bool { return is(a) && a.IsGlobalUnicast() })
		if i >= 0 {
			out = append(out, ips[i])
		}
	}
	return out
}

// defaultRoute returns the interface of the default route with the lowest metric, of IPv4 or else
// of IPv6; "" without a default route.
func defaultRoute(t tree) string {
	var name string
	best := ""
	if b, err := t.read("/proc/net/route"); err == nil {
		for line := range strings.Lines(string(b)) { // Iface Destination Gateway Flags RefCnt Use Metric Mask …
			f := strings.Fields(line)
			if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" || f[0] == "*" { // interface *: the route rejects or drops
				continue
			}
			metric := fmt.Sprintf("%10s", f[6]) // decimal, padded so that the text sorts as a number
			if name == "" || metric < best {
				name, best = f[0], metric
			}
		}
	}
	if name != "" {
		return name
	}
	if b, err := t.read("/proc/net/ipv6_route"); err == nil {
		for line := range strings.Lines(string(b)) { // dest prefix src prefix nexthop metric … iface
			f := strings.Fields(line)
			if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" || f[9] == "lo" {
				continue
			}
			if name == "" || f[5] < best { // the metric is hexadecimal and padded
				name, best = f[9], f[5]
			}
		}
	}
	return name
}
