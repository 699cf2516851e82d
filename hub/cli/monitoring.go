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
	c := &cobra.Command{Use: "monitoring", Short: "What a Prometheus and a Grafana need to watch the hub and its devices",
		Args: OnlyCommands, RunE: help}
	c.AddCommand(p.prometheusCommand(), printed("alerts", "Print alert rules for Prometheus (YAML)", monitoring.Alerts),
		printed("dashboard", "Print a dashboard for Grafana (JSON), to be imported there", monitoring.Dashboard))
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
		Use: "prometheus DIR", Short: "Write a prometheus.yml that watches this hub, with the alert rules and a " +
			"certificate of its own", Args: exactly(1),
		Long: "Write into a directory: " + monitoring.ScrapeFile + ", unless there is one; " + monitoring.AlertsFile + "; " +
			monitoring.CAFile + "; and a client\n" +
			"certificate of the role viewer, " + monitoring.CertFile + " and " + monitoring.KeyFile +
			" (mode 0600: give it to Prometheus' user).\n" +
			"Run it again before the certificate ends, and after `flotilla-hub ca rotate --root`.",
	}
	dir := dataDir(c)
	server := c.Flags().String("server", "",
		"address of the hub, such as https://gateway:8443 (default where the hub last said that it is)")
	user := c.Flags().String("user", "prometheus", "name in the certificate and the audit")
	life := c.Flags().Duration("ttl", 365*24*time.Hour, "how long the certificate is good")
	c.Flags().String("ca-passphrase-file", os.Getenv("FLOTILLA_CA_PASSPHRASE_FILE"),
		"file with the passphrase of the authority's keys, if they have one")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *user == "" {
			return ErrUsage{errors.New("--user is empty: say whose the certificate is, such as prometheus")}
		}
		if *life <= 0 || *life > pki.LeafLife {
			return ErrUsage{fmt.Errorf("--ttl is %s: say how long the certificate is good, such as 720h, and 8760h at most",
				*life)}
		}
		return p.inside(c, *dir, func(ctx context.Context, d directory) error {
			address := *server
			if address == "" {
				address = d.url
			}
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "https" || u.Host == "" {
				return ErrUsage{fmt.Errorf("the hub's address is %q: give one such as https://gateway:8443 with --server", address)}
			}
			target := u.Host
			if u.Port() == "" {
				target += ":443"
			}
			cert, key, err := d.authority.IssueClient(pki.Viewer, *user, *life)
			if err == nil {
				err = writeScrape(args[0], target, d.authority.RootPEM(), cert, key)
			}
			if err = d.did(ctx, "create", "clientcertificates", *user, err); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "prometheus --config.file=%s\n", filepath.Join(args[0], monitoring.ScrapeFile))
			return err
		})
	}
	return c
}

// writeScrape writes what the scrape configuration names, and that itself where there is
// none: who has one has jobs of their own in it.
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
		if before != nil && err == nil { // whom the key was given to has the next one, too
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
