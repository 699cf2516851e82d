// Command load measures what well-behaved devices cost a real hub: `make bench-fleet`, `make
// bench-broker` and `make soak`. Connections are real. Devices, and consumers behind a broker, are
// separate processes with their own file limits, and are not measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

// prepare creates a work directory, and builds the hub unless a program is given.
func prepare(ctx context.Context, name, hub string) (work, program string, err error) {
	if work, err = os.MkdirTemp("", "flotilla-"+name+"-"); err != nil || hub != "" {
		return work, hub, err
	}
	if program, err = harness.Build(ctx, work); err != nil {
		_ = os.RemoveAll(work)
	}
	return work, program, err
}

func main() {
	hub := flag.String("hub", "", "the hub's program (default: built from ./hub)")
	fleet := flag.String("fleet", "", "measure the cost of fleets with these numbers of devices, such as 1000,5000")
	secure := flag.Bool("tls", false, "with -fleet or -return: devices with certificates, over TLS")
	both := flag.Bool("both", false, "with -fleet or -return: first all without TLS, then all with TLS")
	returning := flag.Int("return", 0,
		"measure the return of this number of devices after a kill of the hub, and the silence of half of them")
	brokers := flag.Int("brokers", 0,
		"measure a lease of this number of devices at the hub, and at Mosquitto with a consumer")
	page := flag.String("write", "", "with -fleet, -return or -brokers: also write the table into this page of the manual")
	pings := flag.String("ping", "along", "with -fleet: pings of devices: with each lease like the agent, apart like "+
		"clients with a keep-alive timer, or none")
	paced := flag.Duration("paced", 30*time.Second, "with -fleet: how long leases are measured")
	soaked := flag.Duration("soak", 0,
		"run a fleet with constant changes for this time, and check that no resource grows")
	database := flag.String("database", "", "with -soak: an empty PostgreSQL database for the hub, such as "+
		"postgres://flotilla@127.0.0.1/soak (default: SQLite)")
	devices := flag.String("fleet-devices", "", "internal: run devices that connect to this address")
	join := flag.String("fleet-join", "", "internal: URL at which they join")
	token := flag.String("fleet-token", "", "with what")
	consumed := flag.String("consume", "", "internal: consume leases from the broker at this address")
	how := flag.String("consume-how", "paho", "internal: client of the consumer: paho, or bare, which only counts")
	connections := flag.Int("consume-connections", 1, "internal: number of connections that share the subscription")
	known := flag.Int("consume-nodes", 0, "internal: number of devices in its table at the start")
	published := flag.String("publish", "", "internal: publish for many devices to the broker at this address")
	from, to := flag.Int("fleet-from", 0, "internal: number of the first device"),
		flag.Int("fleet-to", 1, "internal: number after the last device")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listeners := []bool{*secure}
	if *both {
		listeners = []bool{false, true}
	}
	var err error
	switch {
	case *devices != "":
		err = fleetDevices(ctx, *devices, *join, *token, *from, *to, *pings)
	case *consumed != "":
		err = consume(ctx, *consumed, *how, *connections, *known)
	case *published != "":
		err = publish(*published, *from, *to)
	case *brokers > 0:
		err = report(*page, "broker", func(out io.Writer) error { return compareBroker(ctx, *hub, *brokers, *paced, out) })
	case *soaked > 0:
		err = soak(ctx, *hub, *database, *soaked)
	case *returning > 0:
		err = report(*page, "return", func(out io.Writer) error {
			return measureReturn(ctx, *hub, *returning, listeners, out)
		})
	case *fleet != "":
		err = report(*page, "fleet", func(out io.Writer) error {
			return measureFleets(ctx, *hub, *fleet, listeners, *pings, *paced, out)
		})
	default:
		err = errors.New("nothing to measure: use -fleet, -return, -brokers or -soak (see -help)")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		stop()
		os.Exit(1)
	}
}
