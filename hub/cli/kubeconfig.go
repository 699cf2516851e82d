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
	c := &cobra.Command{Use: "kubeconfig", Short: "Print a kubeconfig for kubectl, with a client certificate",
		Args: exactly(0)}
	dir := dataDir(c)
	server := c.Flags().String("server", "", "URL of the hub, such as https://gateway:8443 (default the hub's last "+
		"address, and a context for each other hub of its database)")
	user := c.Flags().String("user", "admin", "user name in the certificate and the audit")
	role := c.Flags().String("role", "admin", "role of the user: admin, operator or viewer")
	life := c.Flags().Duration("ttl", 365*24*time.Hour, "lifetime of the certificate, at most 8760h")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file whose first line is the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := access.ParseRole(*role)
		if err != nil {
			return ErrUsage{err}
		}
		if *user == "" {
			return ErrUsage{errors.New("--user is empty; write a user name, such as admin")}
		}
		if *life <= 0 || *life > pki.LeafLife {
			return ErrUsage{fmt.Errorf("--ttl: %s is not between 0 and 8760h; use for example 720h", *life)}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			address, others := *server, []string(nil)
			if address == "" {
				address, others = d.url, d.urls
			}
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "https" || u.Host == "" {
				return ErrUsage{fmt.Errorf("--server: %q is not an https URL; use for example https://gateway:8443", address)}
			}
			cert, key, err := d.authority.IssueClient(pki.Role(r), *user, *life)
			if err = d.record(ctx, "create", "kubeconfigs", *user, err); err != nil {
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
	revoke := &cobra.Command{Use: "revoke NAME", Short: "End all kubeconfigs issued until now for a user name (--user), " +
		"within 5 s", Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *revokeDir, func(ctx context.Context, d directory) error {
			err := d.record(ctx, "revoke", "kubeconfigs", args[0], d.guard.RevokeKubeconfigs(ctx, args[0]))
			return d.ended(ctx, c.OutOrStdout(), err, "kubeconfigs", args[0], "kubeconfigs", "clientcertificates")
		})
	}
	c.AddCommand(revoke)
	return c
}
