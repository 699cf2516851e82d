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
			return ErrUsage{errors.New("a backup is a file, and cannot go to standard output: name the file")}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			return d.did(ctx, "create", "backups", args[0], d.store.Backup(ctx, args[0]))
		})
	}
	return c
}

func (p Program) restoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "restore FILE", Short: "Put a backup in the place of the database, while the hub is down", Args: exactly(1),
		Long: "Put a backup in the place of the database; the old one is kept beside it.\nDevices that have a newer " +
			"desired state than the backup keep it until `flotilla-hub resume`. Who may do what stays as\nit was last, if " +
			"the old database can be read: move it away first if it was tampered with. Sessions end.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return store.Restore(c.Context(), p.options(*dir), args[0])
	}
	return c
}

func (p Program) migrateCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "migrate --to postgres://…|sqlite", Short: "Take the database to PostgreSQL or back, while the hub is down",
		Args: exactly(0),
		Long: "Take all that the hub remembers to another database: objects, users, tokens, sessions and the audit. All " +
			"of it or nothing; it\ncan be repeated if it was cut off. The data directory notes where the database is, so " +
			"the hub is then started as before. What\nit came from stays as it was, and is not the hub's any more. A " +
			"target that holds something is refused.",
	}
	dir := dataDir(c)
	to := c.Flags().String("to", "", "postgres://USER@HOST:5432/NAME, a file whose first line is that, or sqlite for "+
		"hub.db in the data directory (required)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *to == "" {
			return ErrUsage{errors.New(
				"--to is missing: say where the database is to be, such as --to postgres://flotilla@db.example.org/flotilla")}
		}
		m, err := store.Move(c.Context(), p.options(*dir), *to)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%d objects, with users, tokens and the audit, are taken from %s to %s.\n", m.Objects, m.From,
			m.To)
		if m.Kept != "" {
			text += fmt.Sprintf(
				"The former hub.db is kept as %s: it holds secrets (sealed) and password hashes; remove it when you are sure.\n",
				m.Kept)
		}
		_, err = fmt.Fprint(c.OutOrStdout(), text)
		return err
	}
	return c
}

func resumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "resume", Short: "Send desired state again to devices whose own is newer, as after a restore", Args: exactly(0),
		Long: "After a restore from a backup some devices have stored a newer desired state than the hub has. The hub " +
			"sends them\nnothing until this command says that what the hub has is right.",
	}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, _ []string) error { return order(c, *dir, "resume") }
	return c
}
