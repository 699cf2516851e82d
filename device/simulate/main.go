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
	context.AfterFunc(ctx, stop) // a second signal kills
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

// options are what the command line says; help goes to out.
func options(args []string, out io.Writer) (o Options, err error) {
	fl := flag.NewFlagSet("flotilla-simulate", flag.ContinueOnError)
	fl.SetOutput(io.Discard) // of mistakes: whoever calls says them
	var level slog.Level
	var script string
	fl.StringVar(&o.Hub, "hub", "", "development listener of a hub, such as mqtt://127.0.0.1:1883")
	fl.IntVar(&o.Count, "count", 8, "number of devices")
	fl.IntVar(&o.Sites, "sites", 0,
		"number of sites that they are spread over; 0: three, or one for each of fewer devices")
	fl.StringVar(&o.Prefix, "prefix", "sim", "beginning of the nodes' names")
	fl.StringVar(&script, "script", "", "what happens to the devices: a file, or "+Night+", which is built in")
	fl.Float64Var(&o.Speed, "speed", 1, "how many times faster than written the script goes")
	fl.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := fl.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(out, "Run many agents with engines in memory, against a hub's development listener.\n\n"+
				"A script says what happens to them, a line for each event: a time since the start, a verb, whom, how.\n\n%s\n",
				Words())
			fl.SetOutput(out)
			fl.PrintDefaults()
		}
		return o, err
	}
	if fl.NArg() > 0 {
		return o, fmt.Errorf("it takes no argument, and %q was given; see --help", fl.Arg(0))
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
