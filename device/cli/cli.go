// Package cli has the commands of flotilla-device: it wires the packages below device/, handles
// signals, systemd and exit codes. It never decides about workloads. The program's main calls it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/commands"
)

// Exit codes.
const (
	exitFailed = 1 // an error while running
	exitUsage  = 2 // wrong usage or configuration
)

// A usageError is wrong usage or configuration: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Run executes a command line and returns the exit code. licenses is the text of the licenses
// command.
func Run(args []string, licenses []byte) int {
	launch(args)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // a second signal kills the process
	}()
	root := command(licenses)
	commands.Strict(root, onlyCommands)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(terminal{os.Stderr}, "flotilla-device:", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// A terminal escapes control characters. The text may come from the hub or, before the certificate
// is verified, from an impostor.
type terminal struct{ io.Writer }

func (t terminal) Write(p []byte) (int, error) {
	_, err := io.WriteString(t.Writer, bound.Text(string(p), 1<<20))
	return len(p), err
}

// command returns the root command.
func command(licenses []byte) *cobra.Command {
	root := &cobra.Command{
		Use:           "flotilla-device",
		Short:         "The agent of a device in a fleet: runs containers, and reports their state and the device's",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return fromEnvironment(cmd.Flags())
		},
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if missing := (*pflag.NotExistError)(nil); errors.As(err, &missing) {
			return unknownFlag(cmd, missing.GetSpecifiedName())
		}
		return usagef("%w; see %s --help", commands.Plainly(err), cmd.CommandPath())
	})
	root.AddCommand(joinCommand(), runCommand(), probeCommand(), statusCommand(), logsCommand(), resetCommand(),
		policyCommand(), bootHelperCommand(), upgradeWatchCommand(),
		commands.Licenses(licenses, noArguments), versionCommand())
	for _, c := range root.Commands() {
		if c.Args == nil {
			c.Args = noArguments
		}
	}
	return root
}

// onlyCommands refuses unknown subcommands and arguments.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%q is not a command; see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, but got %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// fromEnvironment sets each flag that is missing on the command line from the variable
// FLOTILLA_<NAME>.
func fromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := environmentName(f.Name)
		v, has := os.LookupEnv(name)
		if f.Changed || !has || f.Name == "help" {
			return
		}
		if err := flags.Set(f.Name, v); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q in the environment: %w", name, v, commands.Plainly(err)))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

func environmentName(flag string) string {
	return "FLOTILLA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
