package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"flotilla.dev/device/agent"
)

// version is set by the build.
var version string

func main() {
	if version != "" {
		agent.Version = version
	}
	debug.SetGCPercent(50)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	o, err := options(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "flotilla-simulate:", err)
		os.Exit(2)
	}
	if err := Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "flotilla-simulate:", err)
		os.Exit(1)
	}
}

// options parses the command line; help goes to out.
func options(args []string, out io.Writer) (o Options, err error) {
	fl := flag.NewFlagSet("flotilla-simulate", flag.ContinueOnError)
	fl.SetOutput(io.Discard) // the caller prints errors
	var level slog.Level
	var script string
	fl.StringVar(&o.Hub, "hub", "", "development listener of a hub, such as mqtt://127.0.0.1:1883")
	fl.IntVar(&o.Count, "count", 8, "number of devices")
	fl.IntVar(&o.Sites, "sites", 0,
		"number of sites; 0: three, or one for each device if there are fewer")
	fl.StringVar(&o.Prefix, "prefix", "sim", "prefix of the nodes' names")
	fl.StringVar(&script, "script", "", "script of what happens to the devices: a file, or "+Night+", the built-in one")
	fl.Float64Var(&o.Speed, "speed", 1, "factor by which the script runs faster")
	fl.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := fl.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(out, "Run many agents with engines in memory, against a hub's development listener.\n\n"+
				"A script says what happens to them, a line for each event: a time since the start, a verb, targets, "+
				"options.\n\n%s\n",
				Words())
			fl.SetOutput(out)
			fl.PrintDefaults()
		}
		return o, err
	}
	if fl.NArg() > 0 {
		return o, fmt.Errorf("flotilla-simulate takes no arguments, but got %q; see --help", fl.Arg(0))
	}
	if o.Sites == 0 {
		o.Sites = max(min(3, o.Count), 1)
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if script != "" {
		if o.Script, err = LoadScript(script); err != nil {
			return o, err
		}
	}
	return o, o.Check()
}
