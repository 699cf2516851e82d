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

// A device that moves to a LAN with its pods' addresses reports that, although its network exists
// already. When it is back, the network works again.
func TestRealEnginesSeeThatTheDeviceHasMoved(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		sum := time.Now().UnixNano()/1000 + int64(len(socket))
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(sum >> 4), byte(sum<<4) & 0xf0}), 28)
		n := engine.Network{Name: fmt.Sprintf("flotilla-moved-%d", sum), CIDR: block.String(), Labels: map[string]string{"flotilla.test/moved": "yes"}}
		t.Cleanup(func() {
			_ = e.RemoveNetwork(context.Background(), n)
			_ = e.Close()
		})
		for range 2 { // the network's own bridge does not count
			if err := e.EnsureNetwork(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		lan := fmt.Sprintf("lan%d", sum%1e6)
		if out, err := exec.Command("ip", "link", "add", lan, "type", "veth", "peer", "name", lan+"p").CombinedOutput(); err != nil {
			t.Skipf("this machine makes no interface: %s", out)
		}
		gone := func() { _ = exec.Command("ip", "link", "del", lan).Run() }
		t.Cleanup(gone)
		address := netip.PrefixFrom(block.Addr().Next().Next(), 28).String()
		for _, args := range [][]string{{"address", "add", address, "dev", lan}, {"link", "set", lan, "up"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %q: %s", args, out)
			}
		}
		if err := e.EnsureNetwork(t.Context(), n); err == nil || !strings.Contains(err.Error(), "through "+lan) {
			t.Errorf("on a network with its addresses: %v", err)
		}
		gone()
		if err := e.EnsureNetwork(t.Context(), n); err != nil {
			t.Errorf("away from it: %v", err)
		}
	})
}
