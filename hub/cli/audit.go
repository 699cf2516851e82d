package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/hub/store"
)

func (p Program) auditCommand() *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "Export and verify the audit: who changed what",
		Args: OnlyCommands, RunE: help}
	export := &cobra.Command{
		Use: "export FILE|-", Short: "Write the audit as JSON lines, oldest first, to a new file or standard output",
		Args: exactly(1),
		Long: "Write the audit as JSON lines, oldest first. Each record has its own hash (hash) and that of the " +
			"record before it (prev).\n`flotilla-hub audit verify FILE` checks the hashes without the hub. Keep exports on " +
			"another machine: somebody who can\nwrite the hub's database can forge a new chain, but cannot change your copy.",
	}
	dir := dataDir(export)
	since := export.Flags().String("since", "",
		"oldest record to export: an age such as 24h, 2026-11-22 or 2026-11-22T04:00:00Z (default all)")
	export.RunE = func(c *cobra.Command, args []string) error {
		from, err := store.ParseSince(*since, time.Now())
		if err != nil {
			return ErrUsage{fmt.Errorf("--since: %w", err)}
		}
		return p.auditOf(c, *dir, func(ctx context.Context, st *store.Store) error {
			noLimit := func() error { return nil }
			if args[0] == "-" {
				return st.ExportAudit(ctx, c.OutOrStdout(), from, noLimit)
			}
			if _, err := os.Lstat(args[0]); err == nil {
				return ErrUsage{fmt.Errorf("export the audit to %s: file exists; choose another name", args[0])}
			}
			f, err := renameio.NewPendingFile(args[0], renameio.WithPermissions(0o600),
				renameio.WithTempDir(filepath.Dir(args[0])))
			if err != nil {
				return fmt.Errorf("export the audit to %s: %w", args[0], err)
			}
			defer func() { _ = f.Cleanup() }()
			if err := st.ExportAudit(ctx, f, from, noLimit); err != nil {
				return fmt.Errorf("export the audit to %s: %w", args[0], err)
			}
			return f.CloseAtomicallyReplace()
		})
	}
	verify := &cobra.Command{
		Use: "verify [FILE]", Short: "Check that no record of the audit or of an export is missing or changed",
		Args: atMostOne,
	}
	verifyDir := dataDir(verify)
	verify.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 1 {
			f, err := os.Open(args[0])
			if err != nil {
				return ErrUsage{err}
			}
			defer f.Close()
			r, err := store.VerifyAuditExport(f)
			if err != nil {
				return ErrUsage{fmt.Errorf("%s: %w", args[0], err)}
			}
			return printAudit(c.OutOrStdout(), r)
		}
		return p.auditOf(c, *verifyDir, func(ctx context.Context, st *store.Store) error {
			r, err := st.VerifyAudit(ctx)
			if err != nil {
				return err
			}
			return printAudit(c.OutOrStdout(), r)
		})
	}
	c.AddCommand(export, verify)
	return c
}

// auditOf opens the hub's database for do. It does not need the certificate authority.
func (p Program) auditOf(c *cobra.Command, dir string, do func(ctx context.Context, st *store.Store) error) error {
	st, err := p.openStore(c, dir)
	if err != nil {
		return err
	}
	defer st.Close()
	return do(c.Context(), st)
}

func printAudit(out io.Writer, r store.AuditReport) error {
	if r.Unchained > 0 {
		fmt.Fprintf(out, "%d records are older than the chain: a change to them cannot be detected.\n", r.Unchained)
	}
	chained := r.Records - r.Unchained
	if chained > 0 {
		const form = "2006-01-02T15:04:05.000Z"
		fmt.Fprintf(out, "%d records in the chain: %d (%s) to %d (%s), whose hash is\n%x\n", chained, r.From.ID,
			r.From.At.Format(form), r.To.ID, r.To.At.Format(form), r.To.Hash)
	}
	if r.Breaks == 0 {
		_, err := fmt.Fprintln(out, "The chain is complete.")
		return err
	}
	for _, b := range r.Broken {
		fmt.Fprintln(out, "BROKEN: "+b)
	}
	return fmt.Errorf("the audit chain is broken in %d places; compare it with your exports and backups",
		r.Breaks)
}
