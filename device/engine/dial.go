package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dial enters the container's network. If the agent lacks the permission, Dial connects to the
// container's address from outside. That cannot reach listeners on 127.0.0.1, and the error says
// so.
func (a *api) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	what := fmt.Sprintf("connect to port %d of container", port)
	found, err := a.look(ctx, id)
	if err != nil {
		return nil, explain(err, what, id)
	}
	c := found.Container
	if c.State == nil || c.Config == nil || !c.State.Running {
		return nil, fmt.Errorf("%s %s: it does not run", what, id)
	}
	conn, err := dialInside(ctx, c.State.Pid, c.ID, port)
	if err == nil {
		return conn, nil
	}
	if !errors.Is(err, errOutside) {
		return nil, refused(err, what, id, port)
	}
	why := err
	address := "127.0.0.1"
	if c.HostConfig == nil || !c.HostConfig.NetworkMode.IsHost() {
		if address, err = a.addressOf(ctx, id); err != nil {
			return nil, err
		}
	}
	conn, err = new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("%w; connecting from outside to %s, which cannot reach listeners on 127.0.0.1, failed: "+
			"%w", refused(err, what, id, port), address, why)
	}
	return conn, nil
}

// addressOf returns the address of a container, or of the container whose network it shares.
func (a *api) addressOf(ctx context.Context, id string) (string, error) {
	for range 2 {
		found, err := a.look(ctx, id)
		if err != nil {
			return "", explain(err, "look at container", id)
		}
		if h := found.Container.HostConfig; h != nil && h.NetworkMode.IsContainer() {
			id = h.NetworkMode.ConnectedContainer()
			continue
		}
		if ip := view(found.Container).IP; ip != "" {
			return ip, nil
		}
	}
	return "", fmt.Errorf("look at container %s: it has no address", id)
}

// refused describes an error of connecting to a port.
func refused(err error, what, id string, port int) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("connection refused: nothing listens on port %d", port)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer from port %d", port)
	}
	return fmt.Errorf("%s %s: %w", what, id, err)
}

// errOutside means that the agent cannot enter the network of a container.
var errOutside = errors.New(
	"the agent may not enter the container's network (it must run as root, outside of containers)")

// dialInside dials a loopback port in the network namespace of a process, IPv4 first.
func dialInside(ctx context.Context, pid int, containerID string, port int) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go onItsOwnThread(func() {
		var r result
		if r.err = enter(pid, containerID); r.err == nil {
			var d net.Dialer
			r.conn, r.err = d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if r.err != nil && ctx.Err() == nil {
				if conn, err := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err == nil {
					r = result{conn, nil}
				}
			}
		}
		done <- r
	})
	r := <-done
	return r.conn, r.err
}

// onItsOwnThread calls do on a thread that ends afterwards, so that no other goroutine runs in the
// container's network. It never uses the first thread of the process, which cannot end:
// /proc/self/net would then show the container's network.
func onItsOwnThread(do func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		do() // the thread is never unlocked, so it ends with the goroutine
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		do()
	}()
	<-done
}

// enter moves the calling thread into the network of a process if that process belongs to the
// container.
func enter(pid int, containerID string) error {
	if pid <= 1 {
		return errOutside
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("%w: %w", errOutside, err)
	}
	defer f.Close()
	if !belongs(pid, containerID) {
		return fmt.Errorf("%w: its process %d is not visible to the agent", errOutside, pid)
	}
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: %w", errOutside, err)
	}
	return nil
}
