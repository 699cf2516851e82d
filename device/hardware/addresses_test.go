package hardware

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestTheChosenAddressIsTheNodesAddress(t *testing.T) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		list, problems := addresses(treeOf(Options{}), Options{NodeIPs: []netip.Addr{p.Addr()}}, "pi")
		if len(list) != 2 || list[0].Address != p.Addr().String() || len(problems) > 0 {
			t.Errorf("with --node-ip %s the addresses are %v, the problems %v", p.Addr(), list, problems)
		}
	}
	other := netip.MustParseAddr("192.0.2.77") // an address for documentation, which is never in use
	list, problems := addresses(treeOf(Options{}), Options{NodeIPs: []netip.Addr{other}}, "pi")
	if len(list) != 1 || len(problems) != 1 || !strings.Contains(problems[0], "192.0.2.77") {
		t.Errorf("an address that this device does not have: addresses %v, problems %v; want only the host name and one problem", list, problems)
	}
}
