package line_test

import (
	"context"
	"net"
	"testing"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/line/linetest"
)

// Both ends' packets are small, whichever end limits them.
func TestPacketsAreSmallInBothDirections(t *testing.T) {
	plain := &net.ListenConfig{}
	for _, each := range []struct {
		name   string
		listen *net.ListenConfig
		dial   *net.Dialer
	}{
		{"the listener limits them", line.Listener(), &net.Dialer{}},
		{"the dialer limits them", plain, line.Dialer()},
		{"both ends limit them", line.Listener(), line.Dialer()},
	} {
		for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
			t.Run(each.name+" "+at, func(t *testing.T) {
				l, err := each.listen.Listen(context.Background(), "tcp", at)
				if err != nil {
					t.Skip(err) // the machine has no IPv6
				}
				defer l.Close()
				client, err := each.dial.DialContext(t.Context(), "tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				server, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer server.Close()
				for end, c := range map[string]net.Conn{"dialled": client, "accepted": server} {
					if size := linetest.Sends(t, c); size > line.Packet {
						t.Errorf("the %s connection sends packets of %d bytes, want at most %d", end, size, line.Packet)
					}
				}
			})
		}
	}
}
