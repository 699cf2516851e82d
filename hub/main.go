// Command flotilla-hub runs a fleet of devices from one gateway box.
//
// It parses the command line, turns signals into the end of a context and errors
// into exit codes: 0 ended as asked, 1 failed while running, 2 wrong usage or
// configuration. What a hub is made of stands in hub.go; every other command works
// on the data directory while the hub runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/config"
)

// version is set by the build.
var version = "0.1.0-dev"

// errUsage marks errors of usage and configuration: exit code 2.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return e.error }

// gcPercent trades a little of the processor for memory, of which a gateway box has
// less: a fifth of what lives may be garbage. GOGC in the environment wins.
const gcPercent = 20

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := commands(stdout, stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "flotilla-hub: %v\n", err)
	var usage errUsage
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func commands(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "flotilla-hub", Short: "Fleet manager for edge devices: nodes and workloads as in Kubernetes, over MQTT",
		SilenceUsage: true, SilenceErrors: true, Args: command, RunE: help,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return errUsage{config.FlagError(err)} })
	root.AddCommand(serveCommand(stdout, stderr), tokenCommand(), userCommand(), kubeconfigCommand(), backupCommand(), restoreCommand(), resumeCommand(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "flotilla-hub %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	})
	return root
}

// help and command make a command that only has others below it: alone it says
// which, and a word that is none of them is a mistake.
func help(c *cobra.Command, _ []string) error { return c.Help() }

func command(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return errUsage{fmt.Errorf("%q is no command of %s: see `%s --help`", args[0], c.CommandPath(), c.CommandPath())}
	}
	return nil
}

// exactly is cobra.ExactArgs with our exit code.
func exactly(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return errUsage{fmt.Errorf("%s takes %d arguments, not %d: see `%s --help`", c.CommandPath(), n, len(args), c.CommandPath())}
		}
		return nil
	}
}

func serveCommand(stdout, stderr io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use: "serve", Short: "Run the hub", Args: exactly(0),
		Long: "Run the hub: MQTT broker, database, Kubernetes-compatible API and page in one process.\n\n" +
			"Every flag can also be set as FLOTILLA_<NAME> in the environment, and under its name in the file of --config (YAML).\n" +
			"What counts is, in this order: flag, environment, file, default.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, warnings, err := config.Load(c.Flags(), os.Environ())
			if err != nil {
				return errUsage{err}
			}
			if show, err := c.Flags().GetBool("print-config"); err != nil || show {
				return errors.Join(err, cfg.Print(stdout))
			}
			log := newLog(stderr, cfg)
			for _, w := range warnings {
				log.Warn(w)
			}
			return serve(c.Context(), cfg, log, stdout)
		},
	}
	config.Bind(c.Flags())
	return c
}

func newLog(w io.Writer, cfg config.Config) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
