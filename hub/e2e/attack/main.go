// Command attack is `make attack`. It attacks new hubs over the network, as a stolen device, as a
// viewer and as a deleted operator, and prints which attacks harmed the hub.
//
// It uses only the hub's sockets and command line; the device's own tests attack devices. Every
// attack has limits of count and time, and uses loopback. During each attack a good device renews
// its lease twice a second. The attack must not raise the hub's memory above maxResident, or delay
// that lease by more than maxDelay.
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
	maxResident = 256 << 20       // limit in bytes for unauthenticated clients and for a single device
	maxDelay    = time.Second     // limit for a good device's lease, with two cores
	longest     = 4 * time.Minute // time limit of an attack
)

// An attack is a misuse of the hub, with a check that it did no harm.
type attack struct {
	name  string
	by    string // the attacker
	does  string // a description for the table
	files int    // limit of the hub's open files; 0 for this process's limit
	// run attacks the hub. It returns figures, and an error if the attack harmed the hub.
	run func(ctx context.Context, a *harness.Hub) (seen string, err error)
	// heavy attacks need a login or several devices, so the memory limit does not apply.
	heavy bool
	// slow attacks run only with make attack.
	slow bool
	// storm attacks use good devices. The memory limit does not apply, but each device must get its
	// lease.
	storm bool
}

func main() {
	only := flag.String("run", "", "attacks whose name matches this expression")
	hub := flag.String("hub", "", "the hub's program (default: built from ./hub)")
	list := flag.Bool("list", false, "list the attacks and exit")
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
		return fmt.Errorf("%d of %d attacks harmed the hub", failed, tried)
	}
	return nil
}

func attacks() []attack {
	return slices.Concat(unauthenticatedAttacks(), http2Attacks(), deviceAttacks(), mqttAttacks(), userAttacks(),
		firmwareAttacks(), storms())
}

func yes(held bool) string {
	if held {
		return "yes"
	}
	return "NO"
}

// A result is the outcome of one attack.
type result struct {
	peak  int64 // largest resident memory in bytes
	cpu   time.Duration
	delay time.Duration // largest delay of the good device's lease
	seen  string
	err   error
}

func (r result) says() string {
	if r.err != nil {
		return r.err.Error()
	}
	return r.seen
}

// try runs one attack on a new hub, and then checks the hub.
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
		r.err = fmt.Errorf("the hub's output has %s", a.Panicked())
	case a.Answers(ctx, 2*time.Second) != nil:
		r.err = fmt.Errorf("the hub no longer answers: %w", a.Answers(ctx, 2*time.Second))
	case w.err() != nil:
		r.err = fmt.Errorf("a good device was affected: %w", w.err())
	case r.delay > maxDelay && !at.storm:
		r.err = fmt.Errorf("a good device's lease was %s late", r.delay.Round(time.Millisecond))
	case r.peak > maxResident && !at.heavy:
		r.err = fmt.Errorf("the hub grew to %d MB", r.peak>>20)
	}
	if r.err != nil && r.seen != "" {
		r.err = fmt.Errorf("%w (%s)", r.err, r.seen)
	}
	return r
}
