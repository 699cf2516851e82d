// Command conformance is `make conformance`. It runs Kubernetes' conformance suite, in the version
// of testdata/suite/go.mod, against real hubs, and prints which claimed specs pass.
//
// It builds the suite and its images from the module's sources, and starts hubs with simulated
// devices and with agents on a container engine. unclaimed.txt lists specs that are not claimed,
// with reasons; all other specs marked [Conformance] are claimed. Like the suite, it uses only the
// hub's programs and API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

// options are the flags of the command line.
type options struct {
	cache, logs, bin, cidr string
	focus                  string
	engine                 string
	procs                  int
	keep, list, quick      bool
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == guardWord {
		os.Exit(guard(os.Args[2:]))
	}
	var o options
	cache, _ := os.UserCacheDir() // without a cache directory -cache is needed
	flag.StringVar(&o.cache, "cache", filepath.Join(cache, "flotilla", "conformance"), "directory of the built suite")
	flag.StringVar(&o.logs, "logs", "", "directory for logs of the programs and the suite "+
		"(default: the directory last in the cache)")
	flag.StringVar(&o.bin, "bin", "", "directory of flotilla-hub, -device and -simulate (default: build them)")
	flag.StringVar(&o.cidr, "cluster-cidr", "10.216.0.0/16", "address range of the pods on the engine")
	flag.StringVar(&o.focus, "focus", "", "run only claimed specs that match this expression, such as 'api [sig-apps] "+
		"Deployment' (lane and name); the manual does not change")
	flag.StringVar(&o.engine, "engine", "docker",
		"engine of specs that need containers: docker or podman (DOCKER_SOCK, PODMAN_SOCK)")
	flag.IntVar(&o.procs, "procs", 2*runtime.NumCPU(), "number of parallel specs on a hub")
	flag.BoolVar(&o.keep, "keep", false, "keep the hubs and devices running after the specs, until Ctrl-C")
	flag.BoolVar(&o.quick, "quick", false,
		"run only quick specs without an engine (two minutes), if the suite is built")
	flag.BoolVar(&o.list, "list", false, "list the specs, each with its lane or the reason why it is not claimed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	if err := conform(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// conform runs the suite. Its error is the first failure, or the number of failed specs.
func conform(ctx context.Context, o options) error {
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	began := time.Now()
	s, err := place(o.cache)
	if err != nil {
		return err
	}
	if o.quick && !s.built(products) {
		fmt.Println("conformance: Kubernetes' suite is not built on this machine; nothing runs. make " +
			"conformance builds it, in ten to twenty minutes")
		return nil
	}
	if err := s.build(ctx, products); err != nil {
		return err
	}
	all, err := s.specs(ctx)
	if err != nil {
		return err
	}
	if err := judge(all, unclaimed, engines); err != nil {
		return err
	}
	if o.list {
		for _, sp := range all {
			fmt.Printf("%-14s %s%s\n", sp.lane, sp.name, note(sp.reason))
		}
		return nil
	}
	work, err := os.MkdirTemp("", workPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	lock, err := hold(work, os.O_CREATE)
	if err != nil {
		return err
	}
	defer lock.Close()
	r := &run{options: o, suite: s, work: work}
	if r.logs == "" {
		r.logs = filepath.Join(o.cache, "last")
	}
	if err := errors.Join(os.RemoveAll(r.logs), os.MkdirAll(r.logs, 0o755)); err != nil {
		return err
	}
	if err := r.programs(ctx); err != nil {
		return err
	}
	if err := sweep(ctx, os.TempDir(), r.device); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err) // remains of an old run do not stop this one
	}
	for _, sp := range all {
		sp.chosen = sp.reason == "" && sp.on(o.engine) && (!o.quick || sp.quick()) &&
			focus.MatchString(string(sp.lane)+" "+sp.name)
	}
	if err := r.all(ctx, all); err != nil {
		return err
	}
	t := tally(all)
	text := t.text()
	fmt.Printf("\n%s\n%d specs in %s; logs are in %s\n", text, t.chosen(), time.Since(began).Round(time.Second),
		r.logs)
	if o.focus == "" && !o.quick && ctx.Err() == nil {
		if err := rewrite(o.engine, text); err != nil {
			return err
		}
	}
	if n := len(t.failed); n > 0 {
		return fmt.Errorf("%d of %d claimed specs did not pass", n, t.chosen())
	}
	return ctx.Err()
}

func note(reason string) string {
	if reason == "" {
		return ""
	}
	return "\t" + reason
}
