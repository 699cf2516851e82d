package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/doctor"
)

func (p Program) supportCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "support-bundle FILE|- [-- FLAGS OF serve]", Short: "Write a tar.gz about this hub for support, " +
			"without secrets",
		Long: "Write version, settings, results of `doctor`, metrics of a running hub, nodes, sites, pods, incidents and " +
			"events to a new\ntar.gz or to standard output. Objects have states, reasons, counts and times only: no " +
			"annotations, environments,\narguments, config maps, secrets or messages of pods. Text that looks like a " +
			"password or token is removed.\nThe log is included only with --log, since it may quote what users wrote. " +
			"Read the file before you send it.",
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); at >= 0 {
				args = args[:at]
			}
			return exactly(1)(c, args)
		},
	}
	dir := dataDir(c)
	log := c.Flags().String("log", "", "file with the hub's log to add, for example of journalctl -u flotilla-hub; "+
		"text that looks like a secret is removed (default none)")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		b := doctor.Bundle{Version: fmt.Sprintf("flotilla-hub %s %s/%s %s", p.Version, runtime.GOOS, runtime.GOARCH,
			runtime.Version())}
		if b.Hub, err = hubOf(c, *dir, args[1:]); err != nil {
			return err
		}
		if b.Metrics, err = socket.Look(b.Hub.Config.DataDir, "metrics"); err != nil {
			b.WhyNone = err.Error()
		}
		if *log != "" {
			f, err := os.Open(*log)
			if err != nil {
				return ErrUsage{err}
			}
			defer f.Close()
			b.Log = io.Reader(f)
		}
		if args[0] == "-" {
			return b.Write(c.Context(), c.OutOrStdout())
		}
		if _, err := os.Lstat(args[0]); err == nil {
			return ErrUsage{fmt.Errorf("write the bundle to %s: file exists; choose another name", args[0])}
		}
		f, err := renameio.NewPendingFile(args[0], renameio.WithPermissions(0o600),
			renameio.WithTempDir(filepath.Dir(args[0])))
		if err != nil {
			return fmt.Errorf("write the bundle to %s: %w", args[0], err)
		}
		defer func() { _ = f.Cleanup() }()
		if err := b.Write(c.Context(), f); err != nil {
			return fmt.Errorf("write the bundle to %s: %w", args[0], err)
		}
		return f.CloseAtomicallyReplace()
	}
	return c
}
