package enginetest

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"strings"

	"flotilla.dev/device/engine"
)

// network describes a network of this case in the address range for benchmarks (RFC 2544). The case
// removes the network at its end.
func (k *kit) network(name string) engine.Network {
	key, value, _ := strings.Cut(k.label, "=")
	h := fnv.New32a()
	fmt.Fprint(h, os.Getpid(), value)
	sum := h.Sum32() &^ 0x10 // two adjacent blocks, one for each name
	if name != "" {
		sum |= 0x10
	}
	n := engine.Network{Name: "flotilla-test-" + value + name, Labels: map[string]string{key: value},
		CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(sum>>16&1), byte(sum >> 8), byte(sum) &^ 15}),
			28).String()}
	k.nets = append(k.nets, n)
	return n
}

// on starts a container on a network and returns it.
func (k *kit) on(n engine.Network) engine.Container {
	k.Helper()
	s := k.spec("wait")
	s.Network = n.Name
	return k.await(k.start(s), engine.Running)
}

// inside fails the case unless a container has an address of the network.
func (k *kit) inside(c engine.Container, n engine.Network) {
	k.Helper()
	ip, err := netip.ParseAddr(c.IP)
	if err != nil || !netip.MustParsePrefix(n.CIDR).Contains(ip) {
		k.Fatalf("the container's address is %q, want one of %s", c.IP, n.CIDR)
	}
}

// networkCases are the rules for networks.
var networkCases = []conformanceCase{
	{"containers on a network have its addresses, and ensuring it again changes nothing", func(k *kit) {
		n := k.network("")
		k.must(k.EnsureNetwork(k.ctx, n))
		first := k.on(n)
		k.must(k.EnsureNetwork(k.ctx, n))
		second := k.on(n)
		k.inside(first, n)
		k.inside(second, n)
		if k.look(first.ID).State != engine.Running || first.IP == second.IP {
			k.Fatalf("the containers are %+v and %+v, want two addresses of the network", k.look(first.ID), second)
		}
	}},
	{"concurrent calls for one network succeed", func(k *kit) {
		n := k.network("")
		errs := make(chan error, 8)
		for range cap(errs) {
			go func() { errs <- k.EnsureNetwork(k.ctx, n) }()
		}
		for range cap(errs) {
			k.must(<-errs)
		}
		k.inside(k.on(n), n)
	}},
	{"in a shared network only the owner has an address", func(k *kit) {
		n := k.network("")
		k.must(k.EnsureNetwork(k.ctx, n))
		owner := k.on(n)
		s := k.spec("wait")
		s.NetworkOf, s.Network = owner.ID, n.Name // only the owner names the network
		k.equal(k.look(k.start(s)).IP, "")
		k.inside(owner, n)
	}},
	{"an unused network gets new addresses", func(k *kit) {
		old, other := k.network(""), k.network("other")
		k.must(k.EnsureNetwork(k.ctx, old))
		other.Name = old.Name
		k.must(k.EnsureNetwork(k.ctx, other))
		k.inside(k.on(other), other)
	}},
	{"a network in use keeps its addresses and its containers, and cannot be removed", func(k *kit) {
		n, other := k.network(""), k.network("other")
		k.must(k.EnsureNetwork(k.ctx, n))
		c := k.on(n)
		other.Name = n.Name
		if err := k.EnsureNetwork(k.ctx, other); err == nil {
			k.Fatalf("the network got the addresses of another one: %s, %s", n.CIDR, other.CIDR)
		}
		if err := k.RemoveNetwork(k.ctx, n); err == nil {
			k.Fatal("a network in use was removed")
		}
		k.equal(k.look(c.ID).State, engine.Running)
		k.inside(k.on(n), n)
	}},
	{"a network without the labels is neither changed nor removed", func(k *kit) {
		n, other := k.network(""), k.network("other")
		k.must(k.EnsureNetwork(k.ctx, n))
		other.Name, other.Labels = n.Name, map[string]string{"flotilla.test/case": "another"}
		k.nets = k.nets[:1]
		if err := k.EnsureNetwork(k.ctx, other); err == nil || !strings.Contains(err.Error(), "another program") {
			k.Fatalf("changing a network without the labels: %v, want another program named", err)
		}
		if err := k.RemoveNetwork(k.ctx, other); err == nil || !strings.Contains(err.Error(), "another program") {
			k.Fatalf("removing a network without the labels: %v, want another program named", err)
		}
		k.inside(k.on(n), n)
	}},
	{"two networks cannot have the same addresses", func(k *kit) {
		n, other := k.network(""), k.network("other")
		k.must(k.EnsureNetwork(k.ctx, n))
		other.CIDR = n.CIDR
		if err := k.EnsureNetwork(k.ctx, other); err == nil {
			k.Fatal("two networks with the same addresses were created")
		}
	}},
	{"a network does not get the addresses of the engine's own network, used or not", func(k *kit) {
		c := k.await(k.start(k.spec("wait")), engine.Running)
		ip, err := netip.ParseAddr(c.IP)
		k.must(err)
		n := k.network("")
		n.CIDR = netip.PrefixFrom(ip, 24).Masked().String()
		for range 2 {
			if err := k.EnsureNetwork(k.ctx, n); err == nil {
				k.Fatalf("the network got the engine's own addresses %s", n.CIDR)
			}
			k.must(k.Remove(k.ctx, c.ID))
		}
	}},
	{"an invalid address range is an error", func(k *kit) {
		for _, cidr := range []string{"", "10.64.0.0", "10.64.0.1/24", "ten"} {
			if err := k.EnsureNetwork(k.ctx, engine.Network{Name: "flotilla-test-nothing", CIDR: cidr}); err == nil {
				k.Fatalf("the address range %q is accepted", cidr)
			}
		}
	}},
	{"a second removal of a network is not an error, and a container on a missing network is", func(k *kit) {
		n := k.network("")
		k.must(k.EnsureNetwork(k.ctx, n))
		k.must(k.RemoveNetwork(k.ctx, n))
		k.must(k.RemoveNetwork(k.ctx, n))
		s := k.spec("wait")
		s.Network = n.Name
		id, err := k.Create(k.ctx, s)
		if err == nil { // Docker reports a missing network only at the start
			k.ids = append(k.ids, id)
			err = k.Start(k.ctx, id)
		}
		if err == nil {
			k.Fatal("the container runs without its network")
		}
	}},
}
