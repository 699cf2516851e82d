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
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"flotilla.dev/hub/e2e/harness"
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
	run func(ctx context.Context, a *harness.Hub) (seen string, err error)
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
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := attackAll(ctx, *only, *hub, *list); err != nil {
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
		if hub, err = harness.Build(ctx, work); err != nil {
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
		fmt.Printf(row, at.name, at.by, yes(r.err == nil), fmt.Sprintf("%d MB", r.peak>>20),
			fmt.Sprintf("%.1f s", r.cpu.Seconds()), r.delay.Round(time.Millisecond), r.says())
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
	a, err := harness.New(ctx, hub, dir, at.files)
	if err != nil {
		return result{err: fmt.Errorf("start: %w", err)}
	}
	defer a.Close()
	w, err := watch(ctx, a)
	if err != nil {
		return result{err: fmt.Errorf("the good device: %w", err)}
	}
	before := a.CPU()
	r.seen, r.err = at.run(ctx, a)
	r.delay = w.end()
	r.peak, r.cpu = a.Peak(), a.CPU()-before
	switch {
	case r.err != nil:
	case a.Panicked() != "":
		r.err = fmt.Errorf("the hub said %s", a.Panicked())
	case a.Answers(ctx, 2*time.Second) != nil:
		r.err = fmt.Errorf("the hub does not answer any more: %w", a.Answers(ctx, 2*time.Second))
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
