package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/store"
)

func (p Program) backupCommand() *cobra.Command {
	c := &cobra.Command{Use: "backup FILE", Short: "Write the database to a file while the hub runs", Args: exactly(1)}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if args[0] == "-" {
			return ErrUsage{errors.New("a backup cannot go to standard output; name a file")}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			return d.record(ctx, "create", "backups", args[0], d.store.Backup(ctx, args[0]))
		})
	}
	return c
}

func (p Program) restoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "restore FILE", Short: "Replace the database by a backup, while the hub is stopped", Args: exactly(1),
		Long: "Replace the database by a backup; the old database is kept beside it.\nDevices with a newer desired state " +
			"than the backup keep it until `flotilla-hub resume`. Users and revocations\nare taken from the old database " +
			"if it can be read; move it away first if it was tampered with. Sessions end.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return store.Restore(c.Context(), p.options(*dir), args[0])
	}
	return c
}

func (p Program) migrateCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "migrate --to postgres://…|sqlite", Short: "Move the database to PostgreSQL or back, while the hub is stopped",
		Args: exactly(0),
		Long: "Copy objects, users, tokens, sessions and the audit to another, empty database. The copy is all or " +
			"nothing; repeat it\nif it was interrupted. The data directory records where the database is, so start the hub " +
			"as before. The former\ndatabase does not change, and the hub no longer uses it.",
	}
	dir := dataDir(c)
	to := c.Flags().String("to", "", "postgres://USER@HOST:5432/NAME, a file whose first line is that URL, or sqlite "+
		"for hub.db in the data directory (required)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *to == "" {
			return ErrUsage{errors.New(
				"--to is missing; write the new database, such as --to postgres://flotilla@db.example.org/flotilla")}
		}
		m, err := store.Move(c.Context(), p.options(*dir), *to)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%d objects, with users, tokens and the audit, were copied from %s to %s.\n", m.Objects, m.From,
			m.To)
		if m.Kept != "" {
			text += fmt.Sprintf(
				"The former hub.db is now %s. It has sealed secrets and password hashes; remove it when the hub works.\n",
				m.Kept)
		}
		_, err = fmt.Fprint(c.OutOrStdout(), text)
		return err
	}
	return c
}

func resumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "resume", Short: "After a restore, send desired state to devices that have a newer one", Args: exactly(0),
		Long: "After a restore some devices have a newer desired state than the hub. The hub sends them\nnothing until " +
			"this command confirms that the hub's state is right.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, _ []string) error { return order(c, *dir, "resume") }
	return c
}
