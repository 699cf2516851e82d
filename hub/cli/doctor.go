package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/doctor"
	"flotilla.dev/hub/leader"
)

func (p Program) doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor [-- FLAGS OF serve]", Short: "Check this machine and the hub, and say how to fix what is wrong",
		Long: "Check data directory, disk, database, backups, certificates, clock and ports, of a running or a stopped " +
			"hub.\nEach check prints OK, WARN or FAIL and how to fix it. Nothing is changed. If you start the hub with " +
			"flags, repeat them after --:\n\n    flotilla-hub doctor -- --https-listen :443\n\nThe exit code is 1 if " +
			"a check fails.",
		Args: cobra.ArbitraryArgs,
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		hub, err := hubOf(c, *dir, args)
		if err != nil {
			return err
		}
		all := doctor.Examine(c.Context(), hub)
		failed := 0
		for _, f := range all {
			if _, err := fmt.Fprintln(c.OutOrStdout(), f); err != nil {
				return err
			}
			if f.Level == doctor.Fail {
				failed++
			}
		}
		if failed > 0 {
			return fmt.Errorf("%d of %d checks failed", failed, len(all))
		}
		return nil
	}
	return c
}

// hubOf returns the hub of a directory with the configuration of `serve` with args.
func hubOf(c *cobra.Command, dir string, args []string) (p doctor.Hub, err error) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	config.Bind(flags)
	if err := flags.Parse(args); err != nil {
		return p, ErrUsage{config.FlagError(err)}
	}
	if flags.NArg() > 0 {
		return p, ErrUsage{fmt.Errorf("%q is not a flag of serve; see `%s --help`", flags.Arg(0), c.CommandPath())}
	}
	if !flags.Changed("data-dir") &&
		(c.Flags().Changed("data-dir") || os.Getenv("FLOTILLA_CONFIG") == "" && !flags.Changed("config")) {
		if err := flags.Set("data-dir", dir); err != nil {
			return p, err
		}
	} else if c.Flags().Changed("data-dir") {
		return p, ErrUsage{errors.New("--data-dir is set before and after --; write it once")}
	}
	p.Config, p.Warnings, p.Mistakes = config.Load(flags, os.Environ())
	p.Now, p.Unsynced = doctor.Clock()
	if text, err := socket.Look(p.Config.DataDir, "standing"); err == nil { // an older hub does not know this order
		p.Standing = new(leader.Status)
		if err := json.Unmarshal([]byte(text), p.Standing); err != nil {
			return p, fmt.Errorf("ask the hub of %s for its state: %w; check that it has the version of this command",
				p.Config.DataDir, err)
		}
	}
	return p, nil
}
