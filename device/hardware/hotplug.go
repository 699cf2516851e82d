package hardware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls changed whenever something of which devices are made is plugged in or out, until ctx
// ends. The kernel tells, and udev once more when it has given its names; both tell everybody who
// listens. An error says that nobody will: look from time to time.
func Watch(ctx context.Context, changed func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("listen for hardware that is plugged in: %w", err)
	}
	const kernel, udev = 1, 2
	socket := os.NewFile(uintptr(fd), "uevents")
	defer func() { _ = socket.Close() }()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel | udev}); err != nil {
		return fmt.Errorf("listen for hardware that is plugged in: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	message := make([]byte, 16<<10)
	for {
		n, err := socket.Read(message)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed() // there was more than we could take
		case err != nil:
			return fmt.Errorf("listen for hardware that is plugged in: %w", err)
		case concerns(message[:n]):
			changed()
		}
	}
}

// concerns tells whether a message of the kernel or of udev is about what devices are made of.
// Every container that starts has network interfaces, so those that no hardware is behind are
// nobody's business.
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
