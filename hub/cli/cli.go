// Package cli has the commands of flotilla-hub.
//
// `serve` reads the configuration and passes it on. Each other command opens the data directory,
// usually while the hub runs, or sends an order over the hub's socket (package socket). The rules
// are in the packages serve, access, store and pki. Package main calls this package. Command
// quickstart is `make run`.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/config"
	"flotilla.dev/shared/commands"
)

// A Program is what main passes to the commands.
type Program struct {
	Version  string
	Licenses []byte // license texts of all modules: see commands.Licenses
	// Serve runs the hub until ctx ends.
	Serve          func(ctx context.Context, cfg config.Config, log *slog.Logger, out io.Writer) error
	Stdout, Stderr io.Writer
}

// ErrUsage marks errors of usage and configuration.
type ErrUsage struct{ error }

func (e ErrUsage) Unwrap() error { return e.error }

// Command is the program with every command.
func (p Program) Command() *cobra.Command {
	root := &cobra.Command{
		Use: "flotilla-hub", Short: "Fleet manager for edge devices: nodes and workloads as in Kubernetes, over MQTT",
		SilenceUsage: true, SilenceErrors: true, Args: OnlyCommands, RunE: help,
	}
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.Name() == "serve" { // only flags of serve are settings
			return ErrUsage{config.FlagError(err)}
		}
		return ErrUsage{fmt.Errorf("%w: see `%s --help`", commands.Plainly(err), c.CommandPath())}
	})
	root.AddCommand(p.serveCommand(), p.tokenCommand(), p.firstBootCommand(), p.imageCommand(),
		p.agentsCommand(), p.userCommand(),
		p.kubeconfigCommand(), p.observerCommand(),
		p.brokerConfigCommand(), p.auditCommand(), p.caCommand(), p.profileCommand(), p.monitoringCommand(),
		p.backupCommand(), p.restoreCommand(), p.migrateCommand(), resumeCommand(), p.doctorCommand(), p.supportCommand(),
		commands.Licenses(p.Licenses, exactly(0)), &cobra.Command{
			Use: "version", Short: "Print the version", Args: exactly(0),
			RunE: func(c *cobra.Command, _ []string) error {
				_, err := fmt.Fprintf(c.OutOrStdout(), "flotilla-hub %s %s/%s %s\n", p.Version, runtime.GOOS, runtime.GOARCH,
					runtime.Version())
				return err
			},
		})
	return root
}

// help runs a command that only has subcommands: it lists them. OnlyCommands refuses an unknown
// subcommand.
func help(c *cobra.Command, _ []string) error { return c.Help() }

func OnlyCommands(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return ErrUsage{fmt.Errorf("unknown command %q of %s; see `%s --help`", args[0], c.CommandPath(), c.CommandPath())}
	}
	return nil
}

// exactly is cobra.ExactArgs with the exit code of usage errors.
func exactly(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return ErrUsage{fmt.Errorf("%s takes %d arguments, not %d: see `%s --help`", c.CommandPath(), n, len(args),
				c.CommandPath())}
		}
		return nil
	}
}

func (p Program) serveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "serve", Short: "Run the hub", Args: exactly(0),
		Long: "Run the hub: MQTT broker, database, Kubernetes-compatible API and page in one process.\n\n" +
			"Set each flag also as FLOTILLA_<NAME> in the environment, or by its name in the YAML file of --config.\n" +
			"A flag wins over the environment, the environment over the file, and the file over the default.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, warnings, err := config.Load(c.Flags(), os.Environ())
			if err != nil {
				return ErrUsage{err}
			}
			if show, err := c.Flags().GetBool("print-config"); err != nil || show {
				return errors.Join(err, cfg.Print(p.Stdout))
			}
			log := newLog(p.Stderr, cfg)
			for _, w := range warnings {
				log.Warn(w)
			}
			return p.Serve(c.Context(), cfg, log, p.Stdout)
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
