package hardware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls changed whenever hardware of a Device is plugged in or out, until ctx ends. The
// kernel broadcasts such events, and udev repeats them with its own names. After Watch has returned
// an error, the caller must poll.
func Watch(ctx context.Context, changed func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("listen for hardware events: %w", err)
	}
	const kernel, udev = 1, 2
	socket := os.NewFile(uintptr(fd), "uevents")
	defer func() { _ = socket.Close() }()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel | udev}); err != nil {
		return fmt.Errorf("listen for hardware events: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	message := make([]byte, 16<<10)
	for {
		n, err := socket.Read(message)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed() // the kernel dropped events, so something may have changed
		case err != nil:
			return fmt.Errorf("listen for hardware events: %w", err)
		case concerns(message[:n]):
			changed()
		}
	}
}

// concerns reports whether an event is about hardware of a Device. Network interfaces without
// hardware are ignored, because every container start creates some.
func concerns(message []byte) bool {
	is := func(key, value string) bool { return bytes.Contains(message, []byte("\x00"+key+"="+value+"\x00")) }
	if is("ACTION", "bind") || is("ACTION", "unbind") || is("ACTION", "change") {
		return false
	}
	for _, s := range []string{"gpio", "i2c-dev", "spidev", "tty", "usb", "video4linux", "drm"} {
		if is("SUBSYSTEM", s) {
			return true
		}
	}
	return is("SUBSYSTEM", "net") && !bytes.Contains(message, []byte("\x00DEVPATH=/devices/virtual/"))
}
