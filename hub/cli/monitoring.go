package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"flotilla.dev/hub/monitoring"
	"flotilla.dev/hub/pki"
)

func (p Program) monitoringCommand() *cobra.Command {
	c := &cobra.Command{Use: "monitoring", Short: "Configuration for Prometheus and Grafana",
		Args: OnlyCommands, RunE: help}
	c.AddCommand(p.prometheusCommand(), printed("alerts", "Print alert rules for Prometheus (YAML)", monitoring.Alerts),
		printed("dashboard", "Print a Grafana dashboard (JSON) to import", monitoring.Dashboard))
	return c
}

func printed(use, short string, text []byte) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: exactly(0), RunE: func(c *cobra.Command, _ []string) error {
		_, err := c.OutOrStdout().Write(text)
		return err
	}}
}

func (p Program) prometheusCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "prometheus DIR", Short: "Write a prometheus.yml for this hub, with alert rules and a client " +
			"certificate", Args: exactly(1),
		Long: "Write " + monitoring.ScrapeFile + ", " + monitoring.AlertsFile + ", " + monitoring.CAFile + " and a client " +
			"certificate of the role viewer (" + monitoring.CertFile + ", " + monitoring.KeyFile + ") into DIR.\n" +
			"An existing " + monitoring.ScrapeFile + " stays. Change the owner of " + monitoring.KeyFile +
			" (mode 0600) to Prometheus' user.\n" +
			"Run the command again before the certificate expires, and after `flotilla-hub ca rotate --root`.",
	}
	dir := dataDir(c)
	server := c.Flags().String("server", "",
		"URL of the hub, such as https://gateway:8443 (default the hub's last address)")
	user := c.Flags().String("user", "prometheus", "user name in the certificate and the audit")
	life := c.Flags().Duration("ttl", 365*24*time.Hour, "lifetime of the certificate, at most 8760h")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file whose first line is the passphrase of the authority's keys, if they are protected")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *user == "" {
			return ErrUsage{errors.New("--user is empty; write a user name, such as prometheus")}
		}
		if *life <= 0 || *life > pki.LeafLife {
			return ErrUsage{fmt.Errorf("--ttl: %s is not between 0 and 8760h; use for example 720h", *life)}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			address := *server
			if address == "" {
				address = d.url
			}
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "https" || u.Host == "" {
				return ErrUsage{fmt.Errorf("--server: %q is not an https URL; use for example https://gateway:8443", address)}
			}
			target := u.Host
			if u.Port() == "" {
				target += ":443"
			}
			cert, key, err := d.authority.IssueClient(pki.Viewer, *user, *life)
			if err == nil {
				err = writeScrape(args[0], target, d.authority.RootPEM(), cert, key)
			}
			if err = d.record(ctx, "create", "clientcertificates", *user, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "prometheus --config.file=%s\n", filepath.Join(args[0], monitoring.ScrapeFile))
			return err
		})
	}
	return c
}

// writeScrape writes the alert rules and the certificates. It does not overwrite prometheus.yml,
// which may have the user's own jobs.
func writeScrape(dir, target string, ca, cert, key []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	files := []struct {
		name string
		text []byte
		mode os.FileMode
	}{
		{monitoring.AlertsFile, monitoring.Alerts, 0o644}, {monitoring.CAFile, ca, 0o644},
		{monitoring.CertFile, cert, 0o644}, {monitoring.KeyFile, key, 0o600},
		{monitoring.ScrapeFile, []byte(strings.ReplaceAll(monitoring.Scrape, monitoring.Target, target)), 0o644},
	}
	for _, f := range files {
		file := filepath.Join(dir, f.name)
		before, err := os.Lstat(file)
		if err == nil && f.name == monitoring.ScrapeFile {
			continue
		}
		err = renameio.WriteFile(file, f.text, f.mode, renameio.IgnoreUmask(), renameio.WithTempDir(dir))
		if before != nil && err == nil { // the new key gets the former key's owner
			if of, ok := before.Sys().(*syscall.Stat_t); ok {
				err = os.Lchown(file, int(of.Uid), int(of.Gid))
			}
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
	}
	return nil
}
