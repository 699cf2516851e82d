package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

func (p Program) caCommand() *cobra.Command {
	c := &cobra.Command{Use: "ca", Short: "The hub's certificate authority: rotation, revocation, protection of its keys",
		Args: OnlyCommands, RunE: help}
	c.AddCommand(
		p.protectCommand("protect", "Put the authority's keys under a passphrase, or under another one"),
		p.protectCommand("unprotect", "Store the authority's keys without a passphrase again"),
		caOrder("status", "Say what is trusted, and who has not renewed since a rotation", "status"), rotateCommand(),
		revokeCommand(),
	)
	return c
}

func caOrder(use, short, what string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: exactly(0)}
	dir := dataDir(c)
	c.RunE = func(c *cobra.Command, _ []string) error { return order(c, *dir, "ca "+what) }
	return c
}

func rotateCommand() *cobra.Command {
	c := &cobra.Command{Use: "rotate --root|--intermediate", Short: "Make a new root or intermediate; the former " +
		"stays trusted until `ca revoke`", Args: exactly(0)}
	dir := dataDir(c)
	root := c.Flags().Bool("root", false, "a new root and intermediate")
	middle := c.Flags().Bool("intermediate", false, "a new intermediate; the root stays")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case *root == *middle:
			return ErrUsage{errors.New("say what to rotate: --root or --intermediate")}
		case *root:
			return order(c, *dir, "ca rotate-root")
		}
		return order(c, *dir, "ca rotate-intermediate")
	}
	return c
}

func revokeCommand() *cobra.Command {
	c := &cobra.Command{Use: "revoke", Short: "End the trust in the former root and intermediates", Args: exactly(0)}
	dir := dataDir(c)
	force := c.Flags().Bool("force", false, "though devices have not renewed, which then have to join again")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *force {
			return order(c, *dir, "ca revoke-force")
		}
		return order(c, *dir, "ca revoke")
	}
	return c
}

// order has the running hub do something.
func order(c *cobra.Command, dir, text string) error {
	answer, err := socket.Ask(dir, text)
	if errors.Is(err, socket.ErrNoDirectory) {
		return ErrUsage{err}
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(c.OutOrStdout(), answer)
	return err
}

// protectCommand changes how the keys are stored, while the hub is down: it would
// write its next key the old way.
func (p Program) protectCommand(use, short string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short + ", while the hub is down", Args: exactly(0)}
	dir := dataDir(c)
	present := c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file whose first line is the present passphrase, if there is one")
	fresh := new(string)
	if use == "protect" {
		fresh = c.Flags().String("new-passphrase-file", "",
			"file whose first line is the new passphrase, at least 12 bytes (required)")
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		var secret []byte
		if use == "protect" {
			if *fresh == "" {
				return ErrUsage{errors.New("--new-passphrase-file is missing: name a file whose first line is the passphrase")}
			}
			var err error
			if secret, err = pki.ReadPassphrase(*fresh); err != nil {
				return ErrUsage{err}
			}
		}
		lock, err := store.Lock(*dir)
		if err != nil {
			return err
		}
		defer lock.Close()
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			a, err := pki.OpenWith(*dir, *present)
			if err == nil {
				err = a.Protect(secret)
			}
			if errors.Is(err, pki.ErrSealed) {
				err = fmt.Errorf("%w; give its file with --ca-passphrase-file", err)
			}
			if err = d.did(ctx, use, "authority", "", err); err != nil {
				return err
			}
			text := "The keys are protected. Start the hub with --ca-passphrase-file, or give it the systemd credential " +
				pki.Credential + ".\nWithout the passphrase nobody gets them back; older copies of the directory pki still " +
				"hold them as they were."
			if use == "unprotect" {
				text = "The keys are stored without a passphrase."
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		})
	}
	return c
}
