// Package nats pins the nats-server that tests run as processes. It has its own module, so that
// neither hub nor device links any of it.
package nats

import _ "github.com/nats-io/nats-server/v2/server"
