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
		Use: "doctor [-- FLAGS OF serve]", Short: "Look for what goes wrong on this machine, and say what to do",
		Long: "Look at the data directory, disk, database, backups, certificates, clock and ports, whether the hub runs " +
			"or not, and say of\neach OK, WARN or FAIL and what to do. Nothing is changed. If the hub is started with " +
			"flags, give them behind --:\n\n    flotilla-hub doctor -- --https-listen :443\n\nThe exit code is 1 if " +
			"anything is FAIL.",
		Args: cobra.ArbitraryArgs,
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		patient, err := patient(c, *dir, args)
		if err != nil {
			return err
		}
		all := doctor.Examine(c.Context(), patient)
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

// patient is the hub of a directory, configured as `serve` would be with args.
func patient(c *cobra.Command, dir string, args []string) (p doctor.Patient, err error) {
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
		return p, ErrUsage{errors.New("--data-dir is there twice: before and behind --")}
	}
	p.Config, p.Warnings, p.Mistakes = config.Load(flags, os.Environ())
	p.Now, p.Unsynced = doctor.Clock()
	if text, err := socket.Look(p.Config.DataDir, "standing"); err == nil { // any other hub does not know the word
		p.Standing = new(leader.Standing)
		if err := json.Unmarshal([]byte(text), p.Standing); err != nil {
			return p, fmt.Errorf("ask the hub of %s how it stands: %w; is it of this version?", p.Config.DataDir, err)
		}
	}
	return p, nil
}
