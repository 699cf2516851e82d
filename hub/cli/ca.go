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
		p.protectCommand("protect", "Encrypt the authority's keys with a passphrase, or change it"),
		p.protectCommand("unprotect", "Store the authority's keys without a passphrase"),
		caOrder("status", "List trusted certificates, and devices that have not renewed since a rotation", "status"),
		rotateCommand(),
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
	c := &cobra.Command{Use: "rotate --root|--intermediate", Short: "Create a new root or intermediate; the former " +
		"one stays trusted until `ca revoke`", Args: exactly(0)}
	dir := dataDir(c)
	root := c.Flags().Bool("root", false, "create a new root and intermediate")
	middle := c.Flags().Bool("intermediate", false, "create a new intermediate; the root stays")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case *root == *middle:
			return ErrUsage{errors.New("choose what to rotate: --root or --intermediate")}
		case *root:
			return order(c, *dir, "ca rotate-root")
		}
		return order(c, *dir, "ca rotate-intermediate")
	}
	return c
}

func revokeCommand() *cobra.Command {
	c := &cobra.Command{Use: "revoke", Short: "Stop trusting the former root and intermediates", Args: exactly(0)}
	dir := dataDir(c)
	force := c.Flags().Bool("force", false, "revoke even if some devices have not renewed; they have to join again")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *force {
			return order(c, *dir, "ca revoke-force")
		}
		return order(c, *dir, "ca revoke")
	}
	return c
}

// order sends an order to the running hub and prints the answer.
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

// protectCommand changes how the keys are stored. The hub must be stopped, because a running hub
// would encrypt its next key with the former passphrase.
func (p Program) protectCommand(use, short string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short + ", while the hub is stopped", Args: exactly(0)}
	dir := dataDir(c)
	present := c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file whose first line is the current passphrase, if the keys have one")
	fresh := new(string)
	if use == "protect" {
		fresh = c.Flags().String("new-passphrase-file", "",
			"file whose first line is the new passphrase, at least 12 bytes (required)")
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		var secret []byte
		if use == "protect" {
			if *fresh == "" {
				return ErrUsage{errors.New("--new-passphrase-file is missing; name a file whose first line is the passphrase")}
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
				err = fmt.Errorf("%w; name its file with --ca-passphrase-file", err)
			}
			if err = d.record(ctx, use, "authority", "", err); err != nil {
				return err
			}
			text := "The keys are encrypted. Start the hub with --ca-passphrase-file, or with the systemd credential " +
				pki.Credential + ".\nThe keys are lost without the passphrase. Older copies of the directory pki " +
				"still have the keys as they were."
			if use == "unprotect" {
				text = "The keys are stored without a passphrase."
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		})
	}
	return c
}
