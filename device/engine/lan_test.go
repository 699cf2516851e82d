package engine_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/engine"
)

// If a device moves to a LAN that uses its pods' addresses, EnsureNetwork reports that, although
// the network already exists. When the device is back, the network works again.
func TestRealEnginesNoticeAConflictingLAN(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		sum := time.Now().UnixNano()/1000 + int64(len(socket))
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(sum >> 4), byte(sum<<4) & 0xf0}), 28)
		n := engine.Network{
			Name:   fmt.Sprintf("flotilla-moved-%d", sum),
			CIDR:   block.String(),
			Labels: map[string]string{"flotilla.test/moved": "yes"},
		}
		t.Cleanup(func() {
			_ = e.RemoveNetwork(context.Background(), n)
			_ = e.Close()
		})
		for range 2 { // the second round finds the network's own bridge, which does not count
			if err := e.EnsureNetwork(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		lan := fmt.Sprintf("lan%d", sum%1e6)
		if out, err := exec.Command("ip", "link", "add", lan, "type", "veth", "peer", "name",
			lan+"p").CombinedOutput(); err != nil {
			t.Skipf("cannot create a network interface here: %s", out)
		}
		removeLAN := func() { _ = exec.Command("ip", "link", "del", lan).Run() }
		t.Cleanup(removeLAN)
		address := netip.PrefixFrom(block.Addr().Next().Next(), 28).String()
		for _, args := range [][]string{{"address", "add", address, "dev", lan}, {"link", "set", lan, "up"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %q: %s", args, out)
			}
		}
		if err := e.EnsureNetwork(t.Context(), n); err == nil || !strings.Contains(err.Error(), "through "+lan) {
			t.Errorf("in a LAN with the network's addresses: got %v, want a conflict through %s", err, lan)
		}
		removeLAN()
		if err := e.EnsureNetwork(t.Context(), n); err != nil {
			t.Errorf("after the device has left that LAN: %v", err)
		}
	})
}
