package pipe

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// pair connects a device, and returns both ends.
func pair(t *testing.T, n *Net) (device, hub net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() { c, _ := n.Accept(); accepted <- c }()
	device, err := n.Dial(t.Context(), "pi-1")
	if err != nil {
		t.Fatal(err)
	}
	return device, <-accepted
}

func TestACutLinkBreaksBothEndsAndRefusesUntilHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		device, hub := pair(t, n)
		go func() { _, _ = device.Write([]byte("x")) }()
		if _, err := io.ReadFull(hub, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		n.Cut("pi-1")
		for _, c := range []net.Conn{device, hub} {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a read on a cut link succeeds")
			}
		}
		if _, err := n.Dial(t.Context(), "pi-1"); err == nil {
			t.Error("a dial on a cut link succeeds")
		}
		n.Heal("pi-1")
		pair(t, n)
	})
}

func TestAFrozenLinkLosesDataWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		device, hub := pair(t, n)
		n.Freeze("pi-1")
		if _, err := device.Write([]byte("x")); err != nil {
			t.Errorf("write: %v", err)
		}
		device.Close()
		if _, err := device.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read of the closed end: %v", err)
		}
		_ = hub.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := hub.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the hub was notified: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := n.Dial(ctx, "pi-1"); err == nil || time.Since(began) != time.Minute {
			t.Errorf("dial ended with %v after %s", err, time.Since(began))
		}
		n.Heal("pi-1")
		if _, err := hub.Write([]byte("x")); err == nil {
			t.Error("a connection that lost bytes stays open")
		}
	})
}

func TestAClosedListenerRefusesDials(t *testing.T) {
	n := New()
	n.Close()
	if _, err := n.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := n.Dial(t.Context(), "pi-1"); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
