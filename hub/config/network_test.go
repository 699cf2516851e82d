package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestBlocksAndInventory(t *testing.T) {
	c, _, err := load(t, nil, nil)
	if err != nil || !c.AllocateNodeCIDRs || c.ClusterCIDR != netip.MustParsePrefix("10.64.0.0/12") ||
		c.NodeCIDRMaskSize != 24 || c.Inventory != "" {
		t.Fatalf("the default configuration is %+v, %v", c, err)
	}
	for _, c := range []struct{ rule, args, wrong string }{
		{"an IPv6 range", "--cluster-cidr=fd64::/48 --node-cidr-mask-size=64", ""},
		{"the smallest block", "--node-cidr-mask-size=29", ""},
		{"a range of one block", "--cluster-cidr=10.64.0.0/24", ""},
		{"a file", "--inventory=/etc/flotilla/machines.yaml", ""},
		{"a page", "--inventory=https://machines.example.org/list", ""},
		{"not a range", "--cluster-cidr=10.64.0.0", "write an address and a prefix length"},
		{"an address that is not the first of its range", "--cluster-cidr=10.64.0.1/12", "write 10.64.0.0/12"},
		{"a block larger than the range", "--cluster-cidr=10.64.0.0/26", "write 26 to 29"},
		{"a block without addresses for pods", "--node-cidr-mask-size=30", "write 12 to 29"},
		{"any block size without allocation", "--node-cidr-mask-size=30 --allocate-node-cidrs=false", ""},
		{"too many blocks", "--cluster-cidr=fd64::/32 --node-cidr-mask-size=64", "write 52 or less"},
		{"the loopback range", "--cluster-cidr=127.0.0.0/12", "127.0.0.0/8 is for the machine itself"},
		{"an inventory URL without TLS", "--inventory=http://machines.example.org/list", "such as https://machines.example.org/list.yaml"},
		{"Kubernetes' setting for one address family", "--node-cidr-mask-size-ipv4=24", "there is one node-cidr-mask-size"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			_, _, err := load(t, strings.Fields(c.args), nil)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
		})
	}
}
