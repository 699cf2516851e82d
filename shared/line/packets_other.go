//go:build !linux

package line

import "syscall"

// packets does nothing on other systems.
func packets(_, _ string, _ syscall.RawConn) error { return nil }
