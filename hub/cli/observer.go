package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/pki"
)

func (p Program) observerCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "mqtt-observer --name NAME --out DIRECTORY", Short: "Issue a certificate with which MQTT tools may look " +
			"on, and change nothing", Args: exactly(0),
		Long: "Issue a client certificate with which MQTT tools may look on, and change nothing. DIRECTORY gets ca.crt, " +
			"client.crt and client.key:\n\n" +
			"  mosquitto_sub -h gateway -p 8883 --cafile ca.crt --cert client.crt --key client.key -v -t 'fleet/v1/#'\n\n" +
			"An observer sees what a viewer may see: leases, statuses, lists of pods, events and presence, as devices send " +
			"them. Desired states, requests and\n" +
			"replies can hold secrets: they are shown as {\"withheld\":true,\"bytes\":N}, with the type of a request, and " +
			"never with what is in them.\n" +
			"It subscribes below fleet/v1, with 16 filters, at QoS 0 in MQTT 3.1.1; what it publishes is dropped. 8 are " +
			"let in at once. One that reads too\n" +
			"slowly misses messages (flotilla_mqtt_observed_total{result=\"dropped\"}). `mqtt-observer revoke NAME` ends " +
			"its certificates.",
	}
	dir := dataDir(c)
	name := c.Flags().String("name", "", "name of the observer in the certificate and the audit (required)")
	out := c.Flags().String("out", "",
		"directory of the three files, made if there is none; files that are there stay, and are an error (required)")
	life := c.Flags().Duration("ttl", 30*24*time.Hour, "how long the certificate is good, a year at most")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file with the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := access.CheckObserver(*name); err != nil {
			return ErrUsage{fmt.Errorf("--name: %w", err)}
		}
		if *out == "" {
			return ErrUsage{errors.New("--out is missing: name the directory that gets ca.crt, client.crt and client.key")}
		}
		if *life <= 0 || *life > 365*24*time.Hour {
			return ErrUsage{fmt.Errorf("--ttl is %s: say how long the certificate is good, such as 720h, and 8760h at most",
				*life)}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			cert, key, err := d.authority.IssueClient(pki.Observer, *name, *life)
			if err == nil {
				err = writeFiles(*out, []file{{"ca.crt", d.authority.RootPEM(), 0o644}, {"client.crt", cert, 0o644},
					{"client.key", key, 0o600}})
			}
			if err = d.did(ctx, "create", "mqttobservers", *name, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s holds ca.crt, client.crt and client.key, good until %s.\n", *out,
				time.Now().Add(*life).UTC().Format(time.RFC3339))
			return err
		})
	}
	revoke := &cobra.Command{Use: "revoke NAME", Short: "End all certificates of an observer that were issued until " +
		"now; one that is connected is cut within 5 s", Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *revokeDir, func(ctx context.Context, d directory) error {
			err := d.did(ctx, "revoke", "mqttobservers", args[0], d.guard.RevokeObserver(ctx, args[0]))
			return d.ended(ctx, c.OutOrStdout(), err, "certificates", args[0], "mqttobservers")
		})
	}
	c.AddCommand(revoke)
	return c
}

type file struct {
	name string
	text []byte
	mode os.FileMode
}

// writeFiles writes new files into a directory, which it makes if there is none. Nothing
// that is there is touched: it could be the key of a certificate that is in use.
func writeFiles(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			return fmt.Errorf("write %s: it is there already; name an empty directory with --out, or remove it",
				filepath.Join(dir, f.name))
		}
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if err := renameio.WriteFile(path, f.text, f.mode, renameio.IgnoreUmask(),
			renameio.WithTempDir(filepath.Dir(path))); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}
