package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/pki"
)

func (p Program) kubeconfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "kubeconfig", Short: "Print a kubeconfig for kubectl, with the CA inside", Args: exactly(0)}
	dir := dataDir(c)
	server := c.Flags().String("server", "", "address of the hub, such as https://gateway:8443 (default where the "+
		"hub last said that it is, with a context for each other hub of its database)")
	user := c.Flags().String("user", "admin", "name in the certificate and the audit")
	role := c.Flags().String("role", "admin", "admin, operator or viewer")
	life := c.Flags().Duration("ttl", 365*24*time.Hour, "how long its certificate is good")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file with the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := access.ParseRole(*role)
		if err != nil {
			return ErrUsage{err}
		}
		if *user == "" {
			return ErrUsage{errors.New("--user is empty: say whose the kubeconfig is, such as admin")}
		}
		if *life <= 0 || *life > pki.LeafLife {
			return ErrUsage{fmt.Errorf("--ttl is %s: say how long the kubeconfig is good, such as 720h, and 8760h at most",
				*life)}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			address, others := *server, []string(nil)
			if address == "" {
				address, others = d.url, d.urls
			}
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "https" || u.Host == "" {
				return ErrUsage{fmt.Errorf("the hub's address is %q: give one such as https://gateway:8443 with --server", address)}
			}
			cert, key, err := d.authority.IssueClient(pki.Role(r), *user, *life)
			if err = d.did(ctx, "create", "kubeconfigs", *user, err); err != nil {
				return err
			}
			text, err := access.Kubeconfig{Server: address, Others: others, User: *user, CA: d.authority.RootPEM(), Cert: cert,
				Key: key}.YAML()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		})
	}
	revoke := &cobra.Command{Use: "revoke NAME", Short: "End all kubeconfigs of a name (--user) that were made until " +
		"now, within 5 s, whether it is a user's or not", Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *revokeDir, func(ctx context.Context, d directory) error {
			err := d.did(ctx, "revoke", "kubeconfigs", args[0], d.guard.RevokeKubeconfigs(ctx, args[0]))
			return d.ended(ctx, c.OutOrStdout(), err, "kubeconfigs", args[0], "kubeconfigs", "clientcertificates")
		})
	}
	c.AddCommand(revoke)
	return c
}
