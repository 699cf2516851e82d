// Package listen bounds what those who have not said who they are can hold open on
// the hub's listeners: connections, requests, the time that these take, and file
// descriptors.
//
// How many connections one address may have, and how the descriptors are divided
// among the listeners, is one rule for HTTPS and MQTT: package broker asks it, too.
// The Listener and the Handler are for HTTPS. The package knows no protocol above
// HTTP, no users and no secrets: who has shown who they are it is told with Known.
package listen

import (
	"errors"
	"net"
	"syscall"
)

const (
	ownFiles = 256   // for the database, logs, backups, questions to name servers …
	maxHTTPS = 1024  // connections: a browser and a client-go have one each
	maxMQTT  = 65536 // one for each device, and those that come back
)

// Files says how many connections the HTTPS and the MQTT listeners may have at once:
// whatever happens on HTTPS, devices find a descriptor for their link.
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

// Cause is the cause of a network error without the address, which who tells of it has
// said already.
func Cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
