package link

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"flotilla.dev/shared/line"
)

// A lease, the only packet at QoS 0, carries a ping in the same write.
func TestALeaseCarriesAPing(t *testing.T) {
	for _, tt := range []struct {
		name       string
		sent, want []byte
	}{
		{"a PUBLISH at QoS 0", []byte{0x30, 3, 0, 1, 'x'}, []byte{0x30, 3, 0, 1, 'x', 0xc0, 0}},
		{"a PUBLISH at QoS 1", []byte{0x32, 5, 0, 1, 'x', 0, 1}, []byte{0x32, 5, 0, 1, 'x', 0, 1}},
		{"a ping", []byte{0xc0, 0}, []byte{0xc0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			c := newConn(near, line.New(near, writeTimeout), new(atomic.Int64))
			go func() {
				buffer := append(make([]byte, 0, 64), tt.sent...)
				if n, err := c.Write(buffer); n != len(tt.sent) || err != nil {
					t.Errorf("wrote %d bytes of %d: %v", n, len(tt.sent), err)
				}
				if !bytes.Equal(buffer[:cap(buffer)][len(tt.sent):], make([]byte, cap(buffer)-len(tt.sent))) {
					t.Error("Write has written to the caller's buffer")
				}
				_ = c.Close()
			}()
			got, err := io.ReadAll(io.LimitReader(far, 64))
			if err != nil || !bytes.Equal(got, tt.want) {
				t.Errorf("sent %x, want %x: %v", got, tt.want, err)
			}
		})
	}
}
