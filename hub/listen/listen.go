// Package listen limits what unauthenticated clients can hold on the hub's listeners: connections,
// requests, time and file descriptors.
//
// The limits by address, and the division of file descriptors, apply to HTTPS and MQTT; package
// broker uses them too. Listener and Serve are for HTTPS. The package has no protocol above HTTP,
// no users and no secrets: the caller reports an authenticated request with Authenticated.
package listen

import (
	"errors"
	"net"
	"syscall"
)

const (
	ownFiles = 256   // files for the database, logs, backups, DNS lookups …
	maxHTTPS = 1024  // connections; a browser and a client-go use one each
	maxMQTT  = 65536 // connections: one for each device, and those of devices that reconnect
)

// Files returns how many connections the HTTPS and the MQTT listeners may have at once, so that
// HTTPS clients cannot use up the devices' file descriptors.
func Files() (https, mqtt int) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return maxHTTPS, maxMQTT
	}
	return divide(limit.Cur)
}

func divide(files uint64) (https, mqtt int) {
	free := max(int(min(files, 1<<20))-ownFiles, 64)
	https = min(maxHTTPS, free/4)
	return https, min(maxMQTT, free-https)
}

// Cause returns the cause of a network error without its address, because the caller's message has
// the address.
func Cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
