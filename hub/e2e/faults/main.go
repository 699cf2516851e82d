// Command faults is `make faults`. It runs the tests of faults in the field, and prints a table
// with each fault, its criterion, the figures and the verdict.
//
// The rows name tests of other packages. Most of them run in `make test` too; the long tests of
// hub/e2e run only here. The command builds the tests of each package, and both programs, once. A
// test reports figures with t.Attr("seen", …).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// longest is the time limit of a package's tests. Those of hub/e2e take a quarter of an hour, or
// three quarters on a busy machine with empty caches.
const longest = time.Hour

func main() {
	only := flag.String("run", "", "only rows whose id matches this expression, as in '^F1$'")
	list := flag.Bool("list", false, "list the rows and their tests, and exit")
	logs := flag.String("logs", "",
		"directory for the tests' logs (default: a temporary one, kept after a failure)")
	update := flag.Bool("update", false, "write the rows into "+readme+", and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	if err := faults(ctx, *only, *logs, *list, *update); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func faults(ctx context.Context, only, logs string, list, update bool) error {
	want, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if update {
		return rewrite()
	}
	var chosen []row
	for _, r := range rows {
		if want.MatchString(r.id) {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-run %s: no row has such an id; they are %s to %s, see -list", only, rows[0].id,
			rows[len(rows)-1].id)
	}
	if list {
		for _, r := range chosen {
			fmt.Printf("%-4s %s\n", r.id, r.fault)
			for _, t := range r.tests {
				fmt.Printf("     %s\n", t)
			}
		}
		return nil
	}
	b, err := newBench(ctx, logs, chosen)
	if err != nil {
		return err
	}
	began := time.Now()
	b.run(ctx, chosen)
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), b.close(true))
	}
	results := make([]result, 0, len(chosen))
	failed := 0
	for _, r := range chosen {
		res := b.result(r)
		if results = append(results, res); res.held() == no {
			failed++
		}
	}
	text := table(results)
	fmt.Printf("\n%s\n%d rows in %s\n", text, len(results), time.Since(began).Round(time.Second))
	if failed > 0 {
		err = fmt.Errorf("%d of %d rows did not hold; the tests' logs are in %s", failed, len(results), b.logs)
	}
	return errors.Join(err, b.close(failed > 0))
}
