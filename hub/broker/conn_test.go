package broker

import (
	"net"
	"testing"
	"time"

	"flotilla.dev/shared/line"
)

// noted is a connection that accepts everything and records its write deadline.
type noted struct {
	net.Conn
	set      int
	deadline time.Time
}

func (n *noted) Write(p []byte) (int, error) { return len(p), nil }
func (n *noted) SetWriteDeadline(until time.Time) error {
	n.set, n.deadline = n.set+1, until
	return nil
}

// A deadline that stays set wakes the process when it passes, which costs more than the write.
func TestAWriteLeavesNoDeadlineBehind(t *testing.T) {
	n := &noted{}
	raw := line.New(n, writeTimeout)
	c := &conn{Conn: raw, raw: raw, stats: &counters{}}
	if _, err := c.Write(pingresp); err != nil {
		t.Fatal(err)
	}
	if n.set < 2 || !n.deadline.IsZero() {
		t.Errorf("%d deadlines were set, the last is %v", n.set, n.deadline)
	}
}
