package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

const (
	heapBytes  = "go_memstats_heap_alloc_bytes"
	stackBytes = "go_memstats_stack_inuse_bytes"
	leaseEvery = 10 * time.Second
	perProcess = 9000 // devices in one process
)

// measureFleets is `make bench-fleet`: what well-behaved devices cost their hub, one row for each
// listener and number of nodes. Connections are real, and each registered node renews its lease
// every ten seconds. The devices are separate processes with their own file limits, and are not
// measured.
func measureFleets(ctx context.Context, hub, sizes string, listeners []bool, pings string, paced time.Duration,
	out io.Writer) error {
	work, hub, err := prepare(ctx, "fleet", hub)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(out, "| Listener | Nodes | Idle | Peak | RSS | a node | Heap | Stack | All in after | CPU a lease "+
		"|\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, secure := range listeners {
		kind := listenerName(secure)
		for _, size := range strings.Split(sizes, ",") {
			n, err := strconv.Atoi(size)
			if err != nil || n < 1 {
				return fmt.Errorf("-fleet %s: %q is not a number of nodes; use for example -fleet 1000,5000", sizes, size)
			}
			f, err := measureFleet(ctx, hub, filepath.Join(work, kind+size), n, secure, pings, paced)
			if err != nil {
				return fmt.Errorf("%d nodes: %w", n, err)
			}
			each := func(v int64) string { return fmt.Sprintf("%.1f kB", float64(v)/float64(n)/1e3) }
			more := func(v int64) string {
				if v < 0 {
					return "less than idle" // the kernel has dropped pages of the program since
				}
				return each(v)
			}
			mb := func(v int64) string { return fmt.Sprintf("%.0f MB", float64(v)/1e6) }
			fmt.Fprintf(out, "| %s | %d | %s | %s | %s | %s | %s | %s | %s | %.0f µs |\n", kind, n, mb(f.idle), mb(f.peak),
				mb(f.resident), more(f.resident-f.idle), each(f.heap), each(f.stack),
				f.in.Round(100*time.Millisecond), float64(f.lease.Nanoseconds())/1e3)
		}
	}
	return nil
}

// A fleetCost is the cost of one fleet.
type fleetCost struct {
	idle, peak, resident, heap, stack, goroutines int64
	// in is the time until all devices are registered; lease is the processor time per lease.
	in, lease time.Duration
}

func measureFleet(ctx context.Context, hub, dir string, n int, secure bool, pings string,
	paced time.Duration) (c fleetCost, err error) {
	a, err := harness.New(ctx, hub, dir, 0)
	if err != nil {
		return c, err
	}
	defer a.Close()
	processes, err := startDevices(ctx, a, n, secure, "-ping="+pings)
	defer func() { endAll(processes) }()
	if err != nil {
		return c, err
	}
	if err := order(processes, "join"); err != nil {
		return c, err
	}
	harness.Pause(ctx, 3*time.Second)
	c.idle = a.Resident()
	text, err := a.Get(ctx, "/metrics")
	if err != nil {
		return c, err
	}
	heap, stack := metric(text, heapBytes), metric(text, stackBytes)
	if err := a.NewPeak(); err != nil {
		return c, err
	}
	began := time.Now()
	if err := order(processes, "connect"); err != nil {
		return c, err
	}
	c.in = time.Since(began)
	c.peak = a.Peak()
	// waits until the work after the registrations is done
	if err := order(processes, fmt.Sprintf("pace %d", int(leaseEvery.Seconds()))); err != nil {
		return c, err
	}
	before, sent := a.CPU(), time.Duration(n)*paced/leaseEvery
	if err := order(processes, fmt.Sprintf("pace %d", int(paced.Seconds()))); err != nil {
		return c, err
	}
	c.lease = (a.CPU() - before) / max(sent, 1)
	c.resident, c.peak = a.Resident(), max(c.peak, a.Peak())
	if text, err = a.Get(ctx, "/metrics"); err != nil {
		return c, err
	}
	if got := metric(text, "flotilla_mqtt_sessions"); got != int64(n) {
		return c, fmt.Errorf("%d of %d nodes are connected at the end: %.300s", got, n, a.Output.String())
	}
	if got := metric(text, `flotilla_mqtt_messages_total{channel="lease"}`); got < int64(n)+int64(sent) {
		return c, fmt.Errorf("the hub received %d leases, want %d", got, int64(n)+int64(sent))
	}
	c.heap, c.stack, c.goroutines = metric(text, heapBytes)-heap, metric(text, stackBytes)-stack,
		metric(text, "go_goroutines")
	return c, nil
}

// metric returns a number from the text of /metrics.
func metric(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return int64(v)
		}
	}
	return -1
}
