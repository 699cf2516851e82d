package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A client that connects between two servers waits for the second server.
func TestAnAcceptorStaysOpenBetweenTwoServers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := newAcceptor(l)
	defer a.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ctx, stop := context.WithCancel(t.Context())
	refused := make(chan error, 1)
	go func() { refused <- a.refuse(ctx) }()
	if _, err := dial().Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("refuse must close the connection: %v", err)
	}
	stop()
	if err := <-refused; err != nil {
		t.Fatal(err)
	}
	between := dial()
	second := a.open()
	c, err := second.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := between.Read(make([]byte, 1)); err != nil {
		t.Errorf("a client that connected between the servers was not served: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed slot: %v", err)
	}
	third := a.open()
	_ = a.Close()
	if _, err := third.Accept(); err == nil {
		t.Error("a slot must end with its acceptor")
	}
}

// A closed port accepts no client, and its server ends without an error.
func TestAClosedAcceptorIsNotAnErrorOfItsServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := newAcceptor(l)
	defer a.Close()
	waiting, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	a.end()
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a closed port accepts connections")
	}
	if _, err := waiting.Read(make([]byte, 1)); err == nil {
		t.Error("the waiting client's connection is not closed")
	}
	slot := a.open()
	accepted := make(chan error, 1)
	go func() {
		_, err := slot.Accept()
		accepted <- err
	}()
	select {
	case err := <-accepted:
		t.Errorf("the server returned %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = slot.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
