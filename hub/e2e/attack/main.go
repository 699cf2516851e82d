// Command attack is `make attack`: it plays the stranger, the stolen device, the
// viewer and the former operator against a fresh hub each, and prints what held.
//
// It knows the hub by its sockets and its command line only, as an attacker does;
// what a device does with a hostile hub or pod is tried in the device's own tests.
// Every attack is bounded in count and time, and goes to loopback. Beside each of
// them a good device renews its lease twice a second: no attack may raise the hub
// above maxResident, or hold that device's lease up by more than maxDelay.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

const (
	maxResident = 256 << 20       // bytes: what no stranger and no single device may exceed
	maxDelay    = time.Second     // of a good device's lease, on a machine with two cores
	longest     = 4 * time.Minute // an attack takes
)

// An attack is what somebody does, and how it shows that it did no harm.
type attack struct {
	name  string
	by    string // who can do it
	does  string // a sentence for the table
	files int    // that the hub may have open; 0: as many as we
	// run attacks. It returns what was seen, and an error where the hub gave way.
	run func(ctx context.Context, a *arena) (seen string, err error)
	// heavy attacks are not those of a stranger or of a single device: the budget
	// for memory does not hold for them.
	heavy bool
	// slow attacks take more than some seconds: the tests leave them to make attack.
	slow bool
	// storms are good devices: what they need is theirs. Nobody may lose a lease.
	storm bool
}

func main() {
	only := flag.String("run", "", "attacks whose name matches this expression")
	hub := flag.String("hub", "", "the hub's program (default: built from ./hub)")
	list := flag.Bool("list", false, "list the attacks and end")
	fleet := flag.String("fleet", "", "no attacks: measure what fleets of so many good devices cost, such as 1000,5000")
	secure := flag.Bool("tls", false, "with -fleet or -return: devices with certificates, over TLS")
	both := flag.Bool("both", false, "with -fleet or -return: all without TLS, then all with it")
	returning := flag.Int("return", 0, "no attacks: so many good devices whose hub is killed and started again, and then half of them silent")
	brokers := flag.Int("brokers", 0, "no attacks: what a lease of so many devices costs the hub, and what it costs Mosquitto and a consumer")
	page := flag.String("write", "", "with -fleet, -return or -brokers: write the table into this page of the manual, too")
	pings := flag.String("ping", "along", "with -fleet: a ping along with each lease, as the agent sends; apart, as clients do that keep alive by themselves; or none")
	paced := flag.Duration("paced", 30*time.Second, "with -fleet: how long leases are counted")
	soaked := flag.Duration("soak", 0, "no attacks: a fleet on which something happens all the time, for so long, which may leave nothing behind")
	database := flag.String("database", "", "with -soak: an empty database of PostgreSQL for the hub, such as postgres://flotilla@127.0.0.1/soak (default: SQLite)")
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
		err = report(*page, "return", func(out io.Writer) error { return measureReturn(ctx, *hub, *returning, listeners, out) })
	case *fleet != "":
		err = report(*page, "fleet", func(out io.Writer) error {
			return measureFleets(ctx, *hub, *fleet, listeners, *pings, *paced, out)
		})
	default:
		err = attackAll(ctx, *only, *hub, *list)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		stop()
		os.Exit(1)
	}
}

func attackAll(ctx context.Context, only, hub string, list bool) error {
	want, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "flotilla-attack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if hub == "" && !list {
		if hub, err = build(ctx, work); err != nil {
			return err
		}
	}
	const row = "%-22s %-18s %-4s %8s %8s %11s  %s\n"
	fmt.Printf(row, "ATTACK", "BY", "HELD", "HUB PEAK", "HUB CPU", "LEASE DELAY", "SEEN")
	failed, tried := 0, 0
	for _, at := range attacks() {
		if !want.MatchString(at.name) {
			continue
		}
		if list {
			fmt.Printf(row, at.name, at.by, "", "", "", "", at.does)
			continue
		}
		r := try(ctx, at, hub, filepath.Join(work, at.name))
		if tried++; r.err != nil {
			failed++
		}
		fmt.Printf(row, at.name, at.by, yes(r.err == nil), fmt.Sprintf("%d MB", r.peak>>20), fmt.Sprintf("%.1f s", r.cpu.Seconds()), r.delay.Round(time.Millisecond), r.says())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if list {
		return nil
	}
	fmt.Printf("%d passed, %d failed\n", tried-failed, failed)
	if failed > 0 {
		return fmt.Errorf("%d of %d attacks did harm", failed, tried)
	}
	return nil
}

// prepare makes a directory for what is done, and in it the hub where no program is named.
func prepare(ctx context.Context, name, hub string) (work, program string, err error) {
	if work, err = os.MkdirTemp("", "flotilla-"+name+"-"); err != nil || hub != "" {
		return work, hub, err
	}
	if program, err = build(ctx, work); err != nil {
		_ = os.RemoveAll(work)
	}
	return work, program, err
}

// build makes the hub as releases do.
func build(ctx context.Context, dir string) (string, error) {
	hub := filepath.Join(dir, "flotilla-hub")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", hub, "flotilla.dev/hub")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the hub: %w\n%s", err, out)
	}
	return hub, nil
}

func attacks() []attack {
	return slices.Concat(byStranger(), byFrame(), byDevice(), byPacket(), byPerson(), byFirmware(), storms())
}

func yes(held bool) string {
	if held {
		return "yes"
	}
	return "NO"
}

// A result is what one attack did.
type result struct {
	peak  int64 // bytes resident
	cpu   time.Duration
	delay time.Duration // worst of the witness
	seen  string
	err   error
}

func (r result) says() string {
	if r.err != nil {
		return r.err.Error()
	}
	return r.seen
}

// try runs one attack against a hub of its own and judges what it left.
func try(ctx context.Context, at attack, hub, dir string) (r result) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	a, err := newArena(ctx, hub, dir, at.files)
	if err != nil {
		return result{err: fmt.Errorf("start: %w", err)}
	}
	defer a.close()
	w, err := a.watch(ctx)
	if err != nil {
		return result{err: fmt.Errorf("the good device: %w", err)}
	}
	before := a.cpu()
	r.seen, r.err = at.run(ctx, a)
	r.delay = w.end()
	r.peak, r.cpu = a.peak(), a.cpu()-before
	switch {
	case r.err != nil:
	case a.panicked() != "":
		r.err = fmt.Errorf("the hub said %s", a.panicked())
	case a.answers(ctx, 2*time.Second) != nil:
		r.err = fmt.Errorf("the hub does not answer any more: %w", a.answers(ctx, 2*time.Second))
	case w.err() != nil:
		r.err = fmt.Errorf("a good device suffered: %w", w.err())
	case r.delay > maxDelay && !at.storm:
		r.err = fmt.Errorf("a good device's lease came %s late", r.delay.Round(time.Millisecond))
	case r.peak > maxResident && !at.heavy:
		r.err = fmt.Errorf("the hub grew to %d MB", r.peak>>20)
	}
	if r.err != nil && r.seen != "" {
		r.err = fmt.Errorf("%w (%s)", r.err, r.seen)
	}
	return r
}
