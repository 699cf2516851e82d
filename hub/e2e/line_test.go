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

// A line stands between a device and its hub, or between an agent and its engine,
// and can be spoilt in either direction.
type line struct {
	l  net.Listener
	to string // address of what is at its other end

	mu       sync.Mutex
	up, down flow // from the caller to the called, and back
	cut      bool // callers are hung up on
	pace     int  // bytes a second, either way; 0: as fast as it goes
	conns    []net.Conn

	said, heard atomic.Int64 // bytes, by the caller and by the called
}

// A flow is what becomes of what goes one way.
type flow int

const (
	passes flow = iota
	lost        // taken, and never handed on: a dead radio behind a living router
	stands      // not taken: the sender's buffers fill up
)

// newLine listens on a loopback address, or on a socket where that is what to names.
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
		go n.carry(called, caller, pace, &n.said, func() flow { return n.up })
		go n.carry(caller, called, pace, &n.heard, func() flow { return n.down })
	}
}

// carry hands on what comes, as long as that is what the line does.
func (n *line) carry(to, from net.Conn, pace int, count *atomic.Int64, how func() flow) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 16<<10)
	var free time.Time // when what was taken before is over the line
	if from, ok := from.(*net.TCPConn); ok && pace > 0 {
		buf = buf[:min(pace/4, len(buf))]
		_ = from.SetReadBuffer(len(buf)) // what does not fit waits with who sends it
	}
	now := func() flow {
		n.mu.Lock()
		defer n.mu.Unlock()
		return how()
	}
	for {
		if now() == stands {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		_ = from.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // to look how it is now
		k, err := from.Read(buf)
		for now() == stands { // it came too late to pass
			time.Sleep(20 * time.Millisecond)
		}
		if k > 0 && now() == passes {
			if pace > 0 { // a machine that wakes us late makes the line no slower
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
			for now() != passes { // that it ended is lost as well
				time.Sleep(20 * time.Millisecond)
			}
			return
		}
	}
}

// set says what becomes of either direction from now on, and hangs up on everybody
// where it is cut.
func (n *line) set(up, down flow, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up, n.down, n.cut = up, down, cut
	if !cut {
		return
	}
	for _, c := range n.conns {
		if c, ok := c.(*net.TCPConn); ok {
			_ = c.SetLinger(0) // a reset
		}
		_ = c.Close()
	}
	n.conns = nil
}

func (n *line) heal() { n.set(passes, passes, false) }

// over lets a device reach its hub over a line.
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

// same fails unless an engine has exactly the containers that it had.
func (e *engine) same(t testing.TB, node string, before []container, after string) {
	t.Helper()
	now, err := e.containers(node)
	if err != nil || !slices.Equal(before, now) {
		t.Errorf("after %s the containers are\n%v, before they were\n%v (%v)", after, now, before, err)
	}
}

// long leaves a test to make faults.
func long(t testing.TB) {
	t.Helper()
	if !alone() {
		t.Skip("takes minutes: make faults runs it")
	}
}

// alone is whether the processors are this test's, as make faults leaves them: only then
// is how long something takes the program's own doing.
func alone() bool { return os.Getenv("FAULTS") != "" }

// seen is what the table of make faults shows.
func seen(t testing.TB, what string) {
	t.Helper()
	t.Attr("seen", what)
	t.Log(what)
}
