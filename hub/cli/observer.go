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
		Use: "mqtt-observer --name NAME --out DIRECTORY", Short: "Issue a read-only certificate for MQTT tools",
		Args: exactly(0),
		Long: "Issue a read-only client certificate for MQTT tools. DIRECTORY receives ca.crt, client.crt and client.key:\n\n" +
			"  mosquitto_sub -h gateway -p 8883 --cafile ca.crt --cert client.crt --key client.key -v -t 'fleet/v1/#'\n\n" +
			"An observer receives what a viewer may see: leases, statuses, lists of pods, events and presence.\n" +
			"Desired states, requests and replies can have secrets: an observer receives {\"withheld\":true,\"bytes\":N}\n" +
			"and the type of a request instead.\n" +
			"It subscribes below fleet/v1, with at most 16 filters, at QoS 0 in MQTT 3.1.1. What it publishes is dropped.\n" +
			"At most 8 observers connect at a time. A slow observer misses messages\n" +
			" (flotilla_mqtt_observed_total{result=\"dropped\"}). `mqtt-observer revoke NAME` ends " +
			"its certificates.",
	}
	dir := dataDir(c)
	name := c.Flags().String("name", "", "name of the observer in the certificate and the audit (required)")
	out := c.Flags().String("out", "",
		"directory for ca.crt, client.crt and client.key, created if needed; existing files are not overwritten (required)")
	life := c.Flags().Duration("ttl", 30*24*time.Hour, "lifetime of the certificate, at most 8760h")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file whose first line is the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := access.CheckObserver(*name); err != nil {
			return ErrUsage{fmt.Errorf("--name: %w", err)}
		}
		if *out == "" {
			return ErrUsage{errors.New("--out is missing; name a directory for ca.crt, client.crt and client.key")}
		}
		if *life <= 0 || *life > 365*24*time.Hour {
			return ErrUsage{fmt.Errorf("--ttl: %s is not between 0 and 8760h; use for example 720h", *life)}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			cert, key, err := d.authority.IssueClient(pki.Observer, *name, *life)
			if err == nil {
				err = writeFiles(*out, []file{{"ca.crt", d.authority.RootPEM(), 0o644}, {"client.crt", cert, 0o644},
					{"client.key", key, 0o600}})
			}
			if err = d.record(ctx, "create", "mqttobservers", *name, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s has ca.crt, client.crt and client.key, valid until %s.\n", *out,
				time.Now().Add(*life).UTC().Format(time.RFC3339))
			return err
		})
	}
	revoke := &cobra.Command{Use: "revoke NAME", Short: "End all certificates of an observer issued until now; " +
		"its connections close within 5 s", Args: exactly(1)}
	revokeDir := dataDir(revoke)
	revoke.RunE = func(c *cobra.Command, args []string) error {
		return p.inside(c, *revokeDir, func(ctx context.Context, d directory) error {
			err := d.record(ctx, "revoke", "mqttobservers", args[0], d.guard.RevokeObserver(ctx, args[0]))
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

// writeFiles creates files in a directory. It never overwrites a file, which could be a key in use.
func writeFiles(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			return fmt.Errorf("write %s: file exists; remove it, or name an empty directory with --out",
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
