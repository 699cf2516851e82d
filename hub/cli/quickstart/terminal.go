package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// foreground takes the terminal for this process and its children alone, so that Ctrl-C
// ends them and not make, which would call a good end an error. The returned function
// gives it back.
func foreground() (back func()) {
	tty := int(os.Stdin.Fd())
	before, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	if err != nil || before != unix.Getpgrp() {
		return func() {} // no terminal, or it is somebody else's
	}
	signal.Ignore(syscall.SIGTTOU) // or who is not in the foreground is stopped when it sets who is
	if unix.Setpgid(0, 0) != nil {
		return func() {}
	}
	_ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, unix.Getpgrp())
	return func() { _ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, before) }
}
