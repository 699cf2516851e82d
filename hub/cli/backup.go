package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/store"
)

func (p Program) backupCommand() *cobra.Command {
	c := &cobra.Command{Use: "backup FILE", Short: "Write the database to a file while the hub runs", Args: exactly(1)}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			return d.did(ctx, "create", "backups", args[0], d.store.Backup(ctx, args[0]))
		})
	}
	return c
}

func (p Program) restoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "restore FILE", Short: "Put a backup in the place of the database, while the hub is down", Args: exactly(1),
		Long: "Put a backup in the place of the database; the old one is kept beside it.\nDevices that have a newer desired state than the backup keep it until `flotilla-hub resume`. Who may do what stays as\nit was last, if the old database can be read: move it away first if it was tampered with. Sessions end.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return store.Restore(c.Context(), store.Options{Dir: *dir, Version: p.Version, By: socket.UserName(os.Getuid())}, args[0])
	}
	return c
}

func resumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "resume", Short: "Send desired state again to devices whose own is newer, as after a restore", Args: exactly(0),
		Long: "After a restore from a backup some devices have stored a newer desired state than the hub has. The hub sends them\nnothing until this command says that what the hub has is right.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, _ []string) error { return order(c, *dir, "resume") }
	return c
}
