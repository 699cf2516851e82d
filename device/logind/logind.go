// Package logind delays the shutdown of a device until its pods have ended, by an inhibitor lock of
// systemd-logind. It speaks D-Bus by itself, as much as that takes.
package logind

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"
)

// Socket is where D-Bus' system bus listens.
const Socket = "/run/dbus/system_bus_socket"

const (
	name    = "org.freedesktop.login1"
	path    = "/org/freedesktop/login1"
	manager = "org.freedesktop.login1.Manager"
)

// A Lock keeps the device from going down, for as long as logind lets it.
type Lock struct {
	bus  *bus
	file *os.File
	Most time.Duration // InhibitDelayMaxSec= of logind.conf
	Down bool          // the device was about to go down already
}

// Take takes the lock.
func Take(ctx context.Context, socket, why string) (*Lock, error) {
	b, err := dial(socket)
	if err != nil {
		return nil, err
	}
	l := &Lock{bus: b}
	if err := l.take(why); err != nil {
		_ = l.Close() // err is the cause
		return nil, fmt.Errorf("take systemd-logind's shutdown lock: %w", err)
	}
	return l, nil
}

func (l *Lock) take(why string) error {
	rule := "type='signal',sender='" + name + "',interface='" + manager + "',member='PrepareForShutdown'"
	if _, err := l.bus.ask("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch",
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
	if _, err = l.bus.ask(name, path, manager, "Inhibit", "shutdown", "flotilla-device", why, "delay"); err != nil {
		return err
	}
	if len(l.bus.files) != 1 {
		return errBroken
	}
	l.file, l.bus.files = l.bus.files[0], nil
	return nil
}

// property asks a property, whose value comes as a variant: its type, and itself in so many bytes.
func (l *Lock) property(of, kind string, size int) ([]byte, error) {
	m, err := l.bus.ask(name, path, "org.freedesktop.DBus.Properties", "Get", manager, of)
	if err == nil && (len(m.body) != size || string(m.body[:len(kind)]) != kind) {
		err = errBroken
	}
	return m.body, err
}

// Wait waits until the device is about to go down (true), or will not after all. An error is that
// logind is gone, or ctx.
func (l *Lock) Wait(ctx context.Context) (down bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = l.bus.conn.Close() })
	defer stop()
	for {
		m, err := l.bus.hear()
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

// Release lets the device go down.
func (l *Lock) Release() error {
	f := l.file
	if l.file = nil; f == nil {
		return nil
	}
	return f.Close()
}

// Close releases the lock and leaves the bus.
func (l *Lock) Close() error {
	err := l.Release()
	if e := l.bus.close(); err == nil {
		err = e
	}
	return err
}
