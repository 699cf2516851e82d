// Command load measures what fleets of good devices cost a real hub: `make bench-fleet`,
// `make bench-broker` and `make soak`. Connections are real; the devices, and the consumers behind
// a broker, are processes of their own, since a process has few files, and so that nothing of
// theirs is counted.
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

// prepare makes a directory for what is done, and in it the hub where no program is named.
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
	fleet := flag.String("fleet", "", "measure what fleets of so many good devices cost, such as 1000,5000")
	secure := flag.Bool("tls", false, "with -fleet or -return: devices with certificates, over TLS")
	both := flag.Bool("both", false, "with -fleet or -return: all without TLS, then all with it")
	returning := flag.Int("return", 0,
		"so many good devices whose hub is killed and started again, and then half of them silent")
	brokers := flag.Int("brokers", 0,
		"what a lease of so many devices costs the hub, and what it costs Mosquitto and a consumer")
	page := flag.String("write", "", "with -fleet, -return or -brokers: write the table into this page of the manual, too")
	pings := flag.String("ping", "along", "with -fleet: a ping along with each lease, as the agent sends; apart, as "+
		"clients do that keep alive by themselves; or none")
	paced := flag.Duration("paced", 30*time.Second, "with -fleet: how long leases are counted")
	soaked := flag.Duration("soak", 0,
		"a fleet on which something happens all the time, for so long, which may leave nothing behind")
	database := flag.String("database", "", "with -soak: an empty database of PostgreSQL for the hub, such as "+
		"postgres://flotilla@127.0.0.1/soak (default: SQLite)")
	devices := flag.String("fleet-devices", "", "be devices of a fleet that connect to this address")
	join := flag.String("fleet-join", "", "where they join")
	token := flag.String("fleet-token", "", "with what")
	consumed := flag.String("consume", "", "be a consumer of leases behind the broker at this address")
	how := flag.String("consume-how", "paho", "with which client: paho, or bare, which only counts")
	connections := flag.Int("consume-connections", 1, "at so many connections, which share the subscription")
	known := flag.Int("consume-nodes", 0, "that knows so many devices from the beginning")
	published := flag.String("publish", "", "be many devices at few connections to the broker at this address")
	from, to := flag.Int("fleet-from", 0, "the first of them"), flag.Int("fleet-to", 1, "the one after the last")
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
		err = report(*page, "broker", func(out io.Writer) error { return versus(ctx, *hub, *brokers, *paced, out) })
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
		err = errors.New("say what to measure: -fleet, -return, -brokers or -soak (-help tells what they are)")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		stop()
		os.Exit(1)
	}
}
