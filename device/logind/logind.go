// Package logind delays the device's shutdown until its pods have ended, with an inhibitor lock of
// systemd-logind over D-Bus.
//
// It never starts a shutdown and stops no pod. Package cli takes the lock and makes the agent stop
// the pods.
package logind

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"
)

// Socket is the socket of the D-Bus system bus.
const Socket = "/run/dbus/system_bus_socket"

const (
	name    = "org.freedesktop.login1"
	path    = "/org/freedesktop/login1"
	manager = "org.freedesktop.login1.Manager"
)

// A Lock delays the shutdown for as long as logind allows.
type Lock struct {
	bus  *bus
	file *os.File
	Most time.Duration // InhibitDelayMaxSec= of logind.conf
	Down bool          // a shutdown had already begun
}

// Take takes the lock.
func Take(ctx context.Context, socket, why string) (*Lock, error) {
	b, err := dial(socket)
	if err != nil {
		return nil, err
	}
	l := &Lock{bus: b}
	if err := l.take(why); err != nil {
		_ = l.Close() // report err instead
		return nil, fmt.Errorf("take systemd-logind's shutdown lock: %w", err)
	}
	return l, nil
}

func (l *Lock) take(why string) error {
	rule := "type='signal',sender='" + name + "',interface='" + manager + "',member='PrepareForShutdown'"
	if _, err := l.bus.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch",
		rule); err != nil {
		return err
	}
	most, err := l.property("InhibitDelayMaxUSec", "\x01t\x00\x00", 16)
	if err != nil {
		return err
	}
	l.Most = time.Duration(min(binary.LittleEndian.Uint64(most[8:]),
		uint64(24*time.Hour/time.Microsecond))) * time.Microsecond
	down, err := l.property("PreparingForShutdown", "\x01b\x00\x00", 8)
	if err != nil {
		return err
	}
	l.Down = down[4] != 0
	if _, err = l.bus.call(name, path, manager, "Inhibit", "shutdown", "flotilla-device", why, "delay"); err != nil {
		return err
	}
	if len(l.bus.files) != 1 {
		return errBroken
	}
	l.file, l.bus.files = l.bus.files[0], nil
	return nil
}

// property reads a property: a variant that contains its type and size bytes.
func (l *Lock) property(of, kind string, size int) ([]byte, error) {
	m, err := l.bus.call(name, path, "org.freedesktop.DBus.Properties", "Get", manager, of)
	if err == nil && (len(m.body) != size || string(m.body[:len(kind)]) != kind) {
		err = errBroken
	}
	return m.body, err
}

// Wait waits until a shutdown begins (true) or is cancelled (false). An error means that logind is
// gone or that ctx has ended.
func (l *Lock) Wait(ctx context.Context) (down bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = l.bus.conn.Close() })
	defer stop()
	for {
		m, err := l.bus.signal()
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil:
			return false, fmt.Errorf("wait for systemd-logind: %w", err)
		case m.member == "PrepareForShutdown" && m.signature == "b" && len(m.body) == 4:
			return m.body[0] != 0, nil
		}
	}
}

// Release allows the shutdown to continue.
func (l *Lock) Release() error {
	f := l.file
	if l.file = nil; f == nil {
		return nil
	}
	return f.Close()
}

// Close releases the lock and closes the connection.
func (l *Lock) Close() error {
	err := l.Release()
	if e := l.bus.close(); err == nil {
		err = e
	}
	return err
}
