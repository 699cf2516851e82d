package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// foreground makes this process the terminal's foreground group. Otherwise Ctrl-C would also end
// make, which then reports an error. The returned function restores the former group.
func foreground() (back func()) {
	tty := int(os.Stdin.Fd())
	before, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	if err != nil || before != unix.Getpgrp() {
		return func() {} // not a terminal, or another process group has it
	}
	signal.Ignore(syscall.SIGTTOU) // the kernel sends SIGTTOU to a background process that sets the foreground group
	if unix.Setpgid(0, 0) != nil {
		return func() {}
	}
	_ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, unix.Getpgrp())
	return func() { _ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, before) }
}
