// Package nats pins the nats-server that tests run as processes: a module of its own, so that
// nothing of it is linked into hub or device.
package nats

import _ "github.com/nats-io/nats-server/v2/server"
