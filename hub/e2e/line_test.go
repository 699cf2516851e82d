package e2e

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A line is a proxy between a device and its hub, or between an agent and its engine. Each
// direction can fail.
type line struct {
	l  net.Listener
	to string // address that the line connects to

	mu       sync.Mutex
	up, down flow // flow from the caller, and flow to it
	cut      bool // whether connections are reset
	pace     int  // bytes per second in each direction; 0 for no limit
	conns    []net.Conn

	sent, received atomic.Int64 // bytes from the caller, and bytes to it
}

// A flow says what happens to the bytes of one direction.
type flow int

const (
	passes flow = iota
	drops       // bytes are read and dropped, as by a router without an uplink
	blocks      // bytes are not read, and the sender's buffers fill up
)

// newLine listens on a loopback address, or on a socket if to is a path.
func newLine(t testing.TB, to string) *line {
	t.Helper()
	n := &line{to: to}
	var err error
	if filepath.IsAbs(to) {
		n.l, err = net.Listen("unix", filepath.Join(t.TempDir(), "line.sock"))
	} else {
		n.l, err = net.Listen("tcp", freePort(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	go n.serve()
	t.Cleanup(func() {
		_ = n.l.Close()
		n.set(passes, passes, true)
	})
	return n
}

func (n *line) addr() string { return n.l.Addr().String() }

func (n *line) serve() {
	for {
		caller, err := n.l.Accept()
		if err != nil {
			return
		}
		n.mu.Lock()
		cut := n.cut
		n.mu.Unlock()
		if cut {
			_ = caller.Close()
			continue
		}
		called, err := net.Dial(n.l.Addr().Network(), n.to)
		if err != nil {
			_ = caller.Close()
			continue
		}
		n.mu.Lock()
		n.conns = append(n.conns, caller, called)
		pace := n.pace
		n.mu.Unlock()
		go n.carry(called, caller, pace, &n.sent, func() flow { return n.up })
		go n.carry(caller, called, pace, &n.received, func() flow { return n.down })
	}
}

// carry forwards bytes while the flow is passes.
func (n *line) carry(to, from net.Conn, pace int, count *atomic.Int64, how func() flow) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 16<<10)
	var free time.Time // when the line has transmitted the bytes before
	if from, ok := from.(*net.TCPConn); ok && pace > 0 {
		buf = buf[:min(pace/4, len(buf))]
		_ = from.SetReadBuffer(len(buf)) // more bytes wait at the sender
	}
	now := func() flow {
		n.mu.Lock()
		defer n.mu.Unlock()
		return how()
	}
	for {
		if now() == blocks {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		_ = from.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // wake up to check the flow again
		k, err := from.Read(buf)
		for now() == blocks { // the flow stopped after the read
			time.Sleep(20 * time.Millisecond)
		}
		if k > 0 && now() == passes {
			if pace > 0 { // a late wake-up must not make the line slower
				if late := time.Now().Add(-time.Second); free.Before(late) {
					free = late
				}
				free = free.Add(time.Duration(k) * time.Second / time.Duration(pace))
				time.Sleep(time.Until(free))
			}
			count.Add(int64(k))
			if _, err := to.Write(buf[:k]); err != nil {
				return
			}
		}
		if t, ok := err.(net.Error); ok && t.Timeout() {
			continue
		}
		if err != nil {
			for now() != passes { // a flow that drops or blocks bytes also hides the connection's end
				time.Sleep(20 * time.Millisecond)
			}
			return
		}
	}
}

// set changes both flows, and resets all connections if cut is true.
func (n *line) set(up, down flow, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up, n.down, n.cut = up, down, cut
	if !cut {
		return
	}
	for _, c := range n.conns {
		if c, ok := c.(*net.TCPConn); ok {
			_ = c.SetLinger(0) // Close sends a reset
		}
		_ = c.Close()
	}
	n.conns = nil
}

func (n *line) heal() { n.set(passes, passes, false) }

// over puts a line between a device and its hub.
func (d *device) over(t testing.TB) *line {
	t.Helper()
	file := filepath.Join(d.dir, "identity.json")
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var identity map[string]any
	if err := json.Unmarshal(body, &identity); err != nil {
		t.Fatal(err)
	}
	n := newLine(t, identity["mqttAddress"].(string))
	identity["mqttAddress"] = n.addr()
	if body, err = json.Marshal(identity); err == nil {
		err = os.WriteFile(file, body, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// same fails unless an engine has exactly the containers that it had before.
func (e *engine) same(t testing.TB, node string, before []container, after string) {
	t.Helper()
	now, err := e.containers(node)
	if err != nil || !slices.Equal(before, now) {
		t.Errorf("containers after %s:\n%v\nbefore:\n%v (%v)", after, now, before, err)
	}
}

// long skips a test unless make faults runs it.
func long(t testing.TB) {
	t.Helper()
	if !alone() {
		t.Skip("takes minutes: make faults runs it")
	}
}

// alone reports whether no other tests run, as under make faults. Otherwise a duration also
// measures the other tests.
func alone() bool { return os.Getenv("FAULTS") != "" }

// seen prints a result for the table of make faults.
func seen(t testing.TB, what string) {
	t.Helper()
	t.Attr("seen", what)
	t.Log(what)
}
