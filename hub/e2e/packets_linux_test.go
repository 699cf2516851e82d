package e2e

import (
	"net"
	"slices"
	"testing"

	lines "flotilla.dev/shared/line"
	"flotilla.dev/shared/line/linetest"
)

// A tunnel or a mobile line may drop large packets silently. A browser, kubectl and an older device
// can still connect, because the hub announces and sends small packets.
func TestALineThatLosesLargePackets(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	mqtt := h.args[slices.Index(h.args, "--mqtt-listen")+1]
	for name, address := range map[string]string{"HTTPS": h.https, "MQTT": mqtt, "the development listener": h.dev} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if size := linetest.Sends(t, c); size > lines.Packet {
			t.Errorf("%s sends packets of %d bytes, want at most %d", name, size, lines.Packet)
		}
	}
}
